"""Composition: an encoder, a reinforcement-learning core, possibly an auxiliary task.

`Agent.update` is the algorithm; everything else here builds it, acts with it or saves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from kstep import augment
from kstep.auxiliary.base import AuxiliaryTask, RewardSource, Shapes
from kstep.batches import Batches, Drawn
from kstep.methods.base import Method, Part
from kstep.native import Backend
from kstep.nets.ema import Ema, slow_copy
from kstep.nets.encoder import Encoder, GivenFeatures, build_encoder
from kstep.optimizers import Group, Optimizers
from kstep.replay import Replay
from kstep.rl.sac import SAC
from kstep.rng import Streams, derive
from kstep.types import Array, Encode, EnvSpec, Metrics, TransitionBatch, to_device

SHARED = frozenset({"encoder", "convolutions", "borrowed"})
"""What several optimizers may step: the encoder, by whichever name, and borrowed Q-layers."""


class Agent:
    """Learns from a replay and acts on observations."""

    def __init__(
        self,
        method: Method,
        spec: EnvSpec,
        streams: Streams,
        device: torch.device | str = "cpu",
        encoder_backend: Backend = "torch",
        *,
        frozen_encoder: bool = False,
    ) -> None:
        """`frozen_encoder`: the encoder is taken as it is, by the slow critic as well; nothing here
        steps it. `take_encoder` brings it."""
        self.frozen_encoder = frozen_encoder
        self.method = method
        self.spec = spec
        self.streams = streams
        self.device = torch.device(device)
        self.encoder_backend = encoder_backend
        self.augment = augment.build(method.augment)
        self.phase = 0
        """0; 1 once the task-agnostic exploration of a two-phase method is over."""
        self.updates = 0
        with torch.random.fork_rng(devices=[]):
            # Layers draw their first weights from the global generator; this keeps it ours.
            torch.manual_seed(streams.init)
            self._build()

    def _build(self) -> None:
        method, learning, action_dim = self.method, self.method.learning, self.spec.action_dim
        seen = replace(self.spec, frame_shape=self.augment.seen_shape(self.spec.frame_shape))
        self.encoder = build_encoder(method.encoder, seen, method.stack, self.encoder_backend).to(
            self.device
        )
        self.slow_encoder = slow_copy(self.encoder)
        own_head = method.sac.actor_encoder == "share_convolutions"
        self.core = SAC(
            method.sac, self.encoder, action_dim, own_head=method.encoder if own_head else None
        ).to(self.device)
        self.task: AuxiliaryTask | None = None
        if method.auxiliary is not None:
            shapes = Shapes(
                latent_dim=self.encoder.latent_dim,
                feature_shape=self.encoder.feature_shape,
                action_dim=action_dim,
                observation_shape=(method.stack, *seen.frame_shape),
                ema_rate=learning.encoder_ema_rate,
                map_shapes=self.encoder.map_shapes,
            )
            self.task = method.auxiliary.build(shapes).to(self.device)
        self.task_encoder = self.slow_encoder
        if self.task is not None and self.task.slow_encoder_rate is not None:
            self.task_encoder = slow_copy(self.encoder)
        if self.frozen_encoder:
            self.encoder.requires_grad_(False)
        self.batches = Batches(method, self.task, self.streams, self.device)
        self.optimizers = Optimizers(self._groups(), SHARED)
        self.slow_copies = self._slow_copies()

    @property
    def _given(self) -> bool:
        """Whether actor and critic take the convolutions' features as given."""
        return self.method.learning.encoder_learns_from == "auxiliary"

    def _groups(self) -> dict[str, Group]:
        learning, core = self.method.learning, self.core
        rate, betas = learning.learning_rate, learning.betas
        seen: dict[str, nn.Module | nn.Parameter] = {"encoder": self.encoder}
        if self.frozen_encoder:
            seen = {}
        elif self._given:
            seen = {"head": self.encoder.learned()["head"]}
        groups = {
            "critic": Group({**seen, "critic": core.critic}, rate, betas),
            "actor": Group({"actor": core.actor}, rate, betas),
            "temperature": Group(
                {"temperature": core.log_temperature},
                _or(learning.temperature_learning_rate, rate),
                learning.temperature_betas,
            ),
        }
        if self.task is not None and self.phase == 0:
            heads_rate = _or(learning.auxiliary_learning_rate, rate)
            encoder_rate = _or(learning.encoder_auxiliary_learning_rate, heads_rate)
            if learning.encoder_double_step:
                encoder_rate += rate
            stages = self.encoder.learned()
            name, module = "encoder", cast(nn.Module, self.encoder)
            if self.task.sees == "features" and stages:
                name, module = "convolutions", stages["convolutions"]
            taken = {
                "encoder",
                "convolutions",
                "head",
                "critic",
                "actor",
                "temperature",
                "borrowed",
            }
            if clash := taken & set(self.task.learned()):
                raise ValueError(f"the auxiliary task must name its heads otherwise: {clash}")
            auxiliary = Group(
                {name: module, **self._borrowed_group(), **self.task.learned()},
                heads_rate,
                betas,
                {name: encoder_rate},
                self.task.weight_decays(),
            )
            if learning.one_optimizer:
                critic = groups["critic"]
                own = {k: v for k, v in auxiliary.modules.items() if k not in SHARED}
                groups["critic"] = replace(
                    critic,
                    modules={**critic.modules, **own},
                    learning_rates=dict.fromkeys(own, heads_rate),
                    weight_decays=auxiliary.weight_decays,
                )
            else:
                groups["auxiliary"] = auxiliary
        return groups

    def _borrowed_group(self) -> dict[str, nn.Module | nn.Parameter]:
        layers = self._borrowed()
        return {"borrowed": nn.ModuleList(layers)} if layers else {}

    def _borrowed(self) -> list[nn.Module]:
        number = self.task.borrowed_layers if self.task else 0
        return self.core.critic.first_layers(number) if number else []

    def _slow_copies(self) -> list[Ema]:
        learning, core = self.method.learning, self.core
        copies = [Ema("critic", core.slow_critic, core.critic, learning.critic_ema_rate)]
        if self.frozen_encoder:
            pass  # the slow encoder is the encoder
        elif self._given or self.method.encoder.head == "convolutional":
            # The head belongs to the critic then: what is given to it are features, or the paper
            # counts the head among the critic's layers (D46).
            online, slow = self.encoder.learned(), self.slow_encoder.learned()
            rates = {"head": learning.critic_ema_rate}
            if self.phase == 0:
                rates["convolutions"] = learning.encoder_ema_rate
            copies += [Ema(name, slow[name], online[name], rates[name]) for name in rates]
        else:
            copies.append(
                Ema("encoder", self.slow_encoder, self.encoder, learning.encoder_ema_rate)
            )
        if self.task is not None and self.phase == 0:
            copies += self.task.slow_copies()
        return copies

    def update(self, replay: Replay, *, every_part: bool = False) -> Metrics:
        """Take one learning step and return what there is to log.

        `every_part` takes the parts whose turn it is not as well.
        """
        drawn = self.batches.draw(replay)
        due = [
            part
            for part in parts_of(self.method, self.phase)
            if every_part or self.updates % self.every(part) == 0
        ]
        metrics: Metrics = {}
        if self.method.learning.joint and "auxiliary" in due:
            metrics |= self._update_jointly(drawn)
            due = [part for part in due if part not in ("critic", "auxiliary")]
        for part in due:
            if part == "critic":
                metrics |= self._update_critic(self._prepared(drawn))
            elif part == "auxiliary":
                metrics |= self._update_auxiliary(drawn)
            elif part == "actor":
                metrics |= self._update_actor(self._prepared(drawn))
            else:
                for slow in self.slow_copies:
                    slow.step()
        if drawn.bonus is not None:
            metrics["reward/bonus"] = drawn.bonus
        self.updates += 1
        return metrics

    def pretrain(self, replay: Replay) -> Metrics:
        """Take one step of the auxiliary task alone."""
        return self._update_auxiliary(self.batches.draw(replay))

    def take_encoder(self, encoder: nn.Module) -> None:
        """Use another encoder's weights, for fast and slow values alike."""
        for mine in (self.encoder, self.slow_encoder):
            mine.load_state_dict(encoder.state_dict())

    def begin_task(self) -> None:
        """End the exploration of a two-phase method.

        The encoder and the auxiliary task stay as they are from here on and the actor goes on from
        where it is; critic, temperature and every optimizer start anew.
        """
        actor = self.core.actor.state_dict()
        streams = Streams(derive(self.streams.seed, "begin task"), self.device)
        fresh = Agent(self.method, self.spec, streams, self.device, self.encoder_backend)
        self.core = fresh.core
        self.core.actor.load_state_dict(actor)
        for mine, new in ((self.encoder, fresh.encoder), (self.slow_encoder, fresh.slow_encoder)):
            mine.learned()["head"].load_state_dict(new.learned()["head"].state_dict())
        self.phase = 1
        self.optimizers = Optimizers(self._groups(), SHARED)
        self.slow_copies = self._slow_copies()

    def every(self, part: Part) -> int:
        """Updates from one turn of `part` to the next."""
        learning = self.method.learning
        every = {
            "actor": learning.actor_every,
            "auxiliary": learning.auxiliary_every,
            "slow": learning.ema_every,
        }
        return every.get(part, 1)

    def _update_critic(self, batch: TransitionBatch) -> Metrics:
        loss, metrics = self.core.critic_loss(*self._encoders(), batch, self.streams.learn)
        self.optimizers.minimize("critic", loss, partly=self.method.learning.one_optimizer)
        return metrics

    def _update_auxiliary(self, drawn: Drawn) -> Metrics:
        if self.task is None:
            return {}
        loss, metrics = self._auxiliary_loss(self.task, drawn)
        one = self.method.learning.one_optimizer
        self.optimizers.minimize("critic" if one else "auxiliary", loss, partly=one)
        self.task.constrain()
        if (rate := self.task.slow_encoder_rate) is not None:
            Ema("task's encoder", self.task_encoder, self.encoder, rate).step()
        return metrics

    def _auxiliary_loss(self, task: AuxiliaryTask, drawn: Drawn) -> tuple[Tensor, Metrics]:
        encode = _stage(self.encoder, task.sees)
        encode_slow = _stage(self.task_encoder, task.sees_slow or task.sees)
        batch = self.batches.sequences(drawn)
        if (latent := drawn.latent) is not None:
            encode = lambda _: latent  # noqa: E731
        if (slow_latents := self._slow_latents(drawn)) is not None:
            encode_slow = lambda _: slow_latents  # noqa: E731
        return task.loss(encode, encode_slow, batch, self._borrowed())

    def _update_jointly(self, drawn: Drawn) -> Metrics:
        """Take the critic's and the auxiliary step from one encoding of what both look at."""
        assert self.task is not None
        drawn.latent = self.encoder(drawn.transitions.observation)
        loss, metrics = self.core.critic_loss(
            *self._encoders(), self._prepared(drawn), self.streams.learn
        )
        auxiliary_loss, auxiliary_metrics = self._auxiliary_loss(self.task, drawn)
        self.optimizers.minimize_jointly({"critic": loss, "auxiliary": auxiliary_loss})
        self.task.constrain()
        return metrics | auxiliary_metrics

    def _slow_latents(self, drawn: Drawn) -> Tensor | None:
        """Encode all later observations of the sequences once, where that serves both losses."""
        auxiliary = self.method.auxiliary
        if drawn.sequences is None or auxiliary is None or not auxiliary.encodes_first_and_rest:
            return None
        if self._given or self.task_encoder is not self.slow_encoder:
            return None  # the core takes features, or the task has a slow encoder of its own
        if drawn.slow_latents is None:
            with torch.no_grad():
                later = drawn.sequences.observation[:, 1:]
                drawn.slow_latents = self.slow_encoder(later.transpose(0, 1).flatten(0, 1))
        return drawn.slow_latents

    def _update_actor(self, batch: TransitionBatch) -> Metrics:
        # The first view only, as in DrQ and the released code.
        observation = batch.observation[: self.method.learning.batch_size]
        encoder, learn = self._encoders()[0], self.streams.learn
        loss, temperature_loss, metrics = self.core.actor_loss(encoder, observation, learn)
        self.optimizers.minimize("actor", loss)
        if self.method.sac.temperature_sample == "fresh":
            temperature_loss, fresh = self.core.fresh_temperature_loss(encoder, observation, learn)
            metrics |= fresh
        self.optimizers.minimize("temperature", temperature_loss)
        return metrics

    def _encoders(self) -> tuple[Encoder, Encoder]:
        """The encoder and its slow copy as the reinforcement-learning core uses them."""
        if self._given:
            return GivenFeatures(self.encoder), GivenFeatures(self.slow_encoder)
        return self.encoder, self.slow_encoder

    def _prepared(self, drawn: Drawn) -> TransitionBatch:
        """Return the transitions as the core takes them: features where those are given, and the
        reward of the phase. Computed once per update, after the auxiliary task moved the encoder if
        it comes first."""
        if drawn.prepared is None:
            batch = drawn.transitions
            if self._given:
                with torch.no_grad():
                    batch = replace(
                        batch,
                        observation=self.encoder.features(batch.observation),
                        next_observation=self.encoder.features(batch.next_observation),
                    )
            slow_latents = self._slow_latents(drawn)
            drawn.prepared = replace(
                batch,
                reward=self._reward(batch, drawn),
                latent=drawn.latent,
                slow_next_latent=None
                if slow_latents is None
                else slow_latents[: len(batch.reward)],
            )
        return drawn.prepared

    @torch.no_grad()
    def _reward(self, batch: TransitionBatch, drawn: Drawn) -> Tensor:
        exploration = self.method.exploration
        if exploration is None or (self.phase > 0 and exploration.bonus == 0):
            return batch.reward
        assert isinstance(self.task, RewardSource)  # the configuration was checked for it
        bonus = self.task.reward(batch.next_observation)
        drawn.bonus = bonus.mean()
        return bonus if self.phase == 0 else batch.reward + exploration.bonus * bonus

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
            if self.task_encoder is not self.slow_encoder:
                modules["task_encoder"] = self.task_encoder
        return modules

    def state(self) -> dict[str, Tensor]:
        """Return every weight and every optimizer moment by path."""
        weights = {
            f"{name}/{key}": tensor
            for name, module in self.modules().items()
            for key, tensor in module.state_dict().items()
        }
        moments = {f"optimizers/{key}": value for key, value in self.optimizers.state().items()}
        return weights | moments

    def load_state(self, tensors: Mapping[str, Tensor], *, updates: int, phase: int) -> None:
        """Continue from a saved state and the two counters that belong to it."""
        if phase > self.phase:
            self.begin_task()
        self.updates = updates
        for name, module in self.modules().items():
            module.load_state_dict(_below(tensors, name))
        self.optimizers.load_state(_below(tensors, "optimizers"))


def parts_of(method: Method, phase: int = 0) -> tuple[Part, ...]:
    """The parts of one update that this method really takes, in order."""
    learns = method.auxiliary is not None and phase == 0
    return tuple(part for part in method.learning.order if part != "auxiliary" or learns)


def _stage(encoder: Encoder, stage: str) -> Encode:
    return encoder.features if stage == "features" else encoder


def _below(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    prefix = f"{name}/"
    return {
        key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
    }


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
