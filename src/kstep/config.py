"""An experiment as one frozen value: method, task, budget, evaluation, seed.

`resolve` turns names into that value once; nothing changes it afterwards. It can be written as
JSON, read back, compared and identified by a digest. Overrides (`method.auxiliary.k=5`) are checked
against the dataclasses' own types, so a wrong key or value is refused with what is allowed.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

from kstep import methods
from kstep.envs import EnvConfig, tasks
from kstep.methods.base import Method, Part
from kstep.replay import ReplayConfig
from kstep.types import KstepError

T = TypeVar("T")


@dataclass(frozen=True)
class EvaluationConfig:
    """How often and how long the policy is evaluated: greedy, in an environment of its own."""

    every: int = 20_000
    """env_steps between evaluations; 0 and the very end are always evaluated."""
    episodes: int = 10


@dataclass(frozen=True)
class Experiment:
    """Everything that decides what a run computes."""

    method: Method
    env: EnvConfig
    seed: int = 1
    preset: str = "paper"
    env_steps: int = 100_000
    """Budget. May be raised later to continue a finished run; not part of its identity."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    def validate(self) -> None:
        """Refuse what cannot work, naming the key and what is allowed."""
        method, learning = self.method, self.method.learning
        positive: dict[str, float] = {
            "env_steps": self.env_steps,
            "evaluation.every": self.evaluation.every,
            "evaluation.episodes": self.evaluation.episodes,
            "env.size": self.env.size,
            "method.stack": method.stack,
            "method.encoder.channels": method.encoder.channels,
            "method.encoder.latent_dim": method.encoder.latent_dim,
            "method.learning.batch_size": learning.batch_size,
            "method.learning.initial_steps": learning.initial_steps,
            "method.learning.actor_every": learning.actor_every,
            "method.learning.ema_every": learning.ema_every,
            "method.sac.critic_views": method.sac.critic_views,
            "method.sac.hidden": method.sac.hidden,
            "replay.capacity": self.replay.capacity,
        }
        if method.auxiliary is not None:
            positive["method.auxiliary.transition_inputs"] = method.auxiliary.transition_inputs
        for key, value in positive.items():
            if value < 1:
                raise KstepError(f"{key} must be at least 1, not {value}")
        for key, value in (
            ("method.learning.critic_ema_rate", learning.critic_ema_rate),
            ("method.learning.encoder_ema_rate", learning.encoder_ema_rate),
            ("method.sac.discount", method.sac.discount),
        ):
            if not 0.0 <= value <= 1.0:
                raise KstepError(f"{key} must lie between 0 and 1, not {value}")
        low, high = method.sac.log_std_bounds
        if low >= high:
            raise KstepError(f"method.sac.log_std_bounds must rise, not [{low}, {high}]")
        if sorted(learning.order) != sorted(get_args(Part)):
            raise KstepError(
                "method.learning.order must name each of "
                f"{', '.join(get_args(Part))} once, not {list(learning.order)}"
            )
        if self.seed < 0:
            raise KstepError(f"seed must not be negative, not {self.seed}")
        if self.method.observation != self.env.observation:
            raise KstepError(
                f"method '{self.method.name}' sees {self.method.observation}, "
                f"the environment shows {self.env.observation}"
            )
        if self.method.auxiliary is not None and self.replay.capacity <= self.method.auxiliary.k:
            raise KstepError(
                f"replay.capacity={self.replay.capacity} cannot hold sequences of "
                f"k={self.method.auxiliary.k}"
            )


def preset_paper(experiment: Experiment) -> Experiment:
    """The paper's sizes."""
    return experiment


def preset_cpu(experiment: Experiment) -> Experiment:
    """The compact encoder: a second stride of 2, about a third of the arithmetic."""
    encoder = replace(experiment.method.encoder, strides=(2, 2, 1, 1))
    return replace(experiment, method=replace(experiment.method, encoder=encoder))


def preset_debug(experiment: Experiment) -> Experiment:
    """The whole pipeline in seconds. Learns nothing worth looking at."""
    method = experiment.method
    shrunk = replace(
        method,
        encoder=replace(method.encoder, channels=8, strides=(2, 2, 1, 1), latent_dim=16),
        sac=replace(method.sac, hidden=32),
        auxiliary=method.auxiliary
        and replace(method.auxiliary, transition_hidden=(32, 32), projection_hidden=32),
        # One whole episode of cartpole_swingup comes first: some readings need it to be completed.
        learning=replace(method.learning, batch_size=8, initial_steps=130),
    )
    return replace(
        experiment,
        method=shrunk,
        env=replace(experiment.env, size=36),
        env_steps=1_600,
        replay=replace(experiment.replay, capacity=1_000),
        evaluation=EvaluationConfig(every=800, episodes=1),
    )


PRESETS: dict[str, Callable[[Experiment], Experiment]] = {
    "paper": preset_paper,
    "cpu": preset_cpu,
    "debug": preset_debug,
}


def resolve(
    method: str,
    task: str,
    *,
    preset: str = "paper",
    seed: int = 1,
    env_steps: int | None = None,
    overrides: Iterable[str] = (),
) -> Experiment:
    """Turn names into an experiment. Order: method, task's values, preset, overrides."""
    chosen = methods.find(method)
    parsed = tasks.parse(task)
    if preset not in PRESETS:
        raise KstepError(
            f"unknown preset '{preset}'.{_near(preset, PRESETS)} Presets: {', '.join(PRESETS)}"
        )
    experiment = Experiment(
        method=methods.for_task(chosen, parsed.name),
        env=EnvConfig(task=parsed.name, observation=chosen.observation),
        seed=seed,
        preset=preset,
    )
    experiment = PRESETS[preset](experiment)
    if env_steps is not None:
        experiment = replace(experiment, env_steps=env_steps)
    experiment = override(experiment, overrides)
    experiment.validate()
    return experiment


def override(experiment: Experiment, overrides: Iterable[str]) -> Experiment:
    """Apply `key=value` texts, each checked against the type of what it replaces."""
    data = encode(experiment)
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise KstepError(f"'{text}' is not of the form key=value, such as method.auxiliary.k=5")
        node = data
        path = key.strip().split(".")
        for depth, name in enumerate(path):
            if not isinstance(node, dict) or name not in node:
                known = node if isinstance(node, dict) else {}
                where = ".".join(path[:depth]) or "an experiment"
                raise KstepError(
                    f"unknown key '{key}': {where} has no '{name}'.{_near(name, known)}"
                    + (f" It has: {', '.join(known)}" if known else "")
                )
            if depth < len(path) - 1:
                node = node[name]
        node[path[-1]] = _literal(value.strip())
    decoded: Experiment = decode(Experiment, data)
    return decoded


def encode(value: Any) -> Any:
    """Turn a dataclass into plain JSON values."""
    if dataclasses.is_dataclass(value):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def decode(annotation: Any, data: Any, where: str = "") -> Any:
    """Build a value of type `annotation` from JSON values, refusing anything that does not fit."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _decode_dataclass(annotation, data, where)
    if origin in (types.UnionType, typing.Union):
        if data is None:
            if type(None) in arguments:
                return None
            raise KstepError(f"{where} must not be empty")
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return decode(inner, data, where)
    if origin is Literal:
        if data not in arguments:
            near = _near(str(data), [str(argument) for argument in arguments])
            raise KstepError(
                f"{where} must be one of {', '.join(map(str, arguments))}, not '{data}'.{near}"
            )
        return data
    if origin is tuple:
        if not isinstance(data, list | tuple):
            raise KstepError(f"{where} must be a list such as [2, 1], not {data!r}")
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            arguments = (arguments[0],) * len(data)
        if len(arguments) != len(data):
            raise KstepError(f"{where} must have {len(arguments)} entries, not {len(data)}")
        return tuple(
            decode(inner, item, f"{where}[{i}]")
            for i, (inner, item) in enumerate(zip(arguments, data, strict=True))
        )
    if annotation is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if annotation in (int, float, bool, str):
        if type(data) is not annotation:
            raise KstepError(f"{where} must be {_NAMES[annotation]}, not {data!r}")
        return data
    raise TypeError(f"no rule to read {annotation} at {where}")


def digest(experiment: Experiment) -> str:
    """Identify what a run computes. The budget does not count: a run may be continued."""
    data = encode(experiment)
    del data["env_steps"]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def difference(left: Any, right: Any) -> list[tuple[str, Any, Any]]:
    """Return (key, left value, right value) wherever two configurations differ."""
    flat_left, flat_right = dict(_flat(encode(left))), dict(_flat(encode(right)))
    keys = dict.fromkeys([*flat_left, *flat_right])
    return [
        (key, flat_left.get(key), flat_right.get(key))
        for key in keys
        if flat_left.get(key) != flat_right.get(key)
    ]


_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _decode_dataclass(cls: type[T], data: Any, where: str) -> T:
    if not isinstance(data, Mapping):
        raise KstepError(f"{where or cls.__name__} must be a group of settings, not {data!r}")
    hints = typing.get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    unknown = [name for name in data if name not in names]
    if unknown:
        raise KstepError(
            f"unknown key '{where}{'.' if where else ''}{unknown[0]}'.{_near(unknown[0], names)}"
        )
    values = {
        name: decode(hints[name], data[name], f"{where}.{name}" if where else name)
        for name in names
        if name in data
    }
    return cls(**values)


def _literal(text: str) -> Any:
    """Read a command-line value: JSON where it is JSON, a plain word otherwise."""
    if text in ("None", "none", "null"):
        return "none" if text == "none" else None
    if text in ("True", "False"):
        return text == "True"
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _flat(data: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else key)
    else:
        yield prefix, data


def _near(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" Did you mean '{near[0]}'?" if near else ""
