"""SAC-AE: Yarats et al. 2019, "Improving Sample Efficiency in Model-Free Reinforcement Learning
from Images", arXiv:1910.01741. SAC plus a decoder that reconstructs the observation.

Its code with the decoder switched off is the original of SAC from pixels.
"""

from dataclasses import replace

from kstep.auxiliary.autoencoder import AutoencoderConfig
from kstep.methods.base import LearningConfig
from kstep.methods.sac import SAC_PIXEL
from kstep.rl.sac import SACConfig

SAC_AE = replace(
    SAC_PIXEL,
    base="sac_ae",
    auxiliary=AutoencoderConfig(turn="last"),
)

SAC_AE_ORIGINAL = replace(
    SAC_AE,
    variant="original",
    core=SACConfig(
        actor_encoder="share_convolutions",
        log_prob="epsilon",
        temperature_learning_rate=1e-4,
        temperature_betas=(0.5, 0.999),
    ),
    learning=LearningConfig(replay_capacity=1_000_000, burst=1000),
    per_task={},
)

SAC_PIXEL_ORIGINAL = replace(
    SAC_AE_ORIGINAL,
    base="sac_pixel",
    auxiliary=None,
)
