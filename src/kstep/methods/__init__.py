"""The registry of methods: one name, one complete declaration."""

from __future__ import annotations

import difflib
from dataclasses import replace

from kstep.methods.base import LearningConfig, Method
from kstep.methods.ksl import KSL, KSL_RELEASED, KSL_RESULTS
from kstep.methods.sac import SAC_PIXEL, SAC_STATE
from kstep.types import KstepError

__all__ = ["METHODS", "LearningConfig", "Method", "find", "for_task"]

METHODS: dict[str, Method] = {
    method.name: method for method in (KSL, KSL_RESULTS, KSL_RELEASED, SAC_PIXEL, SAC_STATE)
}


TASK_LEARNING_RATES = {"cheetah_run": 2e-4}
"""The one task whose learning rate the KSL paper lowers (D31)."""


def for_task(method: Method, task: str) -> Method:
    """Return the method with the values that depend on the task."""
    rate = TASK_LEARNING_RATES.get(task, method.learning.learning_rate)
    return replace(method, learning=replace(method.learning, learning_rate=rate))


def find(name: str) -> Method:
    """Return the method called `name`, or say which names there are."""
    if name in METHODS:
        return METHODS[name]
    near = difflib.get_close_matches(name, METHODS, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise KstepError(f"unknown method '{name}'.{hint} Methods: {', '.join(METHODS)}")
