"""Every reinforcement-learning core beside every auxiliary task: what the registered methods, which
are some of these pairs, leave out is tested as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kstep.methods import METHODS
from kstep.methods.base import Method
from tests.make import tiny

CORES = {"sac": "sac_pixel", "ddpg": "drq_v2", "dqn": "dqn"}
TASKS = {
    "ksl": "ksl",
    "curl": "curl",
    "autoencoder": "sac_ae",
    "ceb": "pi_sac",
    "proto": "proto_rl",
}
PAIRS = {f"{core}_{task}": (core, task) for core in CORES for task in TASKS}


def _debug(name: str) -> Method:
    return tiny(name).method


def pair(name: str, sized: Callable[[str], Method] = _debug) -> Method:
    """Return a method with this core, and this task as the task's own method has it."""
    core, task = PAIRS[name]
    auxiliary = sized(TASKS[task]).auxiliary
    method = replace(sized(CORES[core]), base=name, auxiliary=auxiliary)
    method.check()
    return method


def declared(name: str) -> Method:
    """Return the pair at full size, as it could be registered."""
    return pair(name, METHODS.__getitem__)
