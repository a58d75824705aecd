"""Data-efficient reinforcement learning from pixels: k-Step Latent (KSL) and its peers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kstep.api import evaluate as evaluate
    from kstep.api import train as train
    from kstep.bench.check_env import check_env as check_env
    from kstep.envs.own import register_env as register_env
    from kstep.errors import KstepError as KstepError
    from kstep.interop.export import export as export
    from kstep.interop.ksl import KSL as KSL
    from kstep.methods.base import Method as Method
    from kstep.registry import register_auxiliary as register_auxiliary
    from kstep.registry import register_encoder as register_encoder
    from kstep.registry import register_method as register_method
    from kstep.run.callbacks import Callback as Callback
    from kstep.run.callbacks import Progress as Progress
    from kstep.run.evaluate import Evaluation as Evaluation
    from kstep.run.folder import Run as Run
    from kstep.run.policy import Policy as Policy
    from kstep.run.policy import load as load

__version__ = "0.1.0"

# Where each public name is defined. It is imported when it is first asked for: `import kstep` and
# the command line's own imports take no PyTorch.
_HOMES = {
    "KSL": "kstep.interop.ksl",
    "Callback": "kstep.run.callbacks",
    "Evaluation": "kstep.run.evaluate",
    "KstepError": "kstep.errors",
    "Method": "kstep.methods.base",
    "Policy": "kstep.run.policy",
    "Progress": "kstep.run.callbacks",
    "Run": "kstep.run.folder",
    "check_env": "kstep.bench.check_env",
    "evaluate": "kstep.api",
    "export": "kstep.interop.export",
    "load": "kstep.run.policy",
    "register_auxiliary": "kstep.registry",
    "register_encoder": "kstep.registry",
    "register_env": "kstep.envs.own",
    "register_method": "kstep.registry",
    "train": "kstep.api",
}

__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kstep' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
