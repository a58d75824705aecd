"""Proto-RL: cluster successive observations around prototypes, and be curious about rare ones.

Yarats, Fergus, Lazaric, Pinto 2021, "Reinforcement Learning with Prototypical Representations",
arXiv:2102.11271, with the released code's numbers.

    u = norm(P(Psi(encode(s))))                         gradients flow from here on
    v = norm(Psi_slow(encode_slow(s')))                 no gradient
    p = softmax(C u / temperature)                      over the K prototypes, the unit rows of C
    q = Sinkhorn(C v / temperature)                     the target: prototypes equally used
    loss = - mean over batch of sum over prototypes of q log p

    z = norm(Psi(encode(s')))
    for each prototype one z of the batch, drawn from softmax over the batch of C z, enters a queue
    reward = distance from z to its 3rd nearest in the queue

`encode` yields flat convolutional features; Psi is a linear layer, P has one hidden layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import annotated_types as at
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kstep.auxiliary.base import AuxiliaryConfig, AuxiliaryTask, Draws, RewardSource, Shapes
from kstep.nets.init import Init, initialize
from kstep.optimizers import Ema, slow_copy
from kstep.types import Encode, KstepError, Metrics, SequenceBatch
from kstep.values import Positive

if TYPE_CHECKING:
    from kstep.methods.base import Method


@dataclass(frozen=True)
class ProtoConfig(AuxiliaryConfig):
    """Proto-RL's choices; the defaults are the released code's."""

    kind: ClassVar[str] = "proto"
    rewards: ClassVar[bool] = True

    projection_dim: Positive = 128
    predictor_hidden: Positive = 512
    prototypes: Positive = 512
    temperature: Annotated[float, at.Gt(0.0)] = 0.1
    sinkhorn_iterations: Positive = 3
    """The released code has a setting for this and ignores it: always 3."""
    queue: Positive = 2048
    """How many visited places the reward remembers."""
    neighbour: Positive = 3
    """Which nearest remembered place the reward measures the distance to."""
    init: Init = "orthogonal"

    def build(self, shapes: Shapes) -> AuxiliaryTask:
        return Proto(self, math.prod(shapes.feature_shape), ema_rate=shapes.ema_rate)

    def shrunk(self) -> ProtoConfig:
        return replace(self, projection_dim=16, predictor_hidden=16, prototypes=16, queue=64)

    def check(self, method: Method) -> None:
        super().check(method)
        if not self.neighbour <= self.prototypes <= self.queue:
            raise KstepError(
                "every update remembers one place per prototype: neighbour <= prototypes <= queue "
                f"must hold, not {self.neighbour}, {self.prototypes}, {self.queue}"
            )


class Proto(AuxiliaryTask, RewardSource):
    """The task with its heads: projector Psi and its slow copy, predictor P, prototypes C."""

    sees = "features"
    sees_slow = "features"
    constrained = True

    queue: Tensor
    enqueued: Tensor

    def __init__(self, config: ProtoConfig, feature_dim: int, *, ema_rate: float) -> None:
        """`ema_rate` of the slow projector, in the released code a part of the slow encoder."""
        super().__init__()
        self.config = config
        self.ema_rate = ema_rate
        width = config.projection_dim
        self.projector = nn.Linear(feature_dim, width)
        self.predictor = nn.Sequential(
            nn.Linear(width, config.predictor_hidden),
            nn.ReLU(),
            nn.Linear(config.predictor_hidden, width),
        )
        self.prototypes = nn.Linear(width, config.prototypes, bias=False)
        initialize(self, config.init)
        self.constrain()
        self.slow_projector = slow_copy(self.projector)
        self.register_buffer("queue", torch.zeros(config.queue, width))
        # Vectors ever enqueued: says where the ring continues and how much of it is filled.
        self.register_buffer("enqueued", torch.zeros((), dtype=torch.int64))
        self.draws = Draws()

    def learned(self) -> dict[str, nn.Module | nn.Parameter]:
        return {
            "projector": self.projector,
            "predictor": self.predictor,
            "prototypes": self.prototypes,
        }

    def slow_copies(self) -> Sequence[Ema]:
        return (Ema("projector", self.slow_projector, self.projector, self.ema_rate),)

    def loss(
        self,
        encode: Encode,
        encode_slow: Encode,
        batch: SequenceBatch,
        layers: Sequence[nn.Module] = (),
    ) -> tuple[Tensor, Metrics]:
        """The loss over the first two of `batch.observation` (B, 2, S, ...)."""
        temperature = self.config.temperature
        with torch.no_grad():
            target = F.normalize(self.slow_projector(encode_slow(batch.observation[:, 1])), dim=1)
            q = sinkhorn(self.prototypes(target) / temperature, self.config.sinkhorn_iterations)
        prediction = self.predictor(self.projector(encode(batch.observation[:, 0])))
        scores = self.prototypes(F.normalize(prediction, dim=1))
        log_p = (scores / temperature).log_softmax(1)
        loss = -(q * log_p).sum(1).mean()
        entropy = -(log_p.exp() * log_p).sum(1).mean()
        return loss, {"auxiliary/loss": loss.detach(), "auxiliary/proto_entropy": entropy.detach()}

    @torch.no_grad()
    def reward(self, encoded: Tensor) -> Tensor:
        """Remember some of the next observations' features (B, F); return how rare each is (B,).

        What is remembered counts at once: it is its own nearest neighbour, at distance 0.
        """
        z = F.normalize(self.projector(encoded), dim=1)
        self.remember(z[self.candidates(z)])
        # The released queue starts with zeros, which count as places; here only filled ones do.
        empty = torch.arange(len(self.queue), device=z.device) >= self.enqueued
        # The default, by matrix product, would not give 0 for two equal vectors.
        distance = torch.cdist(z, self.queue, compute_mode="donot_use_mm_for_euclid_dist")
        distance = distance.masked_fill(empty, math.inf)
        return distance.topk(self.config.neighbour, dim=1, largest=False).values[:, -1]

    def candidates(self, z: Tensor) -> Tensor:
        """Draw for each prototype the index of one of z (B, P), likelier the closer: (K,)."""
        probability: Tensor = self.prototypes(z).T.softmax(1)
        # What torch.multinomial computes after checks that wait for the device: of exponentially
        # distributed waiting times, with these rates, the shortest.
        time = torch.empty_like(probability).exponential_(generator=self.draws.next())
        return (probability / time).argmax(1)

    def remember(self, z: Tensor) -> None:
        """Put vectors (N, P) into the queue in place of the oldest."""
        at = torch.arange(len(z), device=z.device) + self.enqueued
        self.queue[at % len(self.queue)] = z
        self.enqueued.add_(len(z))

    @torch.no_grad()
    def constrain(self) -> None:
        """Scale the rows of C to unit length. The original does so before every use of C; it is the
        same, but for rounding, to do it whenever an optimizer has moved C."""
        self.prototypes.weight.copy_(F.normalize(self.prototypes.weight, dim=1))


@torch.no_grad()
def sinkhorn(scores: Tensor, iterations: int) -> Tensor:
    """Return assignments (B, K) near softmax(scores) that use every prototype about equally.

    Each row sums to 1; the columns approach B / K with every iteration.
    """
    q = (scores - scores.max()).exp().T
    q /= q.sum()
    prototypes, samples = q.shape
    for _ in range(iterations):
        factor = 1.0 / (prototypes * q.sum(1, keepdim=True))
        # A prototype far from every sample may have mass 0.
        finite = factor.isfinite()
        q *= factor.where(finite, factor.where(finite, 0.0).max())
        q /= samples * q.sum(0, keepdim=True)
    return (q / q.sum(0, keepdim=True)).T
