"""Plain SAC from pixels and from state: what the others add is measured against these.

The controlled settings take every value they can from the text's reading of KSL, so that a
comparison isolates the augmentation and the auxiliary task (pixels) or the observation (state).
The original of SAC from pixels is SAC-AE without its decoder: see methods/sac_ae.py.
"""

from dataclasses import replace

from kstep.data.augment import NoAugment
from kstep.methods.base import LearningConfig
from kstep.methods.ksl import KSL
from kstep.nets.state import StateEncoderConfig
from kstep.rl.sac import SACConfig

SAC_PIXEL = replace(
    KSL,
    base="sac_pixel",
    augment=NoAugment(),
    auxiliary=None,
)

SAC_STATE = replace(
    SAC_PIXEL,
    base="sac_state",
    encoder=StateEncoderConfig(),
    stack=1,
)

SAC_STATE_ORIGINAL = replace(
    SAC_STATE,
    variant="original",
    core=SACConfig(log_std_bounds=(-5.0, 2.0), ema_rate=0.005, actor_every=1, init="orthogonal"),
    learning=LearningConfig(
        batch_size=1024, replay_capacity=1_000_000, learning_rate=1e-4, initial_decisions=5000
    ),
    action_repeat=1,
    per_task={},
)
