"""Proto-RL: Yarats et al. 2021, "Reinforcement Learning with Prototypical Representations",
arXiv:2102.11271.

First a phase without the task's reward: prototypes shape the encoder and reward visiting what is
far from them. Then the encoder is kept and SAC learns the task on its features.
"""

from dataclasses import replace

from kstep.auxiliary.proto import ProtoConfig
from kstep.methods.base import ExplorationConfig, LearningConfig, Part
from kstep.methods.ksl import SHIFT
from kstep.methods.sac import SAC_PIXEL
from kstep.nets.encoder import EncoderConfig
from kstep.rl.sac import SACConfig

ORDER: tuple[Part, ...] = ("auxiliary", "critic", "actor", "slow")

PROTO_RL = replace(
    SAC_PIXEL,
    name="proto_rl",
    summary="Proto-RL: prototypes and exploration first, the task on a kept encoder second",
    augment=SHIFT,
    sac=replace(SAC_PIXEL.sac, actor_encoder="share_convolutions"),
    auxiliary=ProtoConfig(),
    learning=LearningConfig(encoder_learns_from="auxiliary", auxiliary_every=2, order=ORDER),
    exploration=ExplorationConfig(),
)

PROTO_RL_ORIGINAL = replace(
    PROTO_RL,
    name="proto_rl-original",
    summary="Proto-RL with its authors' settings",
    encoder=EncoderConfig(tanh=False, init="orthogonal"),
    sac=SACConfig(actor_encoder="share_convolutions", init="orthogonal"),
    learning=replace(PROTO_RL.learning, batch_size=512, learning_rate=1e-4),
    exploration=ExplorationConfig(bonus=0.2),
)
