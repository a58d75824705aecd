"""What a method is: a point in one small space of choices, all of them values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from kstep.augment import AugmentConfig
from kstep.auxiliary.base import AuxiliaryConfig
from kstep.nets.encoder import EncoderConfig
from kstep.rl.sac import SACConfig
from kstep.types import ObservationKind

Part: TypeAlias = Literal["critic", "auxiliary", "actor", "slow"]


@dataclass(frozen=True)
class LearningConfig:
    """Batches, rates and schedules; the defaults are the KSL paper's table of hyperparameters."""

    batch_size: int = 128
    replay_capacity: int = 100_000
    """Decisions to remember; the newest are kept."""
    learning_rate: float = 1e-3
    """2e-4 on cheetah_run, unless set (D31)."""
    betas: tuple[float, float] = (0.9, 0.999)
    temperature_learning_rate: float | None = None
    """None: as `learning_rate`."""
    temperature_betas: tuple[float, float] = (0.9, 0.999)
    auxiliary_learning_rate: float | None = None
    """Of the auxiliary heads. None: as `learning_rate` (D04)."""
    encoder_auxiliary_learning_rate: float | None = None
    """Of the encoder in the auxiliary step. None: as the heads'; see `encoder_double_step`."""
    encoder_double_step: bool = False
    """Whether the auxiliary gradient steps the encoder twice, as the released code does with two
    Adams that see the same gradient: exactly one Adam with the sum of their rates (D05)."""
    one_optimizer: bool = False
    """One Adam, with one set of moments, for the critic's and the auxiliary loss: the paper's
    ablation. Otherwise each loss has its own."""
    encoder_learns_from: Literal["critic and auxiliary", "auxiliary"] = "critic and auxiliary"
    """With "auxiliary", actor and critic take the convolutions' features as given."""
    critic_ema_rate: float = 0.01
    encoder_ema_rate: float = 0.05
    ema_every: int = 2
    """Updates between steps of the slow copies."""
    actor_every: int = 2
    auxiliary_every: int = 1
    order: tuple[Part, ...] = ("critic", "auxiliary", "actor", "slow")
    """In which order one update takes its parts (D06)."""
    aligned: bool = False
    """Whether the transition that the reinforcement-learning loss sees is the first of the
    auxiliary task's sequence, under the same view, instead of a batch of its own. Then what both
    losses ask of the slow encoder is computed once."""
    joint: bool = False
    """Whether one encoding of that transition's observation serves both losses: both gradients are
    taken at the same parameters, and each is stepped by its own optimizer. Needs `aligned`."""
    initial_steps: int = 1000
    """Random actions before learning starts."""
    initial_unit: Literal["decisions", "env_steps"] = "decisions"
    """What `initial_steps` counts (D14)."""
    pretraining: int = 0
    """Updates of the auxiliary task alone when learning starts."""
    burst: int = 0
    """Updates in a row when learning starts, each with all its parts."""


@dataclass(frozen=True)
class ExplorationConfig:
    """A first phase that learns from the auxiliary task's own reward (Proto-RL)."""

    env_steps: int | None = None
    """Length of the first phase; None: half of the budget."""
    bonus: float = 0.0
    """Weight of the task-agnostic reward in the second phase; in the first it is the whole."""


@dataclass(frozen=True)
class Method:
    """One way to learn, complete: nothing is decided elsewhere."""

    name: str
    summary: str
    observation: ObservationKind = "pixels"
    image_size: int = 84
    """Height and width of what the encoder sees; the augmentation decides what is rendered."""
    stack: int = 3
    """Consecutive frames in one observation."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    """Of the transitions that the reinforcement-learning loss sees."""
    sac: SACConfig = field(default_factory=SACConfig)
    auxiliary: AuxiliaryConfig | None = None
    sequence_augment: AugmentConfig = field(default_factory=AugmentConfig)
    """Of the sequences that the auxiliary task draws for itself (D13)."""
    sequence_rule: Literal["any", "released"] = "any"
    """Which sequences may be drawn: any, or those the released code can reach (D15)."""
    learning: LearningConfig = field(default_factory=LearningConfig)
    exploration: ExplorationConfig | None = None
