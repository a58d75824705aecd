"""CURL: tell the views of one observation from the views of others.

Laskin, Srinivas, Abbeel 2020, "CURL: Contrastive Unsupervised Representations for Reinforcement
Learning", arXiv:2004.04136, section 4.

    z_a = encode(view)                  anchor: the very view that the critic uses
    z_p = encode_slow(another view)     positive, no gradient
    logits = z_a W z_p^T                (B, B); the other rows' positives are the negatives
    loss = mean over rows of the cross-entropy with the diagonal

No temperature, no normalization, no weight on the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kstep.auxiliary.base import AuxiliaryConfig, AuxiliaryTask, Shapes
from kstep.types import Encode, Metrics, SequenceBatch


@dataclass(frozen=True)
class CURLConfig(AuxiliaryConfig):
    """CURL leaves nothing to choose: its only head is as wide as the latent."""

    kind: ClassVar[str] = "curl"
    second_view: ClassVar[bool] = True

    def build(self, shapes: Shapes) -> AuxiliaryTask:
        return CURL(shapes.latent_dim)

    def shrunk(self) -> CURLConfig:
        return self


class CURL(AuxiliaryTask):
    """The task with its head, the bilinear similarity W."""

    def __init__(self, latent_dim: int) -> None:
        super().__init__()
        # Uniform in [0, 1), as in the released code; the paper does not say.
        self.bilinear = nn.Parameter(torch.rand(latent_dim, latent_dim))

    def learned(self) -> dict[str, nn.Module | nn.Parameter]:
        return {"bilinear": self.bilinear}

    def loss(
        self,
        encode: Encode,
        encode_slow: Encode,
        batch: SequenceBatch,
        layers: Sequence[nn.Module] = (),
    ) -> tuple[Tensor, Metrics]:
        """The loss over the first of `batch.observation` (B, T + 1, S, ...) and `second_view`."""
        with torch.no_grad():
            positive = encode_slow(batch.second_view)
        logits = self.logits(encode(batch.observation[:, 0]), positive)
        diagonal = torch.arange(len(logits), device=logits.device)
        loss = F.cross_entropy(logits, diagonal)
        accuracy = (logits.detach().argmax(1) == diagonal).float().mean()
        return loss, {"auxiliary/loss": loss.detach(), "auxiliary/curl_accuracy": accuracy}

    def logits(self, anchor: Tensor, positive: Tensor) -> Tensor:
        """Compare latents (B, D) with latents (B, D): similarities (B, B), largest of a row 0."""
        similarity = anchor @ self.bilinear @ positive.T
        # The softmax over a row does not see a constant, so neither does the gradient.
        return similarity - similarity.detach().amax(1, keepdim=True)
