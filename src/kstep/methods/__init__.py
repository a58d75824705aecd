"""The registry of methods: one name, one complete declaration."""

from __future__ import annotations

import difflib

from kstep.methods.base import LearningConfig, Method
from kstep.methods.ksl import KSL, KSL_RELEASED, KSL_RESULTS
from kstep.methods.sac import SAC_PIXEL, SAC_STATE
from kstep.types import KstepError

__all__ = ["METHODS", "LearningConfig", "Method", "find"]

METHODS: dict[str, Method] = {
    method.name: method for method in (KSL, KSL_RESULTS, KSL_RELEASED, SAC_PIXEL, SAC_STATE)
}


def find(name: str) -> Method:
    """Return the method called `name`, or say which names there are."""
    if name in METHODS:
        return METHODS[name]
    near = difflib.get_close_matches(name, METHODS, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise KstepError(f"unknown method '{name}'.{hint} Methods: {', '.join(METHODS)}")
