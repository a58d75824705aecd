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
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar, get_args

from kstep import augment, methods
from kstep.auxiliary.base import AuxiliaryConfig
from kstep.auxiliary.ksl import KSLConfig
from kstep.envs import EnvConfig, tasks
from kstep.methods.base import Method, Part
from kstep.types import KstepError

T = TypeVar("T")


@dataclass(frozen=True)
class EvaluationConfig:
    """How often and how long the policy is evaluated: greedy, in an environment of its own."""

    every: int = 20_000
    """env_steps between evaluations; 0 and the very end are always evaluated."""
    episodes: int = 10


@dataclass(frozen=True)
class FrozenEncoder:
    """An encoder trained in another run that this one takes as it is (D35)."""

    sha256: str
    """Of the file it was saved in."""
    label: str
    """The method that trained it."""
    task: str
    seed: int
    env_steps: int


def _numbers(value: object, key: str = "") -> Iterator[tuple[str, int | float]]:
    """Every number of a configuration, by its key."""
    if dataclasses.is_dataclass(value):
        for field_ in dataclasses.fields(value):
            inner = f"{key}.{field_.name}" if key else field_.name
            yield from _numbers(getattr(value, field_.name), inner)
    elif isinstance(value, tuple):
        for entry in value:
            yield from _numbers(entry, key)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield key, value


@dataclass(frozen=True)
class Experiment:
    """Everything that decides what a run computes."""

    method: Method
    env: EnvConfig
    seed: int = 1
    preset: str = "paper"
    env_steps: int = 100_000
    """Budget. May be raised later to continue a finished run; not part of its identity."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    frozen_encoder: FrozenEncoder | None = None
    """Taken as it is by critic, slow critic and actor; None: the run learns its own."""

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
            "method.learning.replay_capacity": learning.replay_capacity,
            "method.learning.auxiliary_every": learning.auxiliary_every,
        }
        for key, number in _numbers(self):
            if not math.isfinite(number):
                raise KstepError(f"{key} must be a finite number, not {number}")
            # Sizes, steps and counts, whatever the task; only sharing no layers is nothing at all.
            whole = isinstance(number, int) and key.startswith("method.auxiliary.")
            if whole and number < (0 if key.endswith(".knowledge_sharing") else 1):
                raise KstepError(f"{key} must be at least 1, not {number}")
        for key, value in positive.items():
            if value < 1:
                raise KstepError(f"{key} must be at least 1, not {value}")
        for key, (first, second) in (
            ("method.learning.betas", learning.betas),
            ("method.learning.temperature_betas", learning.temperature_betas),
        ):
            if not (0.0 <= first < 1.0 and 0.0 <= second < 1.0):
                raise KstepError(f"{key} must lie in [0, 1), not [{first}, {second}]")
        if method.sac.initial_temperature <= 0:
            raise KstepError(
                f"method.sac.initial_temperature must be positive, not "
                f"{method.sac.initial_temperature}"
            )
        exploration = method.exploration
        never_negative = {
            "method.learning.learning_rate": learning.learning_rate,
            "method.learning.temperature_learning_rate": learning.temperature_learning_rate,
            "method.learning.auxiliary_learning_rate": learning.auxiliary_learning_rate,
            "method.learning.encoder_auxiliary_learning_rate": (
                learning.encoder_auxiliary_learning_rate
            ),
            "method.learning.pretraining": learning.pretraining,
            "method.learning.burst": learning.burst,
            "method.exploration.env_steps": exploration.env_steps if exploration else None,
        }
        for key, amount in never_negative.items():
            if amount is not None and amount < 0:
                raise KstepError(f"{key} must not be negative, not {amount}")
        for key, value in (
            ("method.learning.critic_ema_rate", learning.critic_ema_rate),
            ("method.learning.encoder_ema_rate", learning.encoder_ema_rate),
            ("method.sac.discount", method.sac.discount),
        ):
            if not 0.0 <= value <= 1.0:
                raise KstepError(f"{key} must lie between 0 and 1, not {value}")
        if method.sac.log_std_bounds is not None:
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
        seen = augment.build(method.augment).render_size(method.image_size)
        if method.observation == "pixels" and self.env.size != seen:
            raise KstepError(
                f"method.image_size={method.image_size} with method.augment.kind="
                f"{method.augment.kind} needs frames of {seen} pixels, env.size is {self.env.size}"
            )
        if self.env.renderer != "exact" and (
            method.observation != "pixels" or tasks.parse(self.env.task).kind != "suite"
        ):
            raise KstepError(
                f"env.renderer={self.env.renderer} is for tasks of the control suite seen as "
                f"pixels, not for {method.observation} of {self.env.task}"
            )
        if learning.replay_capacity < 2 * learning.initial_steps:
            raise KstepError(
                f"method.learning.replay_capacity={learning.replay_capacity} must be at least "
                f"twice method.learning.initial_steps={learning.initial_steps}"
            )
        if learning.replay_capacity < learning.batch_size:
            raise KstepError(
                f"method.learning.replay_capacity={learning.replay_capacity} is smaller than "
                f"method.learning.batch_size={learning.batch_size}"
            )
        self._validate_composition()

    def _validate_joint(self) -> None:
        auxiliary, learning = self.method.auxiliary, self.method.learning
        needed = (
            ("method.learning.aligned=true", learning.aligned),
            (
                "an auxiliary task that encodes nothing but the first observations and, slowly, "
                "the later ones, such as ksl",
                auxiliary is not None and auxiliary.encodes_first_and_rest,
            ),
            ("method.learning.one_optimizer=false", not learning.one_optimizer),
            ("method.learning.auxiliary_every=1", learning.auxiliary_every == 1),
            (
                "method.learning.encoder_learns_from=critic and auxiliary",
                learning.encoder_learns_from == "critic and auxiliary",
            ),
        )
        for setting, given in needed:
            if not given:
                raise KstepError(f"method.learning.joint needs {setting}")

    def _validate_composition(self) -> None:
        """Refuse parts that do not go together."""
        method, learning = self.method, self.method.learning
        if self.frozen_encoder is not None and method.auxiliary is not None:
            raise KstepError(
                f"the auxiliary task of '{method.name}' has nothing to shape if the encoder is "
                "frozen; sac_pixel is the base that the paper puts on frozen encoders"
            )
        if self.frozen_encoder is not None and method.observation != "pixels":
            raise KstepError(f"'{method.name}' sees the state and takes no encoder")
        if method.auxiliary is None:
            for key, used in (
                ("method.learning.aligned", learning.aligned),
                ("method.learning.one_optimizer", learning.one_optimizer),
                ("method.learning.pretraining", learning.pretraining > 0),
                ("method.exploration", method.exploration is not None),
                (
                    "method.learning.encoder_learns_from=auxiliary",
                    learning.encoder_learns_from == "auxiliary",
                ),
            ):
                if used:
                    raise KstepError(f"{key} needs an auxiliary task; '{method.name}' has none")
        if learning.aligned and method.auxiliary is not None and method.auxiliary.horizon == 0:
            raise KstepError(
                f"method.learning.aligned needs an auxiliary task with sequences of its own; that "
                f"of '{method.name}' sees the transitions anyway"
            )
        if learning.aligned and method.sac.critic_views > 1:
            raise KstepError("method.learning.aligned goes with method.sac.critic_views=1 only")
        if learning.joint:
            self._validate_joint()
        if method.sac.actor_latent == "reused":
            if method.sac.actor_encoder != "share_all":
                raise KstepError(
                    "method.sac.actor_latent=reused needs method.sac.actor_encoder=share_all"
                )
            if learning.order.index("actor") < learning.order.index("critic"):
                raise KstepError(
                    "method.sac.actor_latent=reused needs the critic before the actor in "
                    "method.learning.order"
                )
        if method.observation == "state" and method.augment.kind != "none":
            raise KstepError("a state vector cannot be augmented: method.augment.kind must be none")
        if learning.one_optimizer and (
            learning.encoder_double_step or learning.encoder_auxiliary_learning_rate is not None
        ):
            raise KstepError(
                "with method.learning.one_optimizer the encoder has one learning rate: "
                "encoder_double_step and encoder_auxiliary_learning_rate have no meaning"
            )
        if isinstance(method.auxiliary, KSLConfig) and method.auxiliary.knowledge_sharing:
            width = method.auxiliary.transition_hidden[0]
            if width != method.sac.hidden:
                raise KstepError(
                    f"method.auxiliary.knowledge_sharing takes layers of the critic, so "
                    f"method.auxiliary.transition_hidden[0]={width} must equal "
                    f"method.sac.hidden={method.sac.hidden}"
                )
        if method.exploration and method.auxiliary and not method.auxiliary.rewards:
            raise KstepError(
                f"method.exploration needs an auxiliary task that rewards; "
                f"'{method.auxiliary.kind}' does not"
            )
        if learning.encoder_learns_from == "auxiliary" and method.observation == "state":
            raise KstepError("a state vector has no encoder for an auxiliary task to learn")
        if method.exploration is not None and learning.encoder_learns_from != "auxiliary":
            raise KstepError(
                "method.exploration needs method.learning.encoder_learns_from=auxiliary: the "
                "encoder is kept when the task begins"
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
        auxiliary=method.auxiliary and method.auxiliary.shrunk(),
        image_size=48,
        learning=replace(
            method.learning,
            batch_size=8,
            # One reading needs a completed episode first; that of cartpole_swingup takes 125.
            initial_steps=130 if method.sequence_rule == "released" else 40,
            initial_unit="decisions",
            replay_capacity=1_000,
            pretraining=min(method.learning.pretraining, 3),
            burst=min(method.learning.burst, 3),
        ),
    )
    return replace(
        experiment,
        method=shrunk,
        env_steps=1_600,
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
    frozen_encoder: FrozenEncoder | None = None,
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
        env=EnvConfig(
            task=parsed.name,
            observation=chosen.observation,
            action_repeat=methods.action_repeat(chosen, parsed.name),
        ),
        seed=seed,
        preset=preset,
        frozen_encoder=frozen_encoder,
    )
    experiment = PRESETS[preset](experiment)
    if env_steps is not None:
        experiment = replace(experiment, env_steps=env_steps)
    overrides = list(overrides)
    experiment = override(experiment, overrides)
    exploration = experiment.method.exploration
    if exploration is not None and exploration.env_steps is None:
        half = replace(exploration, env_steps=experiment.env_steps // 2)
        experiment = replace(experiment, method=replace(experiment.method, exploration=half))
    # What is rendered follows from what the encoder sees; it is not a choice of its own.
    rendered = augment.build(experiment.method.augment).render_size(experiment.method.image_size)
    asked = any(text.partition("=")[0].strip() == "env.size" for text in overrides)
    if asked and experiment.env.size != rendered:
        raise KstepError(
            f"env.size follows from method.image_size={experiment.method.image_size} and the "
            f"augmentation: {rendered}, not {experiment.env.size}"
        )
    experiment = replace(experiment, env=replace(experiment.env, size=rendered))
    experiment.validate()
    return experiment


FIXED = {
    "preset": "use --preset",
    "method.name": "it is the method's name; choose another method",
    "method.summary": "it is the method's description",
    "method.observation": "it is what the method sees; choose another method",
    "method.auxiliary.kind": "it is the method's auxiliary task; choose another method",
    "env.task": "it is the task's name; choose another task",
    "env.observation": "it is what the method sees; choose another method",
}
"""What overrides may not touch, because other settings were derived from it."""


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
        new, fixed = _literal(value.strip()), FIXED.get(key.strip())
        if fixed and new != node[path[-1]]:
            raise KstepError(f"{key.strip()} cannot be set: {fixed}")
        node[path[-1]] = new
    decoded: Experiment = decode(Experiment, data)
    return decoded


def encode(value: Any) -> Any:
    """Turn a dataclass into plain JSON values."""
    if dataclasses.is_dataclass(value):
        fields = {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"kind": value.kind, **fields} if isinstance(value, AuxiliaryConfig) else fields
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def decode(annotation: Any, data: Any, where: str = "") -> Any:
    """Build a value of type `annotation` from JSON values, refusing anything that does not fit."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is AuxiliaryConfig:
        return _decode_auxiliary(data, where)
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
    # Runs from before these settings keep their identity: they have what was the only value then.
    if data["frozen_encoder"] is None:
        del data["frozen_encoder"]
    if data["method"]["sac"]["temperature_sample"] == "shared":
        del data["method"]["sac"]["temperature_sample"]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def setting(experiment: Experiment) -> str:
    """Return the digest of all settings but the seed: what the runs of one curve share."""
    return digest(replace(experiment, seed=0))


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
    needed = [
        f.name
        for f in dataclasses.fields(cls)  # type: ignore[arg-type]
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    if missing := [name for name in needed if name not in data]:
        raise KstepError(f"{where or cls.__name__} lacks {', '.join(missing)}")
    values = {
        name: decode(hints[name], data[name], f"{where}.{name}" if where else name)
        for name in names
        if name in data
    }
    return cls(**values)


def _decode_auxiliary(data: Any, where: str) -> AuxiliaryConfig:
    """Build the configuration of whichever task `data` says it is."""
    if not isinstance(data, Mapping):
        raise KstepError(f"{where} must be a group of settings, not {data!r}")
    kind = data.get("kind")
    if kind not in AuxiliaryConfig.kinds:
        known = ", ".join(AuxiliaryConfig.kinds)
        raise KstepError(f"{where}.kind must be one of {known}, not {kind!r}")
    fields = {key: value for key, value in data.items() if key != "kind"}
    return _decode_dataclass(AuxiliaryConfig.kinds[kind], fields, where)


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
