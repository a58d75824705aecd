"""Data-efficient reinforcement learning from pixels: k-Step Latent (KSL) and its peers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kstep.interop.ksl import KSL as KSL

__version__ = "0.1.0"

_WHERE = {"KSL": "kstep.interop.ksl"}
"""What users import from here and where it is; it is imported when it is first asked for."""


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
