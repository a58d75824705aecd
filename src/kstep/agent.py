"""Composition: an encoder, a reinforcement-learning core, possibly an auxiliary task.

`Agent.update` is the algorithm; everything else here builds it, acts with it or saves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from kstep import augment
from kstep.auxiliary.base import AuxiliaryTask
from kstep.auxiliary.ksl import KSL
from kstep.methods.base import Method, Part
from kstep.nets.ema import Ema, slow_copy
from kstep.nets.encoder import build_encoder
from kstep.optimizers import Group, Optimizers
from kstep.replay import Replay
from kstep.rl.sac import SAC
from kstep.rng import Streams
from kstep.types import Array, EnvSpec, Metrics, SequenceBatch, TransitionBatch, to_device


class Agent:
    """Learns from a replay and acts on observations."""

    def __init__(
        self,
        method: Method,
        spec: EnvSpec,
        streams: Streams,
        device: torch.device | str = "cpu",
    ) -> None:
        self.method = method
        self.spec = spec
        self.streams = streams
        self.device = torch.device(device)
        self.augment = augment.build(method.augment)
        self.sequence_augment = augment.build(method.sequence_augment)
        with torch.random.fork_rng(devices=[]):
            # Layers draw their first weights from the global generator; this keeps it ours.
            torch.manual_seed(streams.init)
            self._build()
        self.updates = 0

    def _build(self) -> None:
        method, action_dim = self.method, self.spec.action_dim
        learning = method.learning
        self.encoder = build_encoder(method.encoder, self.spec, method.stack).to(self.device)
        self.slow_encoder = slow_copy(self.encoder)
        self.core = SAC(method.sac, self.encoder, action_dim, latent_tanh=method.encoder.tanh)
        self.core.to(self.device)
        self.task: AuxiliaryTask | None = None
        if method.auxiliary is not None:
            self.task = KSL(
                method.auxiliary,
                self.encoder.latent_dim,
                action_dim,
                ema_rate=learning.encoder_ema_rate,
            ).to(self.device)
        self.optimizers = Optimizers(self._groups(), shared=frozenset({"encoder"}))
        self.slow_copies = [
            Ema("critic", self.core.slow_critic, self.core.critic, learning.critic_ema_rate),
            Ema("encoder", self.slow_encoder, self.encoder, learning.encoder_ema_rate),
            *(self.task.slow_copies() if self.task else ()),
        ]

    def _groups(self) -> dict[str, Group]:
        learning, core = self.method.learning, self.core
        rate, betas = learning.learning_rate, learning.betas
        groups = {
            "critic": Group({"encoder": self.encoder, "critic": core.critic}, rate, betas),
            "actor": Group({"actor": core.actor}, rate, betas),
            "temperature": Group(
                {"temperature": core.log_temperature},
                _or(learning.temperature_learning_rate, rate),
                learning.temperature_betas,
            ),
        }
        if self.task is not None:
            heads_rate = _or(learning.auxiliary_learning_rate, rate)
            encoder_rate = rate + heads_rate if learning.encoder_double_step else heads_rate
            groups["auxiliary"] = Group(
                {"encoder": self.encoder, **self.task.learned()},
                heads_rate,
                betas,
                {"encoder": encoder_rate},
            )
        return groups

    def update(self, replay: Replay) -> Metrics:
        """Take one learning step and return what there is to log."""
        learning = self.method.learning
        batch = self._transitions(replay)
        metrics: Metrics = {}
        for part in learning.order:
            if part == "critic":
                metrics |= self._update_critic(batch)
            elif part == "auxiliary" and self.task is not None:
                metrics |= self._update_auxiliary(self.task, replay)
            elif part == "actor" and self.updates % learning.actor_every == 0:
                metrics |= self._update_actor(batch)
        if self.updates % learning.ema_every == 0:
            for slow in self.slow_copies:
                slow.step()
        self.updates += 1
        return metrics

    def _update_critic(self, batch: TransitionBatch) -> Metrics:
        loss, metrics = self.core.critic_loss(
            self.encoder, self.slow_encoder, batch, self.streams.learn
        )
        self.optimizers.minimize("critic", loss)
        return metrics

    def _update_auxiliary(self, task: AuxiliaryTask, replay: Replay) -> Metrics:
        loss, metrics = task.loss(self.encoder, self.slow_encoder, self._sequences(task, replay))
        self.optimizers.minimize("auxiliary", loss)
        return metrics

    def _update_actor(self, batch: TransitionBatch) -> Metrics:
        # The first view only, as in DrQ and the released code.
        observation = batch.observation[: self.method.learning.batch_size]
        loss, temperature_loss, metrics = self.core.actor_loss(
            self.encoder, observation, self.streams.learn
        )
        self.optimizers.minimize("actor", loss)
        self.optimizers.minimize("temperature", temperature_loss)
        return metrics

    def _transitions(self, replay: Replay) -> TransitionBatch:
        """Draw a batch and augment it; with several views they stand one after the other."""
        batch = replay.transitions(self.method.learning.batch_size, self.streams.replay)
        views = self.method.sac.critic_views

        def views_of(observation: Array) -> Tensor:
            drawn = [
                self.augment.train_view(observation, self.streams.augment) for _ in range(views)
            ]
            return to_device(drawn[0] if views == 1 else np.concatenate(drawn), self.device)

        def repeated(values: Array) -> Tensor:
            return to_device(values, self.device).repeat(views, *[1] * (values.ndim - 1))

        return TransitionBatch(
            observation=views_of(batch.observation),
            action=repeated(batch.action),
            reward=repeated(batch.reward),
            next_observation=views_of(batch.next_observation),
            bootstrap=repeated(batch.bootstrap),
        )

    def _sequences(self, task: AuxiliaryTask, replay: Replay) -> SequenceBatch:
        batch = replay.sequences(
            self.method.learning.batch_size,
            task.horizon,
            self.streams.replay,
            rule=self.method.sequence_rule,
        )
        view = self.sequence_augment.train_view(batch.observation, self.streams.augment)
        return SequenceBatch(
            observation=to_device(view, self.device),
            action=to_device(batch.action, self.device),
            reward=to_device(batch.reward, self.device),
        )

    @torch.no_grad()
    def act(self, observation: Array, *, explore: bool) -> Array:
        """Choose actions (B, A) for observations (B, S, ...); greedy unless exploring."""
        view = to_device(self.augment.act_view(observation), self.device)
        policy = self.core.policy(self.encoder, self.encoder.features(view))
        action = policy.sample(self.streams.act)[0] if explore else policy.mode
        return action.cpu().numpy()

    def random_action(self) -> Array:
        """Draw one action (A,) uniformly from the action box."""
        uniform = torch.rand(
            self.spec.action_dim, generator=self.streams.act, device=self.streams.act.device
        )
        return (2.0 * uniform - 1.0).cpu().numpy()

    def modules(self) -> dict[str, nn.Module]:
        """Everything with weights, by the name it is saved under."""
        modules: dict[str, nn.Module] = {
            "encoder": self.encoder,
            "slow_encoder": self.slow_encoder,
            "core": self.core,
        }
        if self.task is not None:
            modules["task"] = self.task
        return modules

    def state(self) -> dict[str, Tensor]:
        """Return every weight and every optimizer moment by path; see also `updates`."""
        weights = {
            f"{name}/{key}": tensor
            for name, module in self.modules().items()
            for key, tensor in module.state_dict().items()
        }
        moments = {f"optimizers/{key}": value for key, value in self.optimizers.state().items()}
        return weights | moments

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        for name, module in self.modules().items():
            module.load_state_dict(_below(tensors, name))
        self.optimizers.load_state(_below(tensors, "optimizers"))


@dataclass(frozen=True)
class Flow:
    """One row of the gradient-flow table: which modules a loss moves."""

    loss: str
    steps: tuple[str, ...]


def gradient_flow(agent: Agent) -> list[Flow]:
    """Return who steps what, read from the live optimizers."""
    return [Flow(name, tuple(group.modules)) for name, group in agent.optimizers.groups.items()]


def parts_of(method: Method) -> tuple[Part, ...]:
    """The parts of one update that this method really takes, in order."""
    return tuple(p for p in method.learning.order if p != "auxiliary" or method.auxiliary)


def _below(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    prefix = f"{name}/"
    return {
        key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
    }


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
