"""CURL: Laskin, Srinivas, Abbeel 2020, "Contrastive Unsupervised Representations for
Reinforcement Learning", arXiv:2004.04136.

RAD's random crops plus a contrastive task between two crops of one observation.
"""

from dataclasses import replace

from kstep.auxiliary.curl import CURLConfig
from kstep.data.crop import Crop
from kstep.methods.base import LearningConfig
from kstep.methods.rad import RAD, RAD_ORIGINAL

CURL = replace(
    RAD,
    base="curl",
    auxiliary=CURLConfig(turn="last"),
)

CURL_ORIGINAL = replace(
    RAD_ORIGINAL,
    base="curl",
    augment=Crop(last_offset=False),
    # Two Adams at 1e-3 step the encoder with the same gradient, on every task.
    auxiliary=CURLConfig(turn="last", learning_rate=1e-3, encoder_learning_rate=2e-3),
    learning=LearningConfig(batch_size=512),
    per_task={"cheetah_run": {"learning.learning_rate": 2e-4}},
)
