"""KSL for any PyTorch loop: the loss, its heads and the slow encoder, as one module.

In: an encoder from observations (B, ...) to latents (B, D), and sequences as plain tensors. Out: a
scalar to add to the agent's own loss, or to minimize by itself. The mathematics is that of
auxiliary/ksl.py; what is added here is a mask, discrete actions, and a slow copy of an encoder that
may have buffers. The encoder stays its owner's: it is copied once and is an argument from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kstep.auxiliary import ksl
from kstep.auxiliary.base import Shapes
from kstep.errors import KstepError
from kstep.optimizers import Ema, slow_copy
from kstep.types import Encode


class KSL(nn.Module):
    """k-Step Latent beside an agent of yours.

    `parameters()` are the heads and the slow copies; the latter never receive a gradient, so that
    all of them can be given to an optimizer. `state_dict()` holds everything that `loss` depends on
    except for the encoder.
    """

    def __init__(
        self,
        encoder: nn.Module,
        *,
        latent_dim: int,
        action_dim: int | None = None,
        n_actions: int | None = None,
        k: int = 3,
        ema_rate: float = 0.05,
        transition_hidden: tuple[int, int] = (1024, 512),
        projection_hidden: int | None = 512,
    ) -> None:
        """Make the heads, with the encoder's device and precision, and a slow copy of the encoder.

        Continuous actions have `action_dim` numbers, discrete ones are `n_actions` in number. The
        defaults are those of the paper.
        """
        super().__init__()
        if not isinstance(encoder, nn.Module):
            raise KstepError(f"encoder must be a torch.nn.Module, not {type(encoder).__name__}")
        if any(nn.parameter.is_lazy(parameter) for parameter in encoder.parameters()):
            raise KstepError("the encoder has lazy layers: run it once, then it can be copied")
        if (action_dim is None) == (n_actions is None):
            raise KstepError(
                "give either action_dim (continuous actions) or n_actions (discrete actions)"
            )
        self.discrete = n_actions is not None
        self.latent_dim, self.k = _size("latent_dim", latent_dim), _size("k", k)
        self.action_dim = (
            _size("action_dim", action_dim)
            if action_dim is not None
            else _size("n_actions", n_actions)
        )
        if not 0.0 <= ema_rate <= 1.0:
            raise KstepError(f"ema_rate must lie between 0 and 1, not {ema_rate!r}")
        self.ema_rate = ema_rate
        if len(_sizes("transition_hidden", transition_hidden)) != 2:
            raise KstepError(f"transition_hidden must be two sizes, not {transition_hidden!r}")
        if projection_hidden is not None:
            _size("projection_hidden", projection_hidden)
        config = ksl.KSLConfig(
            k=self.k,
            transition=ksl.DenseTransitionConfig(hidden=transition_hidden),
            projection_hidden=projection_hidden,
        )
        self.task = config.build(Shapes(self.latent_dim, (), self.action_dim, (), ema_rate))
        self.slow_encoder = slow_copy(encoder).eval()
        for parameter in encoder.parameters():
            if parameter.is_floating_point():
                self.task.to(parameter)
                break

    def loss(
        self, encoder: Encode, observations: Tensor, actions: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Return the loss over B sequences of k decisions.

        `observations` (B, k + 1, ...) reach the encoder as they are, (B, ...) at a time. `actions`
        (B, k, A); discrete ones as integers (B, k) or (B, k, 1), or one-hot (B, k, n_actions).

        `mask` (B, k): whether `observations[:, j + 1]` still belong to the episode of
        `observations[:, 0]`. What follows the first False in a row does not count, whatever it
        holds. Each of the k steps is averaged over the sequences that reach it, and the loss is
        the mean over the steps that at least one sequence reaches.
        """
        self._check(observations, actions, mask)
        valid = None
        if mask is not None:
            valid = mask.bool().cumprod(dim=1).bool()
            # Whatever is there after the end, it reaches neither the value nor the gradient.
            first, rest = observations[:, :1], observations[:, 1:]
            rest = torch.where(_like(valid, rest), rest, first)
            observations = torch.cat((first, rest), dim=1)
            actions = actions.masked_fill(~_like(valid, actions), 0)
        distances = self.task.distances(
            lambda batch: self._latents(encoder, batch),
            lambda batch: self._latents(self.slow_encoder, batch),
            observations,
            self._vectors(actions),
        )
        if valid is None:
            return torch.stack([distance.mean() for distance in distances]).mean()
        reached = valid.sum(dim=0)
        sums = (torch.stack(distances, dim=1) * valid).sum(dim=0)
        return (sums / reached.clamp(min=1)).sum() / (reached > 0).sum().clamp(min=1)

    @torch.no_grad()
    def update_slow(self, encoder: nn.Module) -> None:
        """Move the slow copies towards the encoder and the projector, once per learning step.

        Buffers, such as the statistics of batch normalization, are copied as they are.
        """
        Ema("encoder", self.slow_encoder, encoder, self.ema_rate).step()
        for slow in self.task.slow_copies():
            slow.step()
        for mine, its in zip(self.slow_encoder.buffers(), encoder.buffers(), strict=True):
            mine.copy_(its)

    def train(self, mode: bool = True) -> KSL:
        """Set the mode of the heads; the slow encoder always evaluates."""
        super().train(mode)
        self.slow_encoder.eval()
        return self

    @staticmethod
    def mask_after(done: Tensor) -> Tensor:
        """Return the mask for `done` (B, k): whether decision j ended its episode.

        It is for a replay that stores the last observation of an episode. One that stores the first
        observation of the next episode in its place has the mask `~done`.
        """
        done = done.bool()
        going = torch.cat((torch.ones_like(done[:, :1]), ~done[:, :-1]), dim=1)
        return going.cumprod(dim=1).bool()

    def _check(self, observations: Tensor, actions: Tensor, mask: Tensor | None) -> None:
        if observations.ndim < 3 or observations.shape[1] != self.k + 1:
            raise KstepError(
                f"observations must be (B, k + 1, ...) with k = {self.k}, "
                f"not {tuple(observations.shape)}"
            )
        batch = (observations.shape[0], self.k)
        if mask is not None and mask.shape != batch:
            raise KstepError(f"mask must be (B, k) = {batch}, not {tuple(mask.shape)}")
        allowed: list[tuple[int, ...]] = [(*batch, self.action_dim)]
        if self.discrete and not actions.is_floating_point():
            allowed += [batch, (*batch, 1)]
        if actions.shape not in allowed:
            kind = "integers or one-hot" if self.discrete else "(B, k, A)"
            raise KstepError(
                f"actions must be {kind}, {' or '.join(map(str, allowed))}, not "
                f"{str(actions.dtype).removeprefix('torch.')} {tuple(actions.shape)}"
            )

    def _vectors(self, actions: Tensor) -> Tensor:
        """Actions as the transition model takes them: (B, k, A), floating point."""
        if self.discrete and actions.shape[2:] != (self.action_dim,):
            # Elsewhere the device would have to be waited for.
            if actions.device.type == "cpu" and actions.numel():
                least, most = int(actions.min()), int(actions.max())
                if least < 0 or most >= self.action_dim:
                    allowed = f"0 to {self.action_dim - 1}"
                    raise KstepError(f"discrete actions must be {allowed}, not {least} to {most}")
            actions = F.one_hot(actions.long().flatten(1), self.action_dim)
        return actions.to(self.task.predictor.weight.dtype)

    def _latents(self, encoder: Encode, batch: Tensor) -> Tensor:
        latents = encoder(batch)
        if latents.shape != (len(batch), self.latent_dim):
            raise KstepError(
                f"the encoder must return (B, latent_dim) = {(len(batch), self.latent_dim)}, "
                f"not {tuple(latents.shape)}"
            )
        return latents


def _size(name: str, value: object) -> int:
    if not isinstance(value, Integral) or value < 1:  # NumPy's too, as spaces have them
        raise KstepError(f"{name} must be a whole number of at least 1, not {value!r}")
    return int(value)


def _sizes(name: str, values: object) -> tuple[int, ...]:
    if not isinstance(values, Sequence):
        raise KstepError(f"{name} must be two sizes, not {values!r}")
    return tuple(_size(name, value) for value in values)


def _like(valid: Tensor, values: Tensor) -> Tensor:
    """Return (B, k) as (B, k, 1, ...), to be broadcast over values (B, k, ...)."""
    return valid.reshape(*valid.shape, *[1] * (values.ndim - 2))
