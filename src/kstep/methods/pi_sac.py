"""PI-SAC: Lee et al. 2020, "Predictive Information Accelerates Learning in RL", arXiv:2007.12401.

SAC plus a compressed predictive-information task between now and three decisions ahead. Both
losses see the same windows under the same views.
"""

from dataclasses import replace

from kstep.augment import AugmentConfig
from kstep.auxiliary.ceb import CEBConfig
from kstep.methods.base import LearningConfig
from kstep.methods.curl import ORDER
from kstep.methods.sac import SAC_PIXEL
from kstep.nets.encoder import EncoderConfig
from kstep.rl.sac import SACConfig

MIRRORED = AugmentConfig(kind="shift", pad=4, padding="mirror")

PI_SAC = replace(
    SAC_PIXEL,
    name="pi_sac",
    summary="PI-SAC: Soft Actor-Critic and compressed predictive information",
    augment=MIRRORED,
    sac=replace(SAC_PIXEL.sac, actor_latent="reused"),
    auxiliary=CEBConfig(),
    sequence_augment=MIRRORED,
    # The KSL paper adjusts networks, hyperparameters and environments only: it pretrains (D48).
    learning=LearningConfig(order=ORDER, aligned=True, pretraining=5000),
)

PI_SAC_ORIGINAL = replace(
    PI_SAC,
    name="pi_sac-original",
    summary="PI-SAC with its authors' networks, pretraining and action repeats",
    encoder=EncoderConfig(tanh=False, activation="frn", init="glorot"),
    sac=SACConfig(
        hidden=256,
        log_std_bounds=None,
        initial_temperature=1.0,
        actor_latent="reused",
        critic_scale=0.5,
        target_entropy=-0.5,
        temperature_loss="log",
        temperature_sample="fresh",
        init="glorot",
    ),
    learning=LearningConfig(
        batch_size=256,
        learning_rate=3e-4,
        critic_ema_rate=0.005,
        encoder_ema_rate=0.005,
        ema_every=1,
        actor_every=1,
        order=ORDER,
        aligned=True,
        pretraining=5000,
    ),
)

TASKS = {
    # task: action repeat, initial decisions, pretraining updates
    "finger_spin": (1, 10_000, 0),
    "cartpole_swingup": (4, 1_000, 5_000),
    "reacher_easy": (4, 1_000, 5_000),
    "cheetah_run": (4, 10_000, 10_000),
    "walker_walk": (2, 10_000, 10_000),
    "ball_in_cup_catch": (4, 1_000, 5_000),
}
"""What its authors used per task."""
