"""k-Step Latent: predict the encoder's own future latents under the agent's actions.

McInroe, Schaefer, Albrecht 2021, "Learning Temporally-Consistent Representations for Data-Efficient
Reinforcement Learning", arXiv:2110.04935, section 3 and appendices A and B.

    z_0 = encode(s_0)                                   gradients flow from here on
    z_j = T(z_{j-1}, a_{j-1})                           j = 1..k, recurrent
    y_j = P(Psi(z_j))                                   prediction
    t_j = Psi_slow(encode_slow(s_j))                    regression target, no gradient
    loss = mean over batch and steps of || y_j/|y_j| - t_j/|t_j| ||^2
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kstep.auxiliary.base import AuxiliaryTask, OwnSequences, Shapes
from kstep.nets.init import Init, initialize
from kstep.optimizers import Ema, slow_copy
from kstep.types import Encode, Metrics, SequenceBatch
from kstep.values import Family, Positive

if TYPE_CHECKING:
    from kstep.methods.base import Method


@dataclass(frozen=True)
class TransitionConfig(Family):
    """Which transition model T."""

    sees: ClassVar[Literal["latent", "features"]] = "latent"
    """Which stage of the encoder T starts from."""

    @property
    def borrowed_layers(self) -> int:
        """How many first layers of each Q-function stand in for T's first."""
        return 0

    @abc.abstractmethod
    def build(self, shapes: Shapes) -> nn.Module:
        """Return T: (latent, action, borrowed layers) to the next latent."""

    def shrunk(self) -> TransitionConfig:
        return self

    def check(self, method: Method) -> None:
        """Refuse other parts of the method that this model cannot be combined with."""


@dataclass(frozen=True)
class DenseTransitionConfig(TransitionConfig):
    """T on latent vectors."""

    kind: ClassVar[str] = "dense"

    inputs: Positive = 1
    """Parallel first layers, averaged: 1 in the text, 2 in the code (D11)."""
    relu: bool = True
    """ReLU after that first layer (D11)."""
    hidden: tuple[Positive, Positive] = (1024, 512)

    def build(self, shapes: Shapes) -> Transition:
        return Transition(self.inputs, self.relu, self.hidden, shapes)

    def shrunk(self) -> DenseTransitionConfig:
        return replace(self, hidden=(32, 32))


@dataclass(frozen=True)
class KSLConfig(OwnSequences):
    """KSL's own choices; the defaults are the paper's text."""

    kind: ClassVar[str] = "ksl"

    k: Positive = 3
    """How many steps are predicted (D08)."""
    reduce: Literal["mean", "sum"] = "mean"
    """Over the k steps (D07). The batch is always averaged."""
    transition: TransitionConfig = field(default_factory=DenseTransitionConfig)
    projection_hidden: Positive | None = 512
    """Of Psi. None: latents are compared as they are."""
    init: Init = "delta_orthogonal"

    @property
    def horizon(self) -> int:
        return self.k

    def build(self, shapes: Shapes) -> KSL:
        return KSL(self, shapes)

    def shrunk(self) -> KSLConfig:
        hidden = None if self.projection_hidden is None else 32
        return replace(self, transition=self.transition.shrunk(), projection_hidden=hidden)

    def check(self, method: Method) -> None:
        super().check(method)
        self.transition.check(method)


class Transition(nn.Module):
    """T: a latent and an action to the next latent."""

    def __init__(self, inputs: int, relu: bool, hidden: tuple[int, int], shapes: Shapes) -> None:
        """`inputs`: first layers of its own; 0 where they are borrowed."""
        super().__init__()
        first, second = hidden
        self.inputs = nn.ModuleList(
            nn.Linear(shapes.latent_dim + shapes.action_dim, first) for _ in range(inputs)
        )
        self.relu = relu
        self.body = nn.Sequential(
            nn.Linear(first, second),
            nn.LayerNorm(second),
            nn.ReLU(),
            nn.Linear(second, shapes.latent_dim),
        )

    def forward(self, latent: Tensor, action: Tensor, layers: Sequence[nn.Module] = ()) -> Tensor:
        """`layers`: borrowed first layers, where T has none of its own."""
        x = torch.cat((latent, action), dim=-1)
        hidden = torch.stack([layer(x) for layer in layers or self.inputs]).mean(0)
        return self.body(torch.relu(hidden) if self.relu else hidden)  # type: ignore[no-any-return]


class KSL(AuxiliaryTask):
    """The task with its heads: transition T, projector Psi and its slow copy, predictor P."""

    def __init__(self, config: KSLConfig, shapes: Shapes) -> None:
        """The slow projector moves at the slow encoder's rate, as the paper has it."""
        super().__init__()
        self.config = config
        self.ema_rate = shapes.ema_rate
        self.transition = config.transition.build(shapes)
        self.sees, self.borrowed_layers = config.transition.sees, config.transition.borrowed_layers
        width, hidden = shapes.latent_dim, config.projection_hidden
        self.projector: nn.Module = nn.Identity()
        if hidden is not None:
            self.projector = nn.Sequential(
                nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, width)
            )
        # A single learnable matrix; both states of the released code leave it at PyTorch's init.
        self.predictor = nn.Linear(width, width, bias=False)
        initialize(self.transition, config.init)
        initialize(self.projector, config.init)
        self.slow_projector = slow_copy(self.projector)

    def learned(self) -> dict[str, nn.Module | nn.Parameter]:
        heads: dict[str, nn.Module | nn.Parameter] = {"transition": self.transition}
        if self.config.projection_hidden is not None:
            heads["projector"] = self.projector
        return {**heads, "predictor": self.predictor}

    def slow_copies(self) -> Sequence[Ema]:
        if self.config.projection_hidden is None:
            return ()
        return (Ema("projector", self.slow_projector, self.projector, self.ema_rate),)

    def loss(
        self,
        encode: Encode,
        encode_slow: Encode,
        batch: SequenceBatch,
        layers: Sequence[nn.Module] = (),
    ) -> tuple[Tensor, Metrics]:
        """The loss over `batch.observation` (B, k + 1, S, ...) and `batch.action` (B, k, A)."""
        distances = self.distances(encode, encode_slow, batch.observation, batch.action, layers)
        steps = torch.stack([distance.mean() for distance in distances])
        loss = steps.mean() if self.config.reduce == "mean" else steps.sum()
        found = {f"auxiliary/ksl_step{j + 1}": step for j, step in enumerate(steps.detach())}
        return loss, {"auxiliary/loss": loss.detach(), **found}

    def distances(
        self,
        encode: Encode,
        encode_slow: Encode,
        observation: Tensor,
        action: Tensor,
        layers: Sequence[nn.Module] = (),
    ) -> list[Tensor]:
        """Return how far each prediction is from its target: k distances (B,)."""
        targets = self.targets(encode_slow, observation[:, 1:])
        latent = encode(observation[:, 0])
        distances = []
        for j in range(self.config.k):
            latent = self.transition(latent, action[:, j], layers)
            prediction = self.predictor(self.projector(latent))
            # 2 - 2 cos is the squared distance of the two unit vectors.
            distances.append(2.0 - 2.0 * F.cosine_similarity(prediction, targets[:, j], eps=1e-12))
        return distances

    @torch.no_grad()
    def targets(self, encode_slow: Encode, observation: Tensor) -> Tensor:
        """Project the slow latents of the future states (B, k, S, ...) as one batch: (B, k, D)."""
        # In order of time, in which sequences lie in memory.
        latents = encode_slow(observation.transpose(0, 1).flatten(0, 1))
        targets: Tensor = self.slow_projector(latents)
        return targets.view(observation.shape[1], observation.shape[0], -1).transpose(0, 1)
