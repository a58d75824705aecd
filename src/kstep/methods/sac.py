"""Plain SAC from pixels and from state: what KSL adds is measured against these.

Both take every value they can from the text's reading of KSL, so that the comparison isolates the
augmentation and the auxiliary task (pixels) or the observation (state).
"""

from dataclasses import replace

from kstep.augment import AugmentConfig
from kstep.methods.ksl import KSL

SAC_PIXEL = replace(
    KSL,
    name="sac_pixel",
    summary="Soft Actor-Critic from pixels: no augmentation, no auxiliary task",
    augment=AugmentConfig(kind="none"),
    auxiliary=None,
    sequence_augment=AugmentConfig(kind="none"),
)

SAC_STATE = replace(
    SAC_PIXEL,
    name="sac_state",
    summary="Soft Actor-Critic from the simulator's state vector",
    observation="state",
    stack=1,
)
