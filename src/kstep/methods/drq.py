"""DrQ: Kostrikov, Yarats, Fergus 2020, "Image Augmentation Is All You Need", arXiv:2004.13649.

SAC whose critic averages its targets, and adds its losses, over two shifted views of a transition.
"""

from dataclasses import replace

from kstep.methods.base import LearningConfig
from kstep.methods.ksl import SHIFT
from kstep.methods.sac import SAC_PIXEL
from kstep.nets.encoder import EncoderConfig
from kstep.rl.sac import SACConfig

DRQ = replace(
    SAC_PIXEL,
    name="drq",
    summary="DrQ: Soft Actor-Critic, two shifted views in the critic's loss",
    augment=SHIFT,
    sac=replace(SAC_PIXEL.sac, critic_views=2),
)

DRQ_ORIGINAL = replace(
    DRQ,
    name="drq-original",
    summary="DrQ with its authors' settings",
    encoder=EncoderConfig(tanh=True, init="orthogonal"),
    sac=SACConfig(critic_views=2, actor_encoder="share_convolutions", init="orthogonal"),
    learning=LearningConfig(batch_size=512, encoder_ema_rate=0.01),
)
