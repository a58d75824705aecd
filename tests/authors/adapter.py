"""The authors' inputs given to the package, and its numbers under the traces' names.

Everything that knows the package stands here. The agent, its optimizers, its batches and the replay
are those of a training run. From outside come the first weights, the random streams of indices and
offsets, PyTorch's draws, and double precision.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from kstep.agent import Agent
from kstep.config import resolve
from kstep.data.replay import Replay, Rule, Sequences
from kstep.data.ring import ReplayConfig
from kstep.methods.base import Method
from kstep.rl.sac import SAC
from kstep.rng import Streams
from kstep.types import EnvSpec, Metrics
from tests.authors import inputs, traces
from tests.authors.inputs import Numbers
from tests.authors.seams import Noise, Script, double_precision, returned
from tests.authors.traces import Found, Key, Trace
from tests.make import expect

MODULES = {"task": "auxiliary"}
"""Where the agent calls a module otherwise than the traces do."""

PROTOTYPES, QUEUE, ENQUEUED = "task/prototypes.weight", "task/queue", "task/enqueued"
COUNTERS = {"task/draws.count", QUEUE, ENQUEUED}
"""What the agent keeps besides weights."""

METRICS = {
    "critic/loss": "critic_loss",
    "critic/target": "mean target",
    "actor/loss": "actor_loss",
    "temperature/loss": "temperature_loss",
    "auxiliary/loss": "auxiliary_loss",
    "reward/bonus": "mean intrinsic_reward",
}

SETTINGS = {
    "learning rate": "method.learning.learning_rate",
    "encoder's auxiliary learning rate": "method.auxiliary.encoder_learning_rate",
    "encoder stepped twice": "method.auxiliary.double_step",
    "temperature betas": "method.core.temperature_betas",
    "critic ema rate": "method.core.ema_rate",
    "encoder ema rate": "method.encoder.ema_rate",
    "actor every": "method.core.actor_every",
    "auxiliary turn": "method.auxiliary.turn",
    "discount": "method.core.discount",
    "log prob": "method.core.log_prob",
    "sequence padding": "method.auxiliary.augment.padding",
    "latent penalty": "method.auxiliary.latent_penalty",
    "decoder weight decay": "method.auxiliary.decoder_weight_decay",
    "neighbour": "method.auxiliary.neighbour",
    "bonus": "method.exploration.bonus",
}
"""What tests may set otherwise than the method does, by the key it has on the command line."""


class DoubleReplay(Replay):
    """The replay, its numbers in double precision: a discount multiplied with one in single would
    be rounded to it."""

    def sequences(self, n: int, k: int, rng: np.random.Generator, rule: Rule = "any") -> Sequences:
        drawn = super().sequences(n, k, rng, rule)
        names = ("action", "reward", "bootstrap")
        return replace(drawn, **{name: getattr(drawn, name).astype(np.float64) for name in names})


class Subject:
    """One agent with the inputs of one trace."""

    def __init__(self, trace: Trace, settings: Mapping[str, Any]) -> None:
        """`settings`: some of `SETTINGS` that are to differ from the method's."""
        self.trace = trace
        sizes = trace.inputs
        self.batch, self.actions = sizes["batch_size"], sizes["action_dim"]
        self.episodes, self.decisions = sizes["episodes"], sizes["decisions"]
        self.method = _method(trace, settings)
        pixels = self.method.observation == "pixels"
        shape = (sizes["frame_size"],) * 2 + (3,) if pixels else (sizes["state_dim"],)
        self.spec = EnvSpec(self.method.observation, shape, self.actions, 1, self.decisions)
        self.recorded = inputs.actions(self.episodes, self.decisions, self.actions)
        self.frames = self._frames()
        self.replay = self._replay()
        self.samples, self.offsets, self.noise = Script(), Script(), Noise()
        streams = Streams(0)
        streams.replay, streams.augment = self.samples, self.offsets  # type: ignore[assignment]
        self.agent = Agent(self.method, self.spec, streams)
        self._start()

    def _frames(self) -> list[list[npt.NDArray[Any]]]:
        if self.method.observation == "state":
            states = inputs.states(self.episodes, self.decisions, self.spec.frame_shape[0])
            return [list(episode.astype(np.float32)) for episode in states]
        size = self.spec.frame_shape[0]
        return [
            [inputs.frame(episode, time, size) for time in range(self.decisions + 1)]
            for episode in range(self.episodes)
        ]

    def _replay(self) -> Replay:
        replay = DoubleReplay(ReplayConfig(capacity=1000), self.spec, self.method.stack)
        rewards = inputs.rewards(self.episodes, self.decisions)
        for episode, frames in enumerate(self.frames):
            replay.begin(frames[0])
            for time, frame in enumerate(frames[1:]):
                last = time == self.decisions - 1
                terminal = last and episode == self.trace.inputs["terminal_episode"]
                replay.add(
                    self.recorded[episode, time], rewards[episode, time], terminal, last, frame
                )
        return replay

    def _start(self) -> None:
        """Give every tensor its first numbers; there must be no other tensors."""
        tensors = self._state()
        assert tensors.keys() - COUNTERS == self.trace.weights.keys()
        self._assign(self.trace.weights)
        if queue := self.trace.inputs.get("queue"):
            seed, centre, scale = queue
            shape = tuple(tensors[QUEUE].shape)
            tensors[QUEUE].copy_(torch.from_numpy(inputs.numbers(seed, shape, centre, scale)))
            tensors[ENQUEUED].fill_(shape[0])
        if PROTOTYPES in tensors:
            # The authors make them unit vectors before every use, so this is where they start,
            # whenever an agent does the same.
            tensors[PROTOTYPES].copy_(F.normalize(tensors[PROTOTYPES], dim=1))

    def _assign(self, names: Iterable[str], shift: int = 0) -> None:
        """Set tensors to their first numbers; `shift` is added to their seeds."""
        tensors = self._state()
        for name in names:
            weights = self.trace.weights[name]
            tensors[name].copy_(torch.from_numpy(_ours(weights.first(shift), weights.layout)))

    def _state(self) -> dict[str, Tensor]:
        """Everything that the agent keeps but for moments, by the traces' names."""
        theirs = {ours: name for name, ours in MODULES.items()}
        found = {}
        for path, tensor in self.agent.state().items():
            module, _, rest = path.partition("/")
            if module != "optimizers":
                found[f"{theirs.get(module, module)}/{rest}"] = tensor.detach()
        return found

    def outputs(self) -> Found:
        """Policy and Q-values where the trace lists them, not augmented."""
        where = self.trace.data["forward"]["observations"]
        observation = np.stack([self._observation(episode, time) for episode, time in where])
        action = torch.from_numpy(np.stack([self.recorded[tuple(place)] for place in where]))
        agent, core = self.agent, expect(SAC, self.agent.core)
        with torch.no_grad():
            view = torch.from_numpy(agent.method.augment.act_view(observation))
            policy = core.policy(agent.encoder, view)
            q1, q2 = core.critic(agent.encoder(view), action)
        found = {
            "policy_mean": policy.mean.numpy(),
            "policy_std": policy.log_std.exp().numpy(),
            "greedy_action": agent.act(observation, explore=False),
            "q1": q1.numpy(),
            "q2": q2.numpy(),
        }
        return {Key(0, name): value for name, value in found.items()}

    def _observation(self, episode: int, time: int) -> npt.NDArray[Any]:
        """(S, ...): the frame and those before it, oldest first."""
        back = range(self.method.stack - 1, -1, -1)
        return np.stack([self.frames[episode][max(0, time - steps)] for steps in back])

    def update(self, number: int) -> Found:
        """Take update `number`, counted from 1, with its prescribed chance."""
        row = self.trace.updates[number - 1]
        if row.get("phase", 1) > self.agent.phase + 1:
            self._begin_task()
        self._prescribe(row)
        with ExitStack() as seams:
            targets = seams.enter_context(returned(self.agent.core, "value_target"))
            rewards: list[Tensor] = []
            if "intrinsic_reward" in row:
                rewards = seams.enter_context(returned(self.agent.auxiliary, "reward"))
            seams.enter_context(self.noise)
            metrics = self.agent.update(self.replay).metrics
        for source in (self.samples, self.offsets, self.noise):
            source.finish()
        return self._found(number, metrics, targets, rewards)

    def _begin_task(self) -> None:
        self.agent.begin_task()
        fresh = self.trace.inputs["fresh_in_phase_2"]
        self._assign(fresh["tensors"], fresh["seed_shift"])

    def _prescribe(self, row: Any) -> None:
        """Lay out what this update will draw, each source in the order in which it is asked."""
        place = np.array(row["transitions"])
        self.samples.prescribe(place[:, 0] * self.decisions + place[:, 1])
        self.offsets.prescribe(*row.get("offsets", {}).values())
        if "sequences" in row:
            # An episode first, then a start in it.
            self.samples.prescribe(*np.array(row["sequences"]).T)
            self.offsets.prescribe(row["sequence_offsets"])
        self.noise.normal.append(torch.cat([self._normal(seed) for seed in row["target_noise"]]))
        if "actor_noise" in row:
            self.noise.normal.append(self._normal(row["actor_noise"]))
        if "pixel_noise" in row:
            channels_first = inputs.numbers(row["pixel_noise"], (self.batch, 9, 84, 84), 0.5, 0.5)
            self.noise.uniform.append(torch.from_numpy(channels_first.transpose(0, 2, 3, 1).copy()))
        if "remembered" in row:
            most, last_two = row["remembered"]
            chosen = torch.full((512, 1), most)
            chosen[510:] = last_two
            self.noise.choices.append(chosen)

    def _normal(self, seed: int) -> Tensor:
        return torch.from_numpy(inputs.numbers(seed, (self.batch, self.actions), 0.0, 2.0))

    def _found(
        self, number: int, metrics: Metrics, targets: list[Tensor], rewards: list[Tensor]
    ) -> Found:
        found = {METRICS[name]: value for name, value in metrics.items() if name in METRICS}
        # With two views both critics regress onto the mean of the views' targets.
        found["target"] = torch.cat(targets).view(-1, self.batch).mean(0)
        tensors = self._state()
        if rewards:
            found["intrinsic_reward"] = torch.cat(rewards)
            found[traces.PROBABILITIES] = self.noise.probabilities.pop()[7]
            queue = traces.summary(tensors[QUEUE].numpy(), traces.QUEUE_PLACES)
            found["queue"] = torch.from_numpy(queue)
        numbers = {Key(number, name): value.detach().numpy() for name, value in found.items()}
        for name in self.trace.followed(number):
            weights = self.trace.weights[name]
            theirs = _theirs(tensors[name].numpy(), weights.layout)
            numbers[Key(number, name)] = traces.summary(theirs, weights.places)
        return numbers


def run(
    trace: Trace, settings: Mapping[str, Any] | None = None, updates: int | None = None
) -> Found:
    """Take the trace's updates, or the first few, and return every number that it lists."""
    with double_precision():
        subject = Subject(trace, settings or {})
        found = subject.outputs()
        for number in range(1, len(trace.updates[:updates]) + 1):
            found |= subject.update(number)
    return found


def _method(trace: Trace, settings: Mapping[str, Any]) -> Method:
    """The registered method with the trace's batch size and some other settings."""
    chosen = {"method.learning.batch_size": trace.inputs["batch_size"]}
    chosen |= {SETTINGS[name]: value for name, value in settings.items()}
    overrides = [f"{key}={json.dumps(value)}" for key, value in chosen.items()]
    method = resolve(trace.method, trace.data["task"], overrides=overrides).method
    # All first weights are overwritten, and PyTorch's own are made quickest.
    plain: dict[str, Any] = {
        part: replace(value, init="default")
        for part in ("encoder", "core", "auxiliary")
        if hasattr(value := getattr(method, part), "init")
    }
    return replace(method, **plain)


def _ours(theirs: Numbers, layout: str | None) -> Numbers:
    """From the authors' order of features, (C, H, W), to that of the package, (H, W, C)."""
    if layout == "columns":
        maps = theirs.reshape(-1, 32, 35, 35)
        return maps.transpose(0, 2, 3, 1).reshape(theirs.shape)
    if layout == "rows":
        maps = theirs.reshape(32, 35, 35, -1)
        return maps.transpose(1, 2, 0, 3).reshape(theirs.shape)
    return theirs


def _theirs(ours: Numbers, layout: str | None) -> Numbers:
    """The way back."""
    if layout == "columns":
        maps = ours.reshape(-1, 35, 35, 32)
        return maps.transpose(0, 3, 1, 2).reshape(ours.shape)
    if layout == "rows":
        maps = ours.reshape(35, 35, 32, -1)
        return maps.transpose(2, 0, 1, 3).reshape(ours.shape)
    return ours
