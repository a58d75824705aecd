"""The registry of methods: one name, one complete declaration.

A plain name is the controlled setting: the KSL paper's values wherever the method leaves a choice.
`<name>-original` has its authors' own.
"""

from __future__ import annotations

import difflib
from dataclasses import replace

from kstep.envs import tasks
from kstep.methods import pi_sac
from kstep.methods.ablations import ABLATIONS
from kstep.methods.base import LearningConfig, Method
from kstep.methods.curl import CURL, CURL_ORIGINAL
from kstep.methods.drq import DRQ, DRQ_ORIGINAL
from kstep.methods.ksl import KSL, KSL_RELEASED, KSL_RESULTS
from kstep.methods.pi_sac import PI_SAC, PI_SAC_ORIGINAL
from kstep.methods.proto_rl import PROTO_RL, PROTO_RL_ORIGINAL
from kstep.methods.rad import RAD, RAD_ORIGINAL
from kstep.methods.sac import SAC_PIXEL, SAC_STATE, SAC_STATE_ORIGINAL
from kstep.methods.sac_ae import SAC_AE, SAC_AE_ORIGINAL, SAC_PIXEL_ORIGINAL
from kstep.types import KstepError

__all__ = [
    "METHODS",
    "VARIANT_OF",
    "LearningConfig",
    "Method",
    "action_repeat",
    "find",
    "for_task",
]

READINGS = (KSL, KSL_RESULTS, KSL_RELEASED)
CONTROLLED = (RAD, DRQ, CURL, SAC_AE, SAC_STATE, SAC_PIXEL, PI_SAC, PROTO_RL)
ORIGINALS = (
    RAD_ORIGINAL,
    DRQ_ORIGINAL,
    CURL_ORIGINAL,
    SAC_AE_ORIGINAL,
    SAC_STATE_ORIGINAL,
    SAC_PIXEL_ORIGINAL,
    PI_SAC_ORIGINAL,
    PROTO_RL_ORIGINAL,
)

METHODS: dict[str, Method] = {
    method.name: method for method in (*READINGS, *CONTROLLED, *ORIGINALS, *ABLATIONS)
}

VARIANT_OF: dict[str, str] = {
    method.name: method.name.partition("-")[0] for method in (*READINGS, *CONTROLLED, *ORIGINALS)
}
"""Whose variant each is: KSL's readings, and a peer in the controlled and in its original setting.
Ablations are none: they are something else on purpose."""

TASK_LEARNING_RATES = {"cheetah_run": 2e-4}
"""The one task whose learning rate the KSL paper lowers (D31)."""

OWN_RATES = {
    method.name
    for method in ORIGINALS
    if method.name not in ("rad-original", "curl-original")  # they lower it there as well
}


def for_task(method: Method, task: str) -> Method:
    """Return the method with the values that depend on the task."""
    learning = method.learning
    if task in TASK_LEARNING_RATES and method.name not in OWN_RATES:
        learning = replace(learning, learning_rate=TASK_LEARNING_RATES[task])
    if method.name == RAD_ORIGINAL.name and task == "cheetah_run":
        learning = replace(learning, initial_steps=10_000)
    if method.name in (PI_SAC.name, PI_SAC_ORIGINAL.name) and task in pi_sac.TASKS:
        _, initial, pretraining = pi_sac.TASKS[task]
        learning = replace(learning, pretraining=pretraining)
        if method.name == PI_SAC_ORIGINAL.name:
            learning = replace(learning, initial_steps=initial)
    return replace(method, learning=learning)


def action_repeat(method: Method, task: str) -> int | None:
    """Return the action repeat that a method's authors used; None: the task's own."""
    if method.name == SAC_STATE_ORIGINAL.name:
        return 1
    if method.name == PROTO_RL_ORIGINAL.name and tasks.parse(task).kind == "suite":
        return 2
    if method.name == PI_SAC_ORIGINAL.name and task in pi_sac.TASKS:
        return pi_sac.TASKS[task][0]
    return None


def find(name: str) -> Method:
    """Return the method called `name`, or say which names there are."""
    if name in METHODS:
        return METHODS[name]
    near = difflib.get_close_matches(name, METHODS, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    raise KstepError(f"unknown method '{name}'.{hint} Methods: {', '.join(METHODS)}")
