"""The registry of methods: one name, one complete declaration.

A plain name is the controlled setting: the KSL paper's values wherever the method leaves a choice.
`<name>-original` has its authors' own.
"""

from __future__ import annotations

import re
from dataclasses import replace

from kstep import names, plugins
from kstep.methods.ablations import ABLATIONS
from kstep.methods.base import LearningConfig, Method
from kstep.methods.curl import CURL, CURL_ORIGINAL
from kstep.methods.dqn import DQN, KSL_DQN
from kstep.methods.drq import DRQ, DRQ_ORIGINAL
from kstep.methods.drq_v2 import DRQ_V2, KSL_DRQ_V2
from kstep.methods.ksl import KSL, KSL_RELEASED, KSL_RESULTS
from kstep.methods.pi_sac import PI_SAC, PI_SAC_ORIGINAL
from kstep.methods.proto_rl import PROTO_RL, PROTO_RL_ORIGINAL
from kstep.methods.rad import RAD, RAD_ORIGINAL
from kstep.methods.sac import SAC_PIXEL, SAC_STATE, SAC_STATE_ORIGINAL
from kstep.methods.sac_ae import SAC_AE, SAC_AE_ORIGINAL, SAC_PIXEL_ORIGINAL
from kstep.types import EnvSpec, KstepError
from kstep.values import check

__all__ = [
    "METHODS",
    "VARIANT_OF",
    "LearningConfig",
    "Method",
    "find",
    "refuse_actions",
    "register",
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
OTHER_CORES = (DRQ_V2, KSL_DRQ_V2, DQN, KSL_DQN)

METHODS: dict[str, Method] = {
    method.name: replace(method, summary=names.METHOD_SUMMARIES[method.name])
    for method in (*READINGS, *CONTROLLED, *ORIGINALS, *OTHER_CORES, *ABLATIONS)
}

VARIANT_OF: dict[str, str] = {
    method.name: method.base for method in (*READINGS, *CONTROLLED, *ORIGINALS)
}
"""Whose variant each is: KSL's readings, and a peer in the controlled and in its original setting.
Ablations are none: they are something else on purpose."""


def refuse_actions(method: Method, spec: EnvSpec, env: object) -> None:
    """Refuse a method that cannot choose an environment's actions, naming those that can."""
    if spec.actions in method.core.acts_in:
        return
    able = [
        name
        for name, other in METHODS.items()
        if not other.variant and spec.actions in other.core.acts_in
    ]
    named = f"these methods can: {', '.join(able)}" if able else "no registered method can"
    raise KstepError(
        f"'{method.name}' cannot choose {NAMES[spec.actions]} actions, which {env} takes; {named}"
    )


NAMES = {"box": "continuous", "discrete": "discrete"}


def register(method: Method) -> None:
    """Add a method to the registry under its name, which must be free."""
    name = method.name
    if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name) is None:
        raise KstepError(
            f"'{name}' cannot be a method's name: letters, digits, '_', '-' and '.' are allowed"
        )
    if name in names.METHOD_SUMMARIES or METHODS.get(name, method) != method:
        raise KstepError(f"there is another method called '{name}'")
    check(method)
    method.check()
    METHODS[name] = method


def find(name: str) -> Method:
    """Return the method called `name`, or raise with the names there are."""
    if name not in METHODS:
        _take_plugins()
    names.require(name, METHODS, "method", plugins.complaints())
    return METHODS[name]


def _take_plugins() -> None:
    """Register the methods that installed packages name; what is wrong with one is kept for who
    asks for it."""
    for name, value in plugins.load().items():
        try:
            if not isinstance(value, Method) or value.name != name:
                called = f"the method '{value.name}'" if isinstance(value, Method) else repr(value)
                raise KstepError(f"it is {called[:100]}")
            register(value)
        except KstepError as error:
            package = plugins.methods()[name]
            plugins.problems[name] = f"the method '{name}' of {package} cannot be used: {error}"
