"""Deep Q-learning on latents (Mnih et al. 2015, doi:10.1038/nature14236): double (van Hasselt et
al. 2015, arXiv:1509.06461), dueling (Wang et al. 2015, arXiv:1511.06581), over n-step returns.

    Q(s, .) = V(s) + A(s, .) - mean over actions of A(s, .)
    a'      = argmax Q(s_n, .)
    y       = R_n + discount^n Q_slow(s_n, a')      no value where s_n is terminal
    critic  = mean over batch of huber(Q(s, a) - y)

Actions are one-hot. There is no actor: the policy is greedy in Q, and explores by uniformly random
actions whose share falls with the decisions taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kstep.nets.base import Encoder, EncoderConfig
from kstep.nets.init import Init, initialize
from kstep.optimizers import Group, slow_copy
from kstep.rl.core import Core, Encoded
from kstep.rl.n_step import Linear, NStepConfig, NStepCore
from kstep.types import ActionKind, KstepError, Metrics, TransitionBatch
from kstep.values import Positive

if TYPE_CHECKING:
    from kstep.methods.base import LearningConfig, Method


@dataclass(frozen=True)
class DQNConfig(NStepConfig):
    """Deep Q-learning as DrQ configures it for 100,000 decisions of Atari (D60)."""

    kind: ClassVar[str] = "dqn"
    acts_in: ClassVar[tuple[ActionKind, ...]] = ("discrete",)

    n_step: Positive = 10
    double: bool = True
    """Whether the online network chooses the action whose slow value is the target, or the slow
    network itself."""
    dueling: bool = True
    """Whether Q is a value and advantages, each with a hidden layer of its own, or one network."""
    hidden: Positive = 512
    epsilon: Linear = field(default_factory=lambda: Linear(1.0, 0.01, 5_000))
    """Share of random actions while exploring; evaluation has none."""
    init: Init = "delta_orthogonal"

    def build(self, encoder: Encoder, head: EncoderConfig, action_dim: int) -> DQN:
        return DQN(self, encoder.latent_dim, action_dim)

    def shrunk(self) -> DQNConfig:
        return replace(self, hidden=32)

    def check(self, method: Method) -> None:
        super().check(method)
        for name in ("start", "end"):
            if (share := getattr(self.epsilon, name)) > 1.0:
                raise KstepError(f"method.core.epsilon.{name} must be at most 1, not {share}")
        transition = getattr(method.auxiliary, "transition", None)
        if getattr(transition, "borrowed_layers", 0):
            raise KstepError(
                "method.auxiliary.transition.kind=shared takes layers of Q-functions that see an "
                "action; those of method.core.kind=dqn see the latent alone"
            )


class QNetwork(nn.Module):
    """Latents (B, D) to the values of all actions (B, A)."""

    def __init__(self, latent_dim: int, hidden: int, action_dim: int, dueling: bool) -> None:
        super().__init__()
        self.advantage = _stream(latent_dim, hidden, action_dim)
        self.value = _stream(latent_dim, hidden, 1) if dueling else None

    def forward(self, latent: Tensor) -> Tensor:
        advantage: Tensor = self.advantage(latent)
        if self.value is None:
            return advantage
        return self.value(latent) + advantage - advantage.mean(-1, keepdim=True)  # type: ignore[no-any-return]


def _stream(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


class DQN(NStepCore):
    """Q-network and slow Q-network."""

    critic: QNetwork
    slow_critic: QNetwork

    def __init__(self, config: DQNConfig, latent_dim: int, action_dim: int) -> None:
        super().__init__()
        self.config: DQNConfig = config
        self.critic = QNetwork(latent_dim, config.hidden, action_dim, config.dueling)
        initialize(self, config.init)
        self.slow_critic = slow_copy(self.critic)

    @property
    def epsilon(self) -> float:
        """The share of random actions now."""
        return self.config.epsilon.at(self.decisions)

    def act(
        self, encoder: Encoder, observation: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        values: Tensor = self.critic(encoder(observation))
        chosen = _greedy(values)
        if generator is None:
            return chosen
        (size, actions), device = values.shape, values.device
        explores = torch.rand(size, 1, generator=generator, device=device) < self.epsilon
        random = torch.randint(actions, (size,), generator=generator, device=device)
        return torch.where(explores, F.one_hot(random, actions).to(chosen), chosen)

    def next_value(
        self,
        encoder: Encoder,
        slow_encoder: Encoder,
        observation: Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        slow: Tensor = self.slow_critic(slow_encoder(observation))
        chosen = _greedy(self.critic(encoder(observation)) if self.config.double else slow)
        return (slow * chosen).sum(-1)

    def errors(self, latent: Tensor, action: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        q = (self.critic(latent) * action).sum(-1)
        return F.smooth_l1_loss(q, target, reduction="none"), q

    def critic_loss(
        self,
        encoder: Encoder,
        slow_encoder: Encoder,
        batch: TransitionBatch,
        generator: torch.Generator,
    ) -> tuple[Tensor, Encoded, Metrics]:
        loss, encoded, metrics = super().critic_loss(encoder, slow_encoder, batch, generator)
        return loss, encoded, metrics | {"actor/epsilon": loss.new_full((), self.epsilon)}

    def actor_losses(
        self, encoder: Encoder, observation: Tensor, encoded: Encoded, generator: torch.Generator
    ) -> Iterator[tuple[str, Tensor, Metrics]]:
        """Yield nothing: the critic is the policy."""
        yield from ()

    def groups(self, learning: LearningConfig) -> dict[str, Group]:
        return {}

    def borrowed_layers(self, number: int) -> list[nn.Module]:
        return []  # `check` refuses a task that asks for any

    def keep_policy(self, other: Core) -> None:
        assert isinstance(other, DQN)
        self.critic.load_state_dict(other.critic.state_dict())
        self.slow_critic.load_state_dict(other.slow_critic.state_dict())


def _greedy(values: Tensor) -> Tensor:
    """Return the best of each row's actions (B, A), one-hot; the first of several."""
    return F.one_hot(values.argmax(-1), values.shape[-1]).to(values.dtype)
