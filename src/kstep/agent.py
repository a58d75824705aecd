"""Composition: an encoder, a reinforcement-learning core, possibly an auxiliary task.

`Agent.update` is the algorithm; everything else here builds it, acts with it or saves it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from kstep.auxiliary.base import AuxiliaryTask, RewardSource, Shapes
from kstep.data.batches import to_device
from kstep.data.replay import Replay
from kstep.methods.base import Method
from kstep.native import Backend
from kstep.nets.backends import make_native
from kstep.nets.base import Encoder, FixedFeatures
from kstep.nets.beside import WithVector
from kstep.optimizers import Ema, Optimizers, below, slow_copy
from kstep.ownership import optimizer_groups, slow_copies
from kstep.rl.core import Core, Encoded
from kstep.rng import Streams, derive
from kstep.types import Array, EnvSpec, Metrics, SequenceBatch, TransitionBatch

FLAGGED = ("cuda", "meta")
"""Devices on which Adam looks at a flag before it steps, so that no loss has to be read for it."""


@dataclass(frozen=True)
class Due:
    """Which parts of an update have their turn; the critic always has."""

    auxiliary: bool
    actor: bool
    slow: bool


@dataclass(frozen=True)
class Update:
    """What one learning step leaves to be looked at."""

    metrics: Metrics
    latent: Tensor
    """(B, D), detached: what the critic's loss made of the observations, all views."""


class Agent:
    """Learns from a replay and acts on observations."""

    def __init__(
        self,
        method: Method,
        spec: EnvSpec,
        streams: Streams,
        device: torch.device | str = "cpu",
        encoder_backend: Backend = "torch",
    ) -> None:
        self.method = method
        self.spec = spec
        self.streams = streams
        self.device = torch.device(device)
        self.encoder_backend = encoder_backend
        self.phase = 0
        """0; 1 once the task-agnostic exploration of a two-phase method is over."""
        self.updates = 0
        self.broken = torch.zeros((), device=self.device) if self.device.type in FLAGGED else None
        """1.0 once a loss was non-finite; None where each loss is read before its step."""
        with torch.random.fork_rng(devices=[]):
            # Layers draw their first weights from the global generator; this keeps it ours.
            torch.manual_seed(streams.init)
            self.encoder, self.core = self._networks()
            self.auxiliary = self._auxiliary()
        self.slow_encoder = slow_copy(self.encoder)
        self.auxiliary_slow_encoder = self.slow_encoder
        if self.auxiliary is not None and self.auxiliary.slow_encoder_rate is not None:
            self.auxiliary_slow_encoder = slow_copy(self.encoder)
        self.batches = method.core.batches(method.beside(spec.vector_dim), streams, self.device)
        self._compose()

    def update(self, replay: Replay, *, every_part: bool = False) -> Update:
        """Take one learning step. `every_part`: also those parts whose turn it is not."""
        due = self.due(every_part)
        batch = self.batches.draw(replay, sequences=due.auxiliary)
        if self.spec.vector_dim:
            self.adapt(batch.transitions)
        turn = self.method.auxiliary.turn if self.method.auxiliary is not None else None
        metrics: Metrics = {}

        # the representation first, where the method says so
        if turn == "first" and batch.sequences is not None:
            metrics |= self.update_auxiliary(batch.sequences)

        # what critic and actor look at: images, or features that they do not train
        transitions = batch.transitions
        if self.method.learning.critic_trains != "all":
            transitions, bonus = self.with_features(transitions)
            metrics |= bonus

        # the critic, and with it the encoder
        encoded, found = self.update_critic(transitions)
        metrics |= found

        # the representation once more, from batches and with an optimizer of its own
        if turn == "after critic" and batch.sequences is not None:
            metrics |= self.update_auxiliary(batch.sequences)

        # the policy, and how random it should be
        if due.actor:
            metrics |= self.update_actor(transitions, encoded)

        # the moving averages
        if due.slow:
            for slow in self.slow_copies:
                slow.step(self.encoder_backend)
        if turn == "last" and batch.sequences is not None:
            metrics |= self.update_auxiliary(batch.sequences)

        self.updates += 1
        return Update(metrics, encoded.latent)

    def adapt(self, batch: TransitionBatch) -> None:
        """Let the encoders know which numbers observations have beside images."""
        encoders = (self.encoder, self.slow_encoder, self.auxiliary_slow_encoder)
        for encoder in dict.fromkeys(encoders):
            encoder.adapt(batch.observation)

    def due(self, every_part: bool = False) -> Due:
        """Which parts the next update takes."""
        method, number = self.method, self.updates
        auxiliary = method.auxiliary if self.phase == 0 else None
        return Due(
            auxiliary=auxiliary is not None and (every_part or number % auxiliary.every == 0),
            actor=every_part or number % method.core.actor_every == 0,
            slow=every_part or number % method.learning.ema_every == 0,
        )

    def update_critic(self, batch: TransitionBatch) -> tuple[Encoded, Metrics]:
        """Take one step of the critic and of what it trains of the encoder."""
        loss, encoded, metrics = self.core.critic_loss(
            self.core_encoder, self.core_slow_encoder, batch, self.streams.learn
        )
        self.optimizers.minimize("critic", loss, partly=self.one_optimizer)
        return encoded, metrics

    def update_auxiliary(self, batch: SequenceBatch) -> Metrics:
        """Take one step of the auxiliary task's heads and of the encoder."""
        task = self.auxiliary
        assert task is not None
        encode = self.encoder.features if task.sees == "features" else self.encoder
        slow = self.auxiliary_slow_encoder
        encode_slow = slow.features if task.sees_slow == "features" else slow
        loss, metrics = task.loss(encode, encode_slow, batch, self.borrowed)
        self.optimizers.minimize(
            "critic" if self.one_optimizer else "auxiliary", loss, partly=self.one_optimizer
        )
        if task.constrained:
            task.constrain()
        if task.slow_encoder_rate is not None:
            ema = Ema("auxiliary encoder", slow, self.encoder, task.slow_encoder_rate)
            ema.step(self.encoder_backend)
        return metrics

    def update_actor(self, batch: TransitionBatch, encoded: Encoded) -> Metrics:
        """Take one step of the actor and of whatever else the core steps beside the critic."""
        size = self.method.learning.batch_size  # the first view only, as in DrQ and KSL's code
        encoded = Encoded(encoded.features[:size], encoded.latent[:size])
        metrics: Metrics = {}
        for name, loss, found in self.core.actor_losses(
            self.core_encoder, batch.observation[:size], encoded, self.streams.learn
        ):
            self.optimizers.minimize(name, loss)
            metrics |= found
        return metrics

    @torch.no_grad()
    def with_features(self, batch: TransitionBatch) -> tuple[TransitionBatch, Metrics]:
        """Return the batch with features in place of images and with the reward of the phase."""
        batch = replace(
            batch,
            observation=self.encoder.features(batch.observation),
            next_observation=self.encoder.features(batch.next_observation),
        )
        exploration = self.method.exploration
        if exploration is None or (self.phase > 0 and exploration.bonus == 0):
            return batch, {}
        assert isinstance(self.auxiliary, RewardSource)  # the configuration was checked for it
        bonus = self.auxiliary.reward(batch.next_observation)
        reward = bonus if self.phase == 0 else batch.reward + exploration.bonus * bonus
        return replace(batch, reward=reward), {"reward/bonus": bonus.mean()}

    def pretrain(self, replay: Replay) -> Metrics:
        """Take one step of the auxiliary task alone."""
        batch = self.batches.draw(replay, sequences=True)
        assert batch.sequences is not None
        if self.spec.vector_dim:
            self.adapt(batch.transitions)
        return self.update_auxiliary(batch.sequences)

    @torch.no_grad()
    def act(self, observation: Array, *, explore: bool) -> Array:
        """Return actions (B, A) for observations (B, S, ...) as the replay has them."""
        (view,) = to_device(self.device, self.batches.augment.act_view(observation))
        action = self.core.act(self.encoder, view, self.streams.act if explore else None)
        return action.cpu().numpy()

    def random_action(self) -> Array:
        """Draw one action (A,) uniformly from the action space."""
        size, chance = self.spec.action_dim, self.streams.act
        if self.spec.actions == "discrete":
            index = torch.randint(size, (), generator=chance, device=chance.device)
            return torch.eye(size)[index.cpu()].numpy()
        uniform = torch.rand(size, generator=chance, device=chance.device)
        return (2.0 * uniform - 1.0).cpu().numpy()

    def begin_task(self) -> None:
        """End the exploration of a two-phase method.

        Encoder and auxiliary task stay as they are from here on and the actor continues; critic,
        heads, temperature and every optimizer start from scratch.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(Streams(derive(self.streams.seed, "begin task")).init)
            fresh_encoder, core = self._networks()
        core.keep_policy(self.core)
        self.core = core
        for encoder in (self.encoder, self.slow_encoder):
            head = fresh_encoder.stages()["head"]
            encoder.stages()["head"].load_state_dict(head.state_dict())
        self.phase = 1
        self._compose()

    def take_encoder(self, encoder: nn.Module) -> None:
        """Use another encoder's weights, for fast and slow values alike."""
        for mine in (self.encoder, self.slow_encoder):
            mine.image_part.load_state_dict(encoder.state_dict())

    def modules(self) -> dict[str, nn.Module]:
        """Everything with weights, by the name it is saved under."""
        modules: dict[str, nn.Module] = {
            "encoder": self.encoder,
            "slow_encoder": self.slow_encoder,
            "core": self.core,
        }
        if self.auxiliary is not None:
            modules["auxiliary"] = self.auxiliary
            if self.auxiliary_slow_encoder is not self.slow_encoder:
                modules["auxiliary_encoder"] = self.auxiliary_slow_encoder
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
            module.load_state_dict(below(tensors, name))
        self.optimizers.load_state(below(tensors, "optimizers"))

    def _networks(self) -> tuple[Encoder, Core]:
        method, spec = self.method, self.spec
        seen = method.augment.seen_shape(spec.image_shape)
        encoder = method.encoder.build(seen, method.stack, self.encoder_backend)
        if spec.vector_dim:
            encoder = WithVector(encoder, seen, method.stack, spec.vector_dim)
        core = method.core.build(encoder, method.encoder, spec.action_dim)
        return encoder.to(self.device), core.to(self.device)

    def _auxiliary(self) -> AuxiliaryTask | None:
        if self.method.auxiliary is None:
            return None
        shapes = Shapes.of(self.method, self.spec, self.encoder)
        return self.method.auxiliary.build(shapes).to(self.device)

    def _compose(self) -> None:
        """Settle who steps what: at first, and again when the task of a two-phase method begins."""
        if self.encoder_backend == "native":
            for module in self.modules().values():
                make_native(module)
        auxiliary = self.auxiliary if self.phase == 0 else None
        config = self.method.auxiliary
        self.one_optimizer = config is not None and config.one_optimizer
        self.borrowed = self.core.borrowed_layers(auxiliary.borrowed_layers) if auxiliary else []
        self.core_encoder, self.core_slow_encoder = self.encoder, self.slow_encoder
        if self.method.learning.critic_trains != "all":
            self.core_encoder = FixedFeatures(self.encoder)
            self.core_slow_encoder = FixedFeatures(self.slow_encoder)
        networks = (self.method, self.encoder, self.core, auxiliary)
        backend, groups = self.encoder_backend, optimizer_groups(*networks)
        self.optimizers = Optimizers(groups, backend, broken=self.broken)
        self.slow_copies = slow_copies(*networks, self.slow_encoder)
