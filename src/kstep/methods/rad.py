"""RAD: Laskin et al. 2020, "Reinforcement Learning with Augmented Data", arXiv:2004.14990.

SAC on one random crop of every observation; `--set method.augment.kind=shift` for shifts.
"""

from dataclasses import replace

from kstep.data.crop import Crop
from kstep.methods.sac import SAC_PIXEL
from kstep.nets.encoder import PixelEncoderConfig
from kstep.rl.sac import SACConfig

RAD = replace(
    SAC_PIXEL,
    base="rad",
    augment=Crop(),
)

RAD_ORIGINAL = replace(
    RAD,
    variant="original",
    encoder=PixelEncoderConfig(tanh=False),
    core=SACConfig(
        actor_encoder="share_convolutions",
        log_prob="epsilon",
        temperature_learning_rate=1e-4,
        temperature_betas=(0.5, 0.999),
    ),
    per_task={
        "cheetah_run": {"learning.learning_rate": 2e-4, "learning.initial_decisions": 10_000}
    },
)
