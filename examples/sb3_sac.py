"""Stable-Baselines3's SAC with KSL on a small pixel task (`pip install '.[sb3]'`).

    python examples/sb3_sac.py                      # about five minutes on one core
    python examples/sb3_sac.py --ksl False          # the same run without KSL

Saves the model and, beside it, what KSL needs to continue; then loads both and continues.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tyro
from stable_baselines3 import SAC
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from kstep.envs import EnvConfig, make
from kstep.interop.stable_baselines3 import KSLCallback


def environment(seed: int) -> Monitor[Any, Any]:
    """Any Gymnasium environment with images would do."""
    return Monitor(make(EnvConfig("toy_reach", size=36), seed))


def main(
    decisions: int = 6_000, seed: int = 1, ksl: bool = True, folder: Path = Path("runs/sb3_sac")
) -> float:
    """Train in two halves, with a save and a load between them; return the mean return."""
    folder.mkdir(parents=True, exist_ok=True)
    model = SAC(
        "CnnPolicy",
        environment(seed),
        learning_rate=1e-3,
        buffer_size=decisions,
        learning_starts=min(300, decisions // 4),
        batch_size=32,
        policy_kwargs={"net_arch": [128, 128], "features_extractor_kwargs": {"features_dim": 50}},
        seed=seed,
    )
    callback = KSLCallback() if ksl else None
    model.learn(decisions // 2, callback=callback)
    model.save(folder / "model.zip")
    model.save_replay_buffer(folder / "replay.pkl")
    if callback is not None:
        callback.save(folder / "ksl.safetensors")

    model = SAC.load(folder / "model.zip", environment(seed))
    model.load_replay_buffer(folder / "replay.pkl")
    if callback is not None:
        callback = KSLCallback()
        callback.load(folder / "ksl.safetensors")
    model.learn(decisions - decisions // 2, callback=callback, reset_num_timesteps=False)

    mean, deviation = evaluate_policy(model, environment(seed + 1), n_eval_episodes=20)
    print(f"return {mean:.1f} ± {deviation:.1f} after {decisions} decisions; above 6 is learned")
    return float(mean)  # type: ignore[arg-type]


if __name__ == "__main__":
    tyro.cli(main)
