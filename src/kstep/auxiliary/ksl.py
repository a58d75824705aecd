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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kstep.auxiliary.base import AuxiliaryConfig, AuxiliaryTask, Shapes
from kstep.nets.ema import Ema, slow_copy
from kstep.nets.encoder import ConvolutionalHead
from kstep.nets.init import Init, initialize
from kstep.types import Encode, KstepError, Metrics, SequenceBatch


@dataclass(frozen=True)
class KSLConfig(AuxiliaryConfig):
    """KSL's own choices; the defaults are the paper's text."""

    kind: ClassVar[str] = "ksl"

    k: int = 3
    k_counts: Literal["transitions", "states"] = "transitions"
    """What k counts: predictions, as in the paper's equation and code, or the states of a
    trajectory, of which its pseudocode predicts k - 1 (D08)."""
    reduce: Literal["mean", "sum"] = "mean"
    """Over the k steps (D07). The batch is always averaged."""
    transition_inputs: int = 1
    """Parallel first layers of T, averaged: 1 in the text, 2 in the code (D11)."""
    transition_relu: bool = True
    """ReLU after that first layer (D11)."""
    transition_hidden: tuple[int, int] = (1024, 512)
    transition: Literal["dense", "convolutional"] = "dense"
    """T on latent vectors, or on feature maps as in the paper's ablation (D46)."""
    knowledge_sharing: int = 0
    """The paper's l: how many first layers of both Q-functions stand in for T's first (D20)."""
    projection: bool = True
    """Whether Psi projects before the comparison; without it latents are compared as they are."""
    projection_hidden: int = 512
    init: Init = "delta_orthogonal"

    @property
    def horizon(self) -> int:
        return self.k if self.k_counts == "transitions" else self.k - 1

    @property
    def encodes_first_and_rest(self) -> bool:
        return self.transition == "dense"

    def build(self, shapes: Shapes) -> AuxiliaryTask:
        return KSL(
            self,
            shapes.latent_dim,
            shapes.action_dim,
            ema_rate=shapes.ema_rate,
            feature_shape=shapes.feature_shape,
        )

    def shrunk(self) -> KSLConfig:
        return replace(self, transition_hidden=(32, 32), projection_hidden=32)


class Transition(nn.Module):
    """T: a latent and an action to the next latent."""

    def __init__(self, config: KSLConfig, latent_dim: int, action_dim: int) -> None:
        super().__init__()
        first, second = config.transition_hidden
        own = 0 if config.knowledge_sharing else config.transition_inputs
        self.inputs = nn.ModuleList(nn.Linear(latent_dim + action_dim, first) for _ in range(own))
        self.relu = config.transition_relu
        self.body = nn.Sequential(
            nn.Linear(first, second),
            nn.LayerNorm(second),
            nn.ReLU(),
            nn.Linear(second, latent_dim),
        )

    def forward(self, latent: Tensor, action: Tensor, layers: Sequence[nn.Module] = ()) -> Tensor:
        """`layers`: borrowed input layers, where T has none of its own."""
        x = torch.cat((latent, action), dim=-1)
        hidden = torch.stack([layer(x) for layer in layers or self.inputs]).mean(0)
        return self.body(torch.relu(hidden) if self.relu else hidden)  # type: ignore[no-any-return]


class ConvolutionalTransition(nn.Module):
    """T on feature maps: two convolutions, flattened, then the action joins in a linear layer.

    Its output is a vector, so it cannot be fed to the convolutions again; the paper does not say
    how the recurrence then goes on. Here later predictions leave from that vector (D46).
    """

    def __init__(self, feature_shape: tuple[int, ...], latent_dim: int, action_dim: int) -> None:
        super().__init__()
        self.convolutions = ConvolutionalHead(feature_shape)
        self.first = nn.Sequential(
            nn.Linear(self.convolutions.outputs + action_dim, latent_dim), nn.LayerNorm(latent_dim)
        )
        self.later = nn.Sequential(
            nn.Linear(latent_dim + action_dim, latent_dim), nn.LayerNorm(latent_dim)
        )
        self.latent_dim = latent_dim

    def forward(self, latent: Tensor, action: Tensor, layers: Sequence[nn.Module] = ()) -> Tensor:
        if latent.shape[1] == self.latent_dim:
            return self.later(torch.cat((latent, action), dim=-1))  # type: ignore[no-any-return]
        flat = self.convolutions(latent)
        return self.first(torch.cat((flat, action), dim=-1))  # type: ignore[no-any-return]


class KSL(AuxiliaryTask):
    """The task with its heads: transition T, projector Psi and its slow copy, predictor P."""

    def __init__(
        self,
        config: KSLConfig,
        latent_dim: int,
        action_dim: int,
        *,
        ema_rate: float,
        feature_shape: tuple[int, ...] = (),
    ) -> None:
        """`ema_rate` of the slow projector; the paper gives it the encoder's."""
        super().__init__()
        if config.transition == "convolutional" and config.knowledge_sharing:
            raise KstepError("a convolutional transition has no layers to share with the critic")
        if config.knowledge_sharing not in (0, 1, 2):
            raise KstepError(f"knowledge_sharing must be 0, 1 or 2, not {config.knowledge_sharing}")
        if config.horizon < 1:
            raise KstepError(
                f"k={config.k} counted in {config.k_counts} leaves nothing to predict; "
                f"k must be at least {1 if config.k_counts == 'transitions' else 2}"
            )
        self.config = config
        self.horizon = config.horizon
        self.borrowed_layers = config.knowledge_sharing
        self.ema_rate = ema_rate
        self.transition: nn.Module
        if config.transition == "convolutional":
            self.sees, self.sees_slow = "features", "latent"
            self.transition = ConvolutionalTransition(feature_shape, latent_dim, action_dim)
        else:
            self.transition = Transition(config, latent_dim, action_dim)
        self.projector: nn.Module = nn.Identity()
        if config.projection:
            self.projector = nn.Sequential(
                nn.Linear(latent_dim, config.projection_hidden),
                nn.LayerNorm(config.projection_hidden),
                nn.ReLU(),
                nn.Linear(config.projection_hidden, latent_dim),
            )
        # A single learnable matrix; both states of the released code leave it at PyTorch's init.
        self.predictor = nn.Linear(latent_dim, latent_dim, bias=False)
        initialize(self.transition, config.init)
        initialize(self.projector, config.init)
        self.slow_projector = slow_copy(self.projector)

    def learned(self) -> dict[str, nn.Module | nn.Parameter]:
        heads: dict[str, nn.Module | nn.Parameter] = {"transition": self.transition}
        if self.config.projection:
            heads["projector"] = self.projector
        return {**heads, "predictor": self.predictor}

    def slow_copies(self) -> Sequence[Ema]:
        if not self.config.projection:
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
        targets = self.targets(encode_slow, batch.observation[:, 1:])
        latent = encode(batch.observation[:, 0])
        distances = []
        for j in range(self.horizon):
            latent = self.transition(latent, batch.action[:, j], layers)
            prediction = self.predictor(self.projector(latent))
            # 2 - 2 cos is the squared distance of the two unit vectors.
            distances.append(
                (2.0 - 2.0 * F.cosine_similarity(prediction, targets[:, j], eps=1e-12)).mean()
            )
        total = torch.stack(distances)
        loss = total.mean() if self.config.reduce == "mean" else total.sum()
        steps = {
            f"auxiliary/ksl_step{j + 1}": distance.detach() for j, distance in enumerate(distances)
        }
        return loss, {"auxiliary/loss": loss.detach(), **steps}

    @torch.no_grad()
    def targets(self, encode_slow: Encode, observation: Tensor) -> Tensor:
        """Project the slow latents of the future states (B, k, S, ...) as one batch: (B, k, D)."""
        # In order of time, in which sequences lie in memory.
        latents = encode_slow(observation.transpose(0, 1).flatten(0, 1))
        targets: Tensor = self.slow_projector(latents)
        return targets.view(observation.shape[1], observation.shape[0], -1).transpose(0, 1)
