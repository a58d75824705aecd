"""Every setting of every method decides something, or is refused.

Each field of a method's experiment is given every other kind of value that its type allows, one at
a time. Either the change is refused in words, or something is different afterwards: weights or
moments within a few updates, or what a short training run does and when. A setting that nothing
reads would be a lie.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator
from functools import cache
from io import StringIO
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from kstep.agent import Agent, Update
from kstep.config import Experiment
from kstep.data.replay import Replay
from kstep.methods import METHODS
from kstep.nets.base import FixedFeatures
from kstep.optimizers import NonFinite
from kstep.rng import Streams
from kstep.run import checkpoint, system, train
from kstep.run.evaluate import Evaluation
from kstep.run.folder import Run
from kstep.run.runtime import Runtime
from kstep.types import Array, EnvSpec, KstepError
from kstep.values import Family, decode, encode, flat, is_derived
from tests.make import filled_replay, snapshot, spec_for, tiny

Change = tuple[str, Any]
Numbers = dict[str, Tensor]
UNIONS = (UnionType, typing.Union)

SMALL = (
    # Ten decisions per episode, as many as the readings need that learn from completed ones.
    "env.action_repeat=6",
    "env_steps=360",
    "evaluation.every=100",
    "method.learning.initial_decisions=10",
    "method.learning.replay_capacity=46",  # fewer than the run's 60 decisions
    "method.learning.batch_size=4",
    "method.learning.learning_rate=7e-4",  # no other rate, so that `null` for those says something
)
PROTO = (
    # Few of a batch are remembered, and two updates fill the queue: rewards are not all zero.
    "method.learning.batch_size=32",
    "method.auxiliary.queue=32",
    # The replay is full before it is emptied, and an episode ends after that.
    "method.exploration.env_steps=300",
)


def resolved(method: str, *overrides: str) -> Experiment:
    return tiny(method, *SMALL, *(PROTO if METHODS[method].base == "proto_rl" else ()), *overrides)


@cache
def base(method: str) -> Experiment:
    return resolved(method)


def changes(settings: Any, prefix: str = "") -> Iterator[Change]:
    """Yield every field of some settings by its key, with each value that it is changed to."""
    hints = typing.get_type_hints(type(settings), include_extras=True)
    if isinstance(settings, Family):
        yield from ((f"{prefix}kind", kind) for kind in settings.kinds if kind != settings.kind)
    for field in dataclasses.fields(settings):
        if is_derived(field):
            continue
        key, value = f"{prefix}{field.name}", getattr(settings, field.name)
        yield from ((key, other) for other in others(hints[field.name], value))
        if dataclasses.is_dataclass(value):
            yield from changes(value, f"{key}.")


def others(annotation: Any, value: Any) -> list[Any]:
    """Return other values of a type, as JSON has them."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        found = [other for other in others(arguments[0], value) if fits(annotation, other)]
        return found or [other for other in (value + 1, value - 1) if fits(annotation, other)][:1]
    if origin in UNIONS:
        (inner,) = (argument for argument in arguments if argument is not NoneType)
        return samples(inner) if value is None else [None, *others(inner, value)]
    if origin is Literal:
        return [argument for argument in arguments if argument != value]
    if origin is tuple:
        fixed = arguments[-1] is not Ellipsis
        inners = arguments if fixed else arguments[:1] * len(value)
        found = [
            [*value[:i], other, *value[i + 1 :]]
            for i, inner in enumerate(inners)
            for other in others(inner, value[i])
        ]
        return found if fixed else [*found, list(value[:-1]), [*value, value[-1]]]
    if annotation is bool:
        return [not value]
    if annotation is int:
        return [2 * value + 2]
    if annotation is float:
        return [value / 2 if value else 0.25]
    if annotation is str:
        return [f"{value}x"]
    assert dataclasses.is_dataclass(annotation), annotation
    return []


def samples(annotation: Any) -> list[Any]:
    """Return values of a type where there was none."""
    if typing.get_origin(annotation) is Annotated:
        return samples(typing.get_args(annotation)[0])
    if isinstance(annotation, type) and issubclass(annotation, Family):
        return [{"kind": kind} for kind in annotation.kinds]
    if dataclasses.is_dataclass(annotation):
        hints = typing.get_type_hints(annotation, include_extras=True)
        return [{name: samples(hint)[0] for name, hint in hints.items()}]
    if typing.get_origin(annotation) in UNIONS:
        return [None]
    if typing.get_origin(annotation) is tuple:
        inners = typing.get_args(annotation)
        return [[place * samples(inner)[0] for place, inner in enumerate(inners, start=1)]]
    plain: dict[type, list[Any]] = {int: [3], float: [0.003], str: ["x"]}
    return plain[annotation]


def fits(annotation: Any, value: Any) -> bool:
    try:
        decode(annotation, value)
    except KstepError:
        return False
    return True


VERSIONS, COMMIT = cache(system.versions), cache(system.commit)
"""Asked for once: they take longer than all the rest of a short run."""


@cache
def replay_of(spec: EnvSpec, stack: int) -> Replay:
    return filled_replay(spec, stack)


def learning(experiment: Experiment) -> Iterator[Numbers]:
    """Yield parameters, moments and actions that are tried: as they start, after each of three
    updates, which move them on, and, in a second phase, after two more."""
    spec = spec_for(experiment)
    agent = Agent(experiment.method, spec, Streams(experiment.seed))
    replay = replay_of(spec, experiment.method.stack)
    agent.core.decisions = 2500  # on the way of every schedule
    fixed, chance = FixedFeatures(agent.encoder), torch.Generator().manual_seed(0)
    view = agent.batches.augment.act_view(replay.newest_stack()[None])
    with torch.no_grad():
        # Many times the same, so that a small share of random actions shows.
        seen = agent.encoder.features(torch.from_numpy(view)).expand(2000, -1)
        tried = agent.core.act(fixed, seen, agent.streams.act)
        for parameter in (p for copy in agent.slow_copies for p in copy.slow.parameters()):
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=chance))  # as if later

    def numbers() -> Numbers:
        found = {
            f"{module}/{name}": parameter
            for module, network in agent.modules().items()
            for name, parameter in network.named_parameters()
        }
        return found | agent.optimizers.state() | {"actions that are tried": tried}

    yield numbers()
    for _ in range(3):
        agent.update(replay)
        yield numbers()
    if experiment.method.exploration is not None:
        agent.begin_task()
        for _ in range(2):
            agent.update(replay)
            yield numbers()


@cache
def learned(method: str) -> list[Numbers]:
    return [snapshot(numbers) for numbers in learning(base(method))]


def learns_otherwise(method: str, changed: Experiment) -> bool:
    """Whether other numbers come out, looked at after every update."""
    for ours, theirs in zip(learned(method), learning(changed), strict=True):
        if ours.keys() != theirs.keys():
            return True
        # `equal` is also False for other shapes.
        if not all(torch.equal(ours[name], theirs[name]) for name in ours):
            return True
    return False


def doing(experiment: Experiment, folder: Path) -> list[Any]:
    """Train, but for the learning itself; return what happened in which order."""
    events: list[Any] = []
    add, begin_task = Replay.add, Agent.begin_task

    def update(agent: Agent, replay: Replay, *, every_part: bool = False) -> Update:
        events.append(("update", len(replay), agent.due(every_part)))
        agent.updates += 1
        return Update({}, torch.eye(4))

    def begin(agent: Agent) -> None:
        events.append("the task begins")
        begin_task(agent)

    def step(replay: Replay, action: Array, reward: float, *rest: Any, **lost: Any) -> None:
        add(replay, action, reward, *rest, **lost)
        events.append(("step", reward, len(replay)))

    def evaluate(agent: Agent, lanes: Any, seeds: list[int], on_step: Any) -> Evaluation:
        events.append(("evaluate", *seeds))
        return Evaluation((0.0,) * len(seeds), (1,) * len(seeds))

    def act(agent: Agent, observation: Array, *, explore: bool) -> Array:
        return agent.random_action()[None]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Agent, "update", update)
        patch.setattr(Agent, "act", act)
        patch.setattr(Agent, "pretrain", lambda agent, replay: events.append("pretrain"))
        patch.setattr(Agent, "begin_task", begin)
        patch.setattr(Replay, "add", step)
        patch.setattr(train, "evaluate", evaluate)
        patch.setattr(checkpoint, "save", lambda *_: folder)
        patch.setattr(system, "versions", VERSIONS)
        patch.setattr(system, "commit", COMMIT)
        runtime = Runtime(threads=1, encoder_backend="torch", overlap="here")
        train.train(Run(folder, experiment), runtime, Console(file=StringIO()))
    return events


OF_THE_LOOP = (
    "method.learning.initial_decisions",
    "method.learning.replay_capacity",
    "method.learning.burst",
    "method.learning.update_every",
    "method.auxiliary.pretraining",
    "method.exploration.env_steps",
)
"""Settings of a method for which a run is looked at first, as that is quicker."""


class Guard:
    """Tries changes of one method."""

    def __init__(self, method: str, folder: Path) -> None:
        self.method, self.folder = method, folder
        self.runs = 0
        self.done = self.run(base(method))

    def run(self, experiment: Experiment) -> list[Any]:
        self.runs += 1
        return doing(experiment, self.folder / str(self.runs))

    def finds(self, key: str, value: Any) -> str:
        """Say what a change does: it is refused, or what differs; nothing where nothing does."""
        unchanged = base(self.method)
        try:
            changed = resolved(self.method, f"{key}={json.dumps(value)}")
            if key in OF_THE_LOOP and self.run(changed) != self.done:
                return "other events"
            if changed.method != unchanged.method and learns_otherwise(self.method, changed):
                return "other numbers"
            return "other events" if self.run(changed) != self.done else ""
        except NonFinite:
            raise
        except KstepError as error:
            return f"refused: {error}"


def is_alike(method: str, key: str, value: Any) -> bool:
    """Whether a change is none: two values that mean the same beside the method's other values."""
    experiment = base(method)
    if key == "method.auxiliary.reduce":  # the mean of one step is its sum
        return getattr(experiment.method.auxiliary, "k", 0) == 1
    parts = {"method.core.init": "core", "method.auxiliary.init": "auxiliary"}
    if key not in parts or value not in ("orthogonal", "delta_orthogonal"):
        return False
    # The two start linear layers alike; a part without a convolution has nothing else.
    agent = Agent(experiment.method, spec_for(experiment), Streams(0))
    modules = agent.modules()[parts[key]].modules()
    return not any(isinstance(module, nn.Conv2d | nn.ConvTranspose2d) for module in modules)


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_decides_something_or_is_refused(method: str, tmp_path: Path) -> None:
    guard = Guard(method, tmp_path)
    silent = [
        f"{key}={value}"
        for key, value in changes(base(method))
        if not guard.finds(key, value) and not is_alike(method, key, value)
    ]
    assert not silent


@pytest.mark.parametrize("method", METHODS)
def test_every_setting_is_changed(method: str) -> None:
    """No field is left out, but for kinds that there is only one of."""
    found = {key for key, _ in changes(base(method))}
    fields = {key for key, _ in flat(encode(base(method), complete=True))}
    assert fields - found <= {"method.core.kind"}


@pytest.mark.parametrize("method", ["ksl", "proto_rl", "sac_state"])
def test_what_changes_nothing_would_be_found(method: str, tmp_path: Path) -> None:
    """The same settings once more give the same numbers and events."""
    experiment = base(method)
    guard = Guard(method, tmp_path)
    assert guard.finds("method.learning.batch_size", experiment.method.learning.batch_size) == ""
    assert not learns_otherwise(method, experiment)
