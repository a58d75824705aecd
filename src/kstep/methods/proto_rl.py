"""Proto-RL: Yarats et al. 2021, "Reinforcement Learning with Prototypical Representations",
arXiv:2102.11271.

First a phase without the task's reward: prototypes shape the encoder and reward visiting what is
far from them. Then the encoder is kept and SAC learns the task on its features.
"""

from dataclasses import replace

from kstep.auxiliary.proto import ProtoConfig
from kstep.data.augment import Shift
from kstep.methods.base import ExplorationConfig, LearningConfig
from kstep.methods.ksl import SAC
from kstep.methods.sac import SAC_PIXEL
from kstep.nets.encoder import PixelEncoderConfig
from kstep.rl.sac import SACConfig

PROTO_RL = replace(
    SAC_PIXEL,
    base="proto_rl",
    augment=Shift(),
    core=replace(SAC, actor_encoder="share_convolutions"),
    auxiliary=ProtoConfig(turn="first", every=2),
    learning=LearningConfig(critic_trains="head"),
    exploration=ExplorationConfig(),
)

PROTO_RL_ORIGINAL = replace(
    PROTO_RL,
    variant="original",
    encoder=PixelEncoderConfig(tanh=False, init="orthogonal"),
    core=SACConfig(actor_encoder="share_convolutions", init="orthogonal"),
    learning=LearningConfig(critic_trains="head", batch_size=512, learning_rate=1e-4),
    exploration=ExplorationConfig(bonus=0.2),
    action_repeat=2,
    per_task={},
)
