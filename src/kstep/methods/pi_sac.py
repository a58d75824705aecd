"""PI-SAC: Lee et al. 2020, "Predictive Information Accelerates Learning in RL", arXiv:2007.12401.

SAC plus a compressed predictive-information task between now and three decisions ahead. Both
losses see the same windows under the same views.
"""

from dataclasses import replace

from kstep.auxiliary.ceb import CEBConfig
from kstep.data.augment import Shift
from kstep.methods.base import LearningConfig
from kstep.methods.ksl import SAC
from kstep.methods.sac import SAC_PIXEL
from kstep.nets.encoder import PixelEncoderConfig
from kstep.rl.sac import SACConfig

TASKS = {
    # What its authors used: action repeat, random decisions, pretraining updates.
    "finger_spin": (1, 10_000, 0),
    "cartpole_swingup": (4, 1_000, 5_000),
    "reacher_easy": (4, 1_000, 5_000),
    "cheetah_run": (4, 10_000, 10_000),
    "walker_walk": (2, 10_000, 10_000),
    "ball_in_cup_catch": (4, 1_000, 5_000),
}

PI_SAC = replace(
    SAC_PIXEL,
    base="pi_sac",
    augment=Shift(padding="mirror"),
    core=replace(SAC, actor_latent="reused"),
    # The KSL paper adjusts networks, hyperparameters and environments only: it pretrains (D48).
    auxiliary=CEBConfig(turn="last", pretraining=5000),
    per_task={
        task: {
            **SAC_PIXEL.per_task.get(task, {}),
            "auxiliary.pretraining": pretraining,
        }
        for task, (_, _, pretraining) in TASKS.items()
    },
)

PI_SAC_ORIGINAL = replace(
    PI_SAC,
    variant="original",
    encoder=PixelEncoderConfig(tanh=False, activation="frn", ema_rate=0.005, init="glorot"),
    core=SACConfig(
        hidden=256,
        ema_rate=0.005,
        actor_every=1,
        log_std_bounds=None,
        actor_latent="reused",
        critic_scale=0.5,
        initial_temperature=1.0,
        target_entropy=-0.5,
        temperature_loss="log",
        temperature_sample="fresh",
        init="glorot",
    ),
    auxiliary=CEBConfig(turn="last", pretraining=5000),
    learning=LearningConfig(batch_size=256, learning_rate=3e-4, ema_every=1),
    per_task={
        task: {
            "action_repeat": repeat,
            "learning.initial_decisions": initial,
            "auxiliary.pretraining": pretraining,
        }
        for task, (repeat, initial, pretraining) in TASKS.items()
    },
)
