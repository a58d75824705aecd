"""What a method is: a point in one small space of choices, all of them values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kstep.augment import AugmentConfig
from kstep.auxiliary.ksl import KSLConfig
from kstep.nets.encoder import EncoderConfig
from kstep.rl.sac import SACConfig
from kstep.types import ObservationKind

Part: TypeAlias = Literal["critic", "auxiliary", "actor"]


@dataclass(frozen=True)
class LearningConfig:
    """Batches, rates and schedules; the defaults are the KSL paper's table of hyperparameters."""

    batch_size: int = 128
    learning_rate: float = 1e-3
    """2e-4 on cheetah_run, unless set (D31)."""
    betas: tuple[float, float] = (0.9, 0.999)
    temperature_learning_rate: float | None = None
    """None: as `learning_rate`."""
    temperature_betas: tuple[float, float] = (0.9, 0.999)
    auxiliary_learning_rate: float | None = None
    """Of the auxiliary heads. None: as `learning_rate` (D04)."""
    encoder_double_step: bool = False
    """Whether the auxiliary gradient steps the encoder twice, as the released code does with two
    Adams that see the same gradient: exactly one Adam with the sum of their rates (D05)."""
    critic_ema_rate: float = 0.01
    encoder_ema_rate: float = 0.05
    ema_every: int = 2
    """Updates between steps of the slow copies."""
    actor_every: int = 2
    order: tuple[Part, ...] = ("critic", "auxiliary", "actor")
    """In which order one update takes its parts (D06); the slow copies always come last."""
    initial_steps: int = 1000
    """Random actions before learning starts."""
    initial_unit: Literal["decisions", "env_steps"] = "decisions"
    """What `initial_steps` counts (D14)."""


@dataclass(frozen=True)
class Method:
    """One way to learn, complete: nothing is decided elsewhere."""

    name: str
    summary: str
    observation: ObservationKind = "pixels"
    stack: int = 3
    """Consecutive frames in one observation."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    """Of the transitions that the reinforcement-learning loss sees."""
    sac: SACConfig = field(default_factory=SACConfig)
    auxiliary: KSLConfig | None = None
    sequence_augment: AugmentConfig = field(default_factory=AugmentConfig)
    """Of the sequences that the auxiliary task sees (D13)."""
    sequence_rule: Literal["any", "released"] = "any"
    """Which sequences may be drawn: any, or those the released code can reach (D15)."""
    learning: LearningConfig = field(default_factory=LearningConfig)
