"""An exported policy on a machine that has NumPy and ONNX Runtime, and neither PyTorch nor kstep.

kstep export runs/cartpole_swingup/ksl-cpu/seed1 -o policy.onnx --loader
python onnx_without_torch.py policy.onnx        # beside deployed.py, which --loader has copied
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

try:
    from deployed import Policy  # type: ignore[import-not-found, unused-ignore]
except ImportError:  # where kstep is installed, the same file is in it
    from kstep.interop.deployed import Policy


def camera(number: int) -> Any:
    """Return what a camera sees: here some image, larger than the agent's."""
    return np.random.default_rng(number).integers(0, 256, (240, 240, 3), dtype=np.uint8)


def main(path: str, decisions: int = 20) -> list[Any]:
    """Return the actions that the policy takes."""
    policy = Policy(path)
    print(
        f"{policy.about['method']} in {policy.about['task']}, {policy.about['env_steps']} env steps"
    )
    policy.reset()  # at the start of every episode
    return [policy.act(camera(number)) for number in range(decisions)]


if __name__ == "__main__":
    for action in main(sys.argv[1]):
        print(action)
