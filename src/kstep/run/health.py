"""Training watchdog: non-finite values, diverging Q, latents that collapse, a policy that stops
exploring.

It looks only at what an update has computed anyway, draws nothing and changes nothing, so that
results are the same with and without it. What cannot be recovered from ends the run, before a
checkpoint could keep it; what may pass is reported on the console, once until it has passed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from kstep.agent import Agent
from kstep.data.replay import Replay
from kstep.errors import Fault
from kstep.optimizers import NonFinite
from kstep.types import Array

RUNAWAY, LOST = 3.0, 1e4
"""Times the largest possible return: where Q counts as diverging, and where it is lost."""
FLAT_SPREAD, FLAT_RANK, ALIKE = 0.01, 2.0, 0.9995
"""When latents count as collapsed; see `spread_of`. On cartpole_swingup a new encoder has a spread
of 0.07, a rank of 36 of 50 and a cosine of 0.98; a trained one 0.5, 37 and 0.3."""
YOUNG = 2_000
"""Updates before which flat latents are no collapse. Where images hardly differ a new encoder's are
flat: on cheetah_run those of `drq` for 250 updates, those of `ksl` for 700 (0.006 and 0.9999)."""
SPREADS = frozenset({"latent/spread", "latent/rank", "latent/cosine"})
"""What is logged of latents."""
NARROW = 4.0
"""Nats per action dimension below the target entropy."""
PATIENCE = 10
"""Logged updates in a row before something that may pass is reported."""


class Health:
    """Watches one agent."""

    def __init__(self, agent: Agent, replay: Replay, say: Callable[[str], None]) -> None:
        self.agent, self.replay, self._say = agent, replay, say
        self._streaks: dict[str, int] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Report which tensors are behind a loss that breaks in the block."""
        try:
            yield
        except NonFinite as error:
            self._broken(str(error))

    def watch_action(self, action: Array) -> None:
        """Look at every action: the first place where a broken network shows outside of a loss."""
        if not np.isfinite(action).all():
            self._broken("the policy's action is non-finite")

    def look(self, values: dict[str, float], latent: Tensor) -> dict[str, float]:
        """Look closely at an update that is to be logged; return what to log of its latents."""
        for path, value in values.items():
            if not math.isfinite(value):
                self._broken(f"{path} is {value}")
        self._refuse_flagged()
        self._watch_values(values)
        self._watch_entropy(values)
        if not self.agent.encoder.stages():
            return {}  # a state vector is what it is
        # The first view only: a second one of the same observations is alike by design.
        found = spread_of(latent[: self.agent.method.learning.batch_size])
        numbers = ", ".join(f"{path} = {value:.3g}" for path, value in found.items())
        flat = is_flat(found, self.agent.updates)
        self._remark("latent", flat, f"the representation has collapsed: {numbers}")
        return found

    def refuse_broken(self) -> None:
        """Raise if a weight or moment is non-finite; for before it is evaluated or saved."""
        self._refuse_flagged()
        if _non_finite(self.agent.state()):
            self._broken("a weight or moment is non-finite")

    def _refuse_flagged(self) -> None:
        """Raise if a loss was non-finite where losses are not read one by one (`minimize`)."""
        if self.agent.broken is not None and self.agent.broken.item():
            self._broken(
                "a loss was non-finite, in this or an earlier update; nothing was stepped since"
            )

    def _broken(self, what: str) -> None:
        wrong = _non_finite(self.agent.state())
        names = [f"{name} ({count:,} of {size:,} values)" for name, (count, size) in wrong.items()]
        listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        raise Fault(
            f"learning broke at update {self.agent.updates:,}: {what}. "
            + (f"Non-finite: {listed}. " if names else "All weights are finite. ")
            + "The same command would fail again; a smaller method.learning.learning_rate often "
            "helps"
        )

    def _watch_values(self, values: dict[str, float]) -> None:
        largest = self._largest_return(values)
        allowed = f"rewards so far allow {largest:.3g} at most"
        for path in ("critic/q", "critic/target"):
            value = values.get(path, 0.0)
            if abs(value) > LOST * largest:
                self._broken(f"{path} = {value:.3g}, but {allowed}")
            diverging = abs(value) > RUNAWAY * largest
            self._remark(path, diverging, f"{path} = {value:.3g} diverges: {allowed}")

    def _largest_return(self, values: dict[str, float]) -> float:
        """Bound |Q| by the largest reward for ever after, entropy's share included."""
        horizon = self.agent.method.core.largest_horizon
        return largest_return(values, self.replay.largest_reward(), horizon)

    def _watch_entropy(self, values: dict[str, float]) -> None:
        entropy, target = values.get("actor/entropy"), self.agent.core.target_entropy
        if entropy is not None and target is not None:
            self._remark(
                "actor/entropy",
                entropy < target - NARROW * self.agent.spec.action_dim,
                f"actor/entropy = {entropy:.3g} is far below its target of {target:.3g}: the "
                "policy hardly explores any more",
            )

    def _remark(self, about: str, wrong: bool, text: str) -> None:
        """Report `text` once something was wrong for a while, and again only after it was right."""
        self._streaks[about] = self._streaks.get(about, 0) + 1 if wrong else 0
        if self._streaks[about] == PATIENCE:
            self._say(f"  warning at update {self.agent.updates:,}: {text}")


def largest_return(values: Mapping[str, float], largest_reward: float, horizon: float) -> float:
    """Return a bound of |Q| at a logged update, from a bound of the rewards so far."""
    bonus = 10 * abs(values.get("reward/bonus", 0.0))  # its mean is known, not its largest
    entropy = values.get("temperature/value", 0.0) * abs(values.get("actor/entropy", 0.0))
    return (max(1.0, largest_reward, bonus) + entropy) * horizon


def is_flat(found: Mapping[str, float], updates: float) -> bool:
    """Whether latents that `spread_of` measured after so many updates count as collapsed."""
    return updates > YOUNG and (
        found["latent/spread"] < FLAT_SPREAD
        or found["latent/rank"] < FLAT_RANK
        or found["latent/cosine"] > ALIKE
    )


@torch.no_grad()
def spread_of(latents: Tensor) -> dict[str, float]:
    """Return how different latents (B, D) of random observations are from each other.

    spread: the standard deviation over the batch, averaged over dimensions. rank: the effective
    rank of Roy & Vetterli (2007), the exponential of the entropy of the singular values' shares.
    cosine: of random pairs, for which neighbours in a random batch will do.
    """
    latents = latents.double()
    centred = latents - latents.mean(0)
    gram = centred.T @ centred if len(latents) >= latents.shape[1] else centred @ centred.T
    singular = torch.linalg.eigvalsh(gram).clamp(min=0.0).sqrt()
    share = singular / singular.sum().clamp(min=1e-300)
    entropy = -torch.special.xlogy(share, share).sum()
    pairs = torch.nn.functional.cosine_similarity(latents, latents.roll(1, 0), dim=1)
    return {
        "latent/spread": float(centred.square().mean(0).sqrt().mean()),
        "latent/rank": float(entropy.exp()),
        "latent/cosine": float(pairs.mean()),
    }


def _non_finite(tensors: dict[str, Tensor]) -> dict[str, tuple[int, int]]:
    """Return (non-finite values, all values) of every tensor that has some, by name."""
    found = {}
    for name, tensor in tensors.items():
        # The sum of finite numbers may overflow, so it only says where to look.
        if tensor.is_floating_point() and not math.isfinite(float(tensor.sum())):
            wrong = int((~torch.isfinite(tensor)).sum())
            if wrong:
                found[name] = (wrong, tensor.numel())
    return found
