"""RAD: Laskin et al. 2020, "Reinforcement Learning with Augmented Data", arXiv:2004.14990.

SAC on one randomly moved view of every observation. Crop is the default; translate and shift are
values of `method.augment.kind`.
"""

from dataclasses import replace

from kstep.augment import AugmentConfig
from kstep.methods.base import LearningConfig
from kstep.methods.sac import SAC_PIXEL
from kstep.nets.encoder import EncoderConfig
from kstep.rl.sac import SACConfig

RAD = replace(
    SAC_PIXEL,
    name="rad",
    summary="RAD: Soft Actor-Critic on random crops",
    augment=AugmentConfig(kind="crop", pad=8),
)

RAD_ORIGINAL = replace(
    RAD,
    name="rad-original",
    summary="RAD with its authors' settings",
    encoder=EncoderConfig(tanh=False),
    sac=SACConfig(actor_encoder="share_convolutions", log_prob="epsilon"),
    learning=LearningConfig(temperature_learning_rate=1e-4, temperature_betas=(0.5, 0.999)),
)
