"""Run folders of format 1: read the settings and weights that earlier versions wrote.

Such a run can be evaluated, filmed, analyzed and collected. It cannot be resumed: its random
streams and moments belong to the version that wrote them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from kstep.errors import KstepError
from kstep.files import fingerprint

TURNS = {
    ("critic", "auxiliary", "actor", "slow"): "after critic",
    ("critic", "actor", "slow", "auxiliary"): "last",
    ("auxiliary", "critic", "actor", "slow"): "first",
}
PADS = {"shift": 4, "crop": 8}


@contextmanager
def _of_format_1() -> Iterator[None]:
    """Refuse settings that lack something or have something else in its place."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"[:100]
        raise KstepError(f"it does not have the settings of the first format ({what})") from error


@_of_format_1()
def digest(experiment: Mapping[str, Any]) -> str:
    """Return what identified an experiment of format 1."""
    data: dict[str, Any] = copy.deepcopy({**experiment})
    del data["env_steps"]
    if data.get("frozen_encoder") is None:
        data.pop("frozen_encoder", None)
    if data["method"]["sac"].get("temperature_sample") == "shared":
        del data["method"]["sac"]["temperature_sample"]
    return fingerprint(data)[:16]


@_of_format_1()
def experiment(old: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment of format 1 in today's format."""
    method, learning = old["method"], old["method"]["learning"]
    base, _, variant = method["name"].partition("-")
    if method["encoder"]["head"] == "convolutional":
        variant += "-earlier"  # its slow head moved at the encoder's rate (D46)
    trains = "head" if learning["encoder_learns_from"] == "auxiliary" else "all"
    if old.get("frozen_encoder") is not None:
        trains = "nothing"
    seen: dict[str, Any] = {"kind": "state"}
    if method["observation"] != "state":
        seen = encoder(method["encoder"], method["image_size"], learning["encoder_ema_rate"])
    _refuse(learning.get("joint", False), "method.learning.joint=true")
    _refuse(learning["initial_unit"] != "decisions", "method.learning.initial_unit=env_steps")
    converted = {
        "base": base,
        "variant": variant,
        "stack": method["stack"],
        "encoder": seen,
        "augment": augment(method["augment"]),
        "core": {
            "kind": "sac",
            **method["sac"],
            **_some(learning, "actor_every", "temperature_learning_rate", "temperature_betas"),
            "ema_rate": learning["critic_ema_rate"],
        },
        "auxiliary": _auxiliary(method),
        "learning": {
            **_some(learning, "batch_size", "replay_capacity", "learning_rate", "betas"),
            **_some(learning, "ema_every", "burst"),
            "initial_decisions": learning["initial_steps"],
            "critic_trains": trains,
        },
        "exploration": method["exploration"],
    }
    return {**old, "method": converted}


@_of_format_1()
def encoder(config: Mapping[str, Any], image_size: int, ema_rate: float = 0.05) -> dict[str, Any]:
    """Return the settings of a pixel encoder of format 1 in today's format."""
    return {"kind": "convolutional", "image_size": image_size, "ema_rate": ema_rate, **config}


@_of_format_1()
def augment(old: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an augmentation of format 1 in today's format."""
    kind, pad = old["kind"], old["pad"]
    _refuse(kind == "translate", "method.augment.kind=translate")
    if kind == "none":
        return {"kind": kind}
    own = _some(old, "padding") if kind == "shift" else _some(old, "last_offset")
    return {"kind": kind, "pad": PADS[kind] if pad is None else pad, **own}


def weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights and moments of an agent of format 1 under today's names."""
    names = {"task": "auxiliary", "task_encoder": "auxiliary_encoder"}
    renamed = {}
    for key, tensor in tensors.items():
        first, _, rest = key.partition("/")
        renamed[f"{names.get(first, first)}/{rest}"] = tensor
    return renamed


def _auxiliary(method: Mapping[str, Any]) -> dict[str, Any] | None:
    old, learning = method["auxiliary"], method["learning"]
    if old is None:
        return None
    order = tuple(learning["order"])
    _refuse(order not in TURNS, f"method.learning.order={list(order)}")
    _refuse(learning["aligned"] != (old["kind"] == "ceb"), "method.learning.aligned")
    common = {
        "turn": TURNS[order],
        "every": learning["auxiliary_every"],
        "learning_rate": learning["auxiliary_learning_rate"],
        "encoder_learning_rate": learning["encoder_auxiliary_learning_rate"],
        "double_step": learning["encoder_double_step"],
        **_some(learning, "pretraining", "one_optimizer"),
    }
    if old["kind"] != "ksl":
        return {**old, **common}
    _refuse(old["k_counts"] != "transitions", "method.auxiliary.k_counts=states")
    transition: dict[str, Any] = {"kind": "convolutional"}
    if old["transition"] == "dense":
        transition = {
            "kind": "dense",
            "inputs": old["transition_inputs"],
            "relu": old["transition_relu"],
            "hidden": old["transition_hidden"],
        }
        if layers := old["knowledge_sharing"]:
            _refuse(not old["transition_relu"], "shared layers without a ReLU")
            transition = {"kind": "shared", "layers": layers, "hidden": old["transition_hidden"]}
    return {
        **_some(old, "kind", "k", "reduce", "init"),
        **common,
        "augment": augment(method["sequence_augment"]),
        "sampling": method["sequence_rule"],
        "transition": transition,
        "projection_hidden": old["projection_hidden"] if old["projection"] else None,
    }


def _some(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names}


def _refuse(found: bool, what: str) -> None:
    if found:
        raise KstepError(f"it was made with {what}, which this version of kstep no longer has")
