"""An experiment as one frozen value: method, task, budget, evaluation, seed.

`resolve` turns names into that value once; nothing changes it afterwards. It can be written as
JSON, read back, compared and identified by a digest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from kstep import methods, names
from kstep.envs import EnvConfig, tasks
from kstep.envs.sight import parse_resize
from kstep.files import fingerprint
from kstep.methods.base import Method
from kstep.types import KstepError
from kstep.values import Count, Name, Positive, change, check, encode, override


@dataclass(frozen=True)
class EvaluationConfig:
    """How often and how long the policy is evaluated: greedy, in an environment of its own."""

    every: Positive = 20_000
    """env_steps between evaluations; 0 and the very end are always evaluated."""
    episodes: Positive = 10


@dataclass(frozen=True)
class FrozenEncoder:
    """An encoder trained in another run, used without further training (D35)."""

    sha256: str
    """Of the file it was saved in."""
    label: Name
    """The method that trained it."""
    task: Name
    seed: Count
    env_steps: Count


@dataclass(frozen=True)
class Experiment:
    """Everything that decides what a run computes."""

    method: Method
    env: EnvConfig
    seed: Count = 1
    preset: Name = "paper"
    env_steps: Positive = 100_000
    """Budget. May be raised later to continue a finished run; not part of its identity."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    frozen_encoder: FrozenEncoder | None = None
    """Used by critic, slow critic and actor as it is; None: the run learns its own."""

    def validate(self) -> None:
        """Refuse what cannot work, naming the key and what is allowed."""
        check(self)
        method, env = self.method, self.env
        if method.observation != env.observation:
            raise KstepError(
                f"method.encoder.kind={method.encoder.kind} sees {method.observation}, but "
                f"'{method.name}' sees {env.observation}: choose another method"
            )
        method.check()
        if env.size != rendered_size(method):
            if method.observation != "pixels":
                raise KstepError("env.size is for pixels: this method sees the state")
            raise KstepError(
                f"env.size follows from method.encoder.image_size={method.encoder.image_size} and "
                f"the augmentation: {rendered_size(method)}, not {env.size}"
            )
        kind = tasks.parse(env.task).kind
        for key in ("image", "vector"):
            choice = getattr(env, key)
            if choice is not None and (method.observation != "pixels" or kind != "gym"):
                raise KstepError(
                    f"env.{key}={choice} is for Gymnasium environments seen as pixels, not for "
                    f"{method.observation} of {env.task}"
                )
        if env.resize is not None:
            if method.observation != "pixels":
                raise KstepError("env.resize is for pixels: this method sees the state")
            parse_resize(env.resize, env.size)
        simulated = method.observation == "pixels" and kind == "suite"
        for key, default in (("renderer", "exact"), ("camera", None)):
            if getattr(env, key) != default and not simulated:
                raise KstepError(
                    f"env.{key}={getattr(env, key)} is for tasks of the control suite seen as "
                    f"pixels, not for {method.observation} of {env.task}"
                )
        frozen, trains = self.frozen_encoder is not None, method.learning.critic_trains
        if frozen and method.auxiliary is not None:
            raise KstepError(
                f"the auxiliary task of '{method.name}' has nothing to shape if the encoder is "
                "frozen; sac_pixel is the base that the paper puts on frozen encoders"
            )
        if frozen and method.observation != "pixels":
            raise KstepError(f"'{method.name}' sees the state and takes no encoder")
        if frozen and trains != "nothing":
            raise KstepError(
                f"method.learning.critic_trains={trains} would train the frozen encoder: it must "
                "be nothing"
            )
        if trains != "all" and method.auxiliary is None and not frozen:
            raise KstepError(
                f"method.learning.critic_trains={trains} leaves the encoder untrained: "
                f"'{method.name}' has no auxiliary task; --frozen-encoder brings a trained one"
            )


def rendered_size(method: Method) -> int:
    """Return the size of rendered frames, which follows from what the encoder sees."""
    seen = method.encoder.image_size
    return method.augment.render_size(seen) if seen else EnvConfig.size


def preset_debug(experiment: Experiment) -> Experiment:
    method, auxiliary = experiment.method, experiment.method.auxiliary
    completed = getattr(auxiliary, "sampling", "any") == "released"
    if auxiliary is not None:
        auxiliary = replace(auxiliary.shrunk(), pretraining=min(auxiliary.pretraining, 3))
    changes = {
        "method.encoder": method.encoder.shrunk(),
        "method.core": method.core.shrunk(),
        "method.auxiliary": auxiliary,
        "method.learning.batch_size": 8,
        # One reading needs a completed episode first; that of cartpole_swingup takes 125.
        "method.learning.initial_decisions": 130 if completed else 40,
        "method.learning.replay_capacity": 1_000,
        "method.learning.burst": min(method.learning.burst, 3),
        "env_steps": 1_600,
        "evaluation": EvaluationConfig(every=800, episodes=1),
    }
    return change(experiment, changes)


PRESETS: dict[str, Callable[[Experiment], Experiment]] = {
    "paper": lambda experiment: experiment,
    "cpu": lambda experiment: change(
        experiment, {"method.encoder": experiment.method.encoder.compact()}
    ),
    "debug": preset_debug,
}
"""What each preset of `names.py` makes of an experiment."""


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
    """Turn names into an experiment. Order: method, task's values, another kind of encoder, preset,
    all other overrides."""
    parsed = tasks.parse(task)
    chosen = methods.find(method).for_task(parsed.name)
    names.require(preset, PRESETS, "preset")
    if frozen_encoder is not None and chosen.observation == "pixels":
        chosen = change(chosen, {"learning.critic_trains": "nothing"})
    repeat = chosen.action_repeat if parsed.kind == "suite" else None
    env = EnvConfig(parsed.name, observation=chosen.observation, action_repeat=repeat)
    experiment = Experiment(
        method=replace(chosen, action_repeat=None),
        env=env,
        seed=seed,
        preset=preset,
        env_steps=parsed.env_steps,
        evaluation=EvaluationConfig(every=parsed.env_steps // 5),
        frozen_encoder=frozen_encoder,
    )
    overrides = list(overrides)
    # First, so that a preset makes another encoder small too.
    another = [text for text in overrides if text.partition("=")[0].strip() == ENCODER]
    experiment = PRESETS[preset](override(experiment, another))
    if env_steps is not None:
        experiment = replace(experiment, env_steps=env_steps)
    overrides = [text for text in overrides if text not in another]
    experiment = override(experiment, overrides, FIXED)
    exploration = experiment.method.exploration
    if exploration is not None and exploration.env_steps is None:
        half = experiment.env_steps // 2
        experiment = change(experiment, {"method.exploration.env_steps": half})
    if all(text.partition("=")[0].strip() != "env.size" for text in overrides):
        experiment = change(experiment, {"env.size": rendered_size(experiment.method)})
    experiment.validate()
    return experiment


ENCODER = "method.encoder.kind"

FIXED = {
    "preset": "use --preset",
    "method.base": "it is the method's name; choose another method",
    "method.variant": "it is the method's name; choose another method",
    "method.auxiliary.kind": "it is the method's auxiliary task; choose another method",
    "method.core.kind": "it is the method's algorithm; choose another method",
    "env.task": "it is the task's name; choose another task",
    "env.observation": "it is what the method sees; choose another method",
}
"""What overrides may not touch, because other settings were derived from it."""


def digest(experiment: Experiment) -> str:
    """Identify what a run computes. The budget does not count: a run may be continued."""
    data = encode(experiment)
    del data["env_steps"]
    return fingerprint(data)[:16]


def setting(experiment: Experiment) -> str:
    """Return the digest of all settings but the seed: what the runs of one curve share."""
    return digest(replace(experiment, seed=0))
