"""DrQ-v2: Yarats, Fergus, Lazaric, Pinto 2021, "Mastering Visual Continuous Control: Improved
Data-Augmented Reinforcement Learning", arXiv:2107.09645; and KSL beside it.

The KSL paper does not compare with DrQ-v2, so there is one setting: its authors' (D54).
"""

from dataclasses import replace

from kstep.data.augment import Shift
from kstep.methods.base import LearningConfig, Method
from kstep.methods.ksl import TASK
from kstep.nets.encoder import PixelEncoderConfig
from kstep.rl.ddpg import DDPGConfig

DRQ_V2 = Method(
    base="drq_v2",
    encoder=PixelEncoderConfig(tanh=True, centred=True, init="orthogonal"),
    augment=Shift(),
    core=DDPGConfig(),
    learning=LearningConfig(
        batch_size=256,
        replay_capacity=1_000_000,
        learning_rate=1e-4,
        ema_every=1,
        initial_decisions=2000,
        update_every=2,
    ),
    action_repeat=2,
    per_task={
        "reacher_easy": {"core.noise.decisions": 500_000},
        "cheetah_run": {"core.noise.decisions": 500_000},
        "walker_walk": {"core.n_step": 1, "learning.batch_size": 512},
    },
)

KSL_DRQ_V2 = replace(DRQ_V2, base="ksl_drq_v2", auxiliary=TASK)
