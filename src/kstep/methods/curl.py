"""CURL: Laskin, Srinivas, Abbeel 2020, "Contrastive Unsupervised Representations for
Reinforcement Learning", arXiv:2004.04136.

RAD's random crops plus a contrastive task between two crops of one observation.
"""

from dataclasses import replace

from kstep.augment import AugmentConfig
from kstep.auxiliary.curl import CURLConfig
from kstep.methods.base import LearningConfig, Part
from kstep.methods.rad import RAD, RAD_ORIGINAL

ORDER: tuple[Part, ...] = ("critic", "actor", "slow", "auxiliary")

CURL = replace(
    RAD,
    name="curl",
    summary="CURL: random crops and a contrastive task",
    auxiliary=CURLConfig(),
    learning=LearningConfig(order=ORDER),
)

CURL_ORIGINAL = replace(
    RAD_ORIGINAL,
    name="curl-original",
    summary="CURL with its authors' settings",
    augment=AugmentConfig(kind="crop", pad=8, last_offset=False),
    auxiliary=CURLConfig(),
    learning=replace(
        RAD_ORIGINAL.learning,
        batch_size=512,
        order=ORDER,
        # Two Adams at 1e-3 step the encoder with the same gradient, on every task.
        auxiliary_learning_rate=1e-3,
        encoder_auxiliary_learning_rate=2e-3,
    ),
)
