"""What a method is: a point in one small space of choices, all of them values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kstep.auxiliary.base import AuxiliaryConfig, OwnSequences
from kstep.data.augment import Augment, NoAugment
from kstep.data.beside import ImageOnly
from kstep.nets import trunks as trunks  # further kinds of encoders
from kstep.nets.base import EncoderConfig
from kstep.nets.encoder import PixelEncoderConfig
from kstep.rl.core import CoreConfig
from kstep.rl.sac import SACConfig
from kstep.types import KstepError, ObservationKind
from kstep.values import DERIVED, LATER, BelowOne, Count, Name, Positive, Rate, change


@dataclass(frozen=True)
class LearningConfig:
    """Batches, rates and schedules; the defaults are the KSL paper's table of hyperparameters."""

    batch_size: Positive = 128
    replay_capacity: Positive = 100_000
    """Decisions to remember; the newest are kept."""
    learning_rate: Rate = 1e-3
    """2e-4 on cheetah_run, unless set (D31)."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    ema_every: Positive = 2
    """Updates between steps of the slow copies."""
    critic_trains: Literal["all", "head", "nothing"] = "all"
    """What of the encoder the critic's loss trains. What it does not train, actor and critic take
    as given: the convolutions' features (`head`, Proto-RL), or the whole encoder (`nothing`)."""
    initial_decisions: Positive = 1000
    """Random actions before learning starts (D14)."""
    update_every: Positive = field(default=1, metadata=LATER)
    """Decisions from one update to the next."""
    burst: Count = 0
    """Updates in a row when learning starts, each with all its parts."""


@dataclass(frozen=True)
class ExplorationConfig:
    """A first phase that learns from the auxiliary task's own reward (Proto-RL)."""

    env_steps: Count | None = None
    """Length of the first phase; None: half of the budget."""
    bonus: Rate = 0.0
    """Weight of the task-agnostic reward in the second phase; in the first it is the whole."""

    def check(self, method: Method) -> None:
        if method.auxiliary is None or not method.auxiliary.rewards:
            raise KstepError("method.exploration needs an auxiliary task that rewards")
        if method.learning.critic_trains != "head":
            raise KstepError(
                "method.exploration needs method.learning.critic_trains=head: the convolutions are "
                "kept when the task begins"
            )


@dataclass(frozen=True)
class Method:
    """One way to learn, complete: nothing is decided elsewhere."""

    base: Name
    """The method it belongs to, such as `drq`."""
    variant: Name = ""
    """What tells it from its base: `original`, `released`, an ablation. Empty: the base itself."""
    summary: str = field(default="", compare=False, metadata=DERIVED)
    """One line; that of our own methods is in `names.py`."""
    stack: Positive = 3
    """Consecutive frames in one observation."""
    encoder: EncoderConfig = field(default_factory=PixelEncoderConfig)
    augment: Augment = field(default_factory=NoAugment)
    """Of the transitions that the reinforcement-learning loss sees."""
    core: CoreConfig = field(default_factory=SACConfig)
    auxiliary: AuxiliaryConfig | None = None
    learning: LearningConfig = field(default_factory=LearningConfig)
    exploration: ExplorationConfig | None = None
    action_repeat: int | None = field(default=None, metadata=DERIVED)
    """On tasks of the control suite; None: the benchmark's. A run has it in `env.action_repeat`."""
    per_task: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, metadata=DERIVED)
    """Settings of this method that differ on a task: `{"cheetah_run": {"learning.learning_rate":
    2e-4}}`. Applied when a run is resolved."""

    @property
    def name(self) -> str:
        return f"{self.base}-{self.variant}" if self.variant else self.base

    @property
    def observation(self) -> ObservationKind:
        return self.encoder.observation

    def for_task(self, task: str) -> Method:
        """Return the method with the values it has on this task."""
        return replace(change(self, self.per_task.get(task, {})), per_task={})

    def beside(self, numbers: int) -> Method:
        """Return the method for observations with so many numbers beside their image, which its
        augmentations leave as they are."""
        if not numbers:
            return self
        auxiliary = self.auxiliary
        if isinstance(auxiliary, OwnSequences):
            auxiliary = replace(auxiliary, augment=ImageOnly(auxiliary.augment, numbers))
        return replace(self, augment=ImageOnly(self.augment, numbers), auxiliary=auxiliary)

    def check(self) -> None:
        """Refuse parts that do not go together, each by what needs it."""
        for part in (self.encoder, self.core, self.auxiliary, self.exploration):
            if part is not None:
                part.check(self)
        learning = self.learning
        if learning.replay_capacity < max(2 * learning.initial_decisions, learning.batch_size):
            raise KstepError(
                f"method.learning.replay_capacity={learning.replay_capacity} must be at least "
                f"method.learning.batch_size={learning.batch_size} and twice "
                f"method.learning.initial_decisions={learning.initial_decisions}"
            )
