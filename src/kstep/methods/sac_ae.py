"""SAC-AE: Yarats et al. 2019, "Improving Sample Efficiency in Model-Free Reinforcement Learning
from Images", arXiv:1910.01741. SAC plus a decoder that reconstructs the observation.

Its code with the decoder switched off is the original of SAC from pixels.
"""

from dataclasses import replace

from kstep.auxiliary.autoencoder import AutoencoderConfig
from kstep.methods.base import LearningConfig
from kstep.methods.curl import ORDER
from kstep.methods.sac import SAC_PIXEL
from kstep.rl.sac import SACConfig

SAC_AE = replace(
    SAC_PIXEL,
    name="sac_ae",
    summary="SAC-AE: Soft Actor-Critic and a reconstruction task",
    auxiliary=AutoencoderConfig(),
    learning=LearningConfig(order=ORDER),
)

SAC_AE_ORIGINAL = replace(
    SAC_AE,
    name="sac_ae-original",
    summary="SAC-AE with its authors' settings",
    sac=SACConfig(actor_encoder="share_convolutions", log_prob="epsilon"),
    learning=LearningConfig(
        replay_capacity=1_000_000,
        temperature_learning_rate=1e-4,
        temperature_betas=(0.5, 0.999),
        order=ORDER,
        burst=1000,
    ),
)

SAC_PIXEL_ORIGINAL = replace(
    SAC_AE_ORIGINAL,
    name="sac_pixel-original",
    summary="SAC-AE's code without its decoder: Soft Actor-Critic from pixels",
    auxiliary=None,
)
