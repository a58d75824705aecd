"""DrQ: Kostrikov, Yarats, Fergus 2020, "Image Augmentation Is All You Need", arXiv:2004.13649.

SAC whose critic averages its targets, and adds its losses, over two shifted views of a transition.
"""

from dataclasses import replace

from kstep.data.augment import Shift
from kstep.methods.base import LearningConfig
from kstep.methods.ksl import SAC
from kstep.methods.sac import SAC_PIXEL
from kstep.nets.encoder import PixelEncoderConfig
from kstep.rl.sac import SACConfig

DRQ = replace(
    SAC_PIXEL,
    base="drq",
    augment=Shift(),
    core=replace(SAC, critic_views=2),
)

DRQ_ORIGINAL = replace(
    DRQ,
    variant="original",
    encoder=PixelEncoderConfig(tanh=True, ema_rate=0.01, init="orthogonal"),
    core=SACConfig(critic_views=2, actor_encoder="share_convolutions", init="orthogonal"),
    learning=LearningConfig(batch_size=512),
    per_task={},
)
