"""Ablations of KSL, each one change away from the text's reading.

The grid over k and l, the convolutional transition and the single optimizer are the paper's own; no
augmentation, no projection and two views are ours.
"""

from dataclasses import replace
from typing import Any

from kstep.auxiliary.ksl import KSLConfig
from kstep.auxiliary.ksl_transitions import ConvolutionalTransitionConfig, SharedTransitionConfig
from kstep.data.augment import NoAugment
from kstep.methods.base import Method
from kstep.methods.ksl import ENCODER, KSL, SAC, TASK


def variant(name: str, **changes: Any) -> Method:
    """Return KSL with another name and some changed parts."""
    return replace(KSL, variant=name, **changes)


def cell(k: int, layers: int) -> KSLConfig:
    """Return KSL's task with another k and, if any, layers shared with the critic."""
    task = replace(TASK, k=k)
    return replace(task, transition=SharedTransitionConfig(layers)) if layers else task


GRID = [
    variant(f"k{k}-l{l}", auxiliary=cell(k, l))
    for k in (1, 3, 5)
    for l in (0, 1, 2)  # noqa: E741 - the paper's letter
    if (k, l) != (3, 0)  # that is `ksl` itself
]

ABLATIONS = [
    *GRID,
    variant(
        "conv",
        encoder=replace(ENCODER, head="convolutional"),
        core=replace(SAC, actor_encoder="share_convolutions"),
        auxiliary=replace(TASK, transition=ConvolutionalTransitionConfig()),
    ),
    variant("one-optimizer", auxiliary=replace(TASK, one_optimizer=True)),
    variant(
        "no-augmentation",
        augment=NoAugment(),
        auxiliary=replace(TASK, augment=NoAugment()),
    ),
    variant("no-projection", auxiliary=replace(TASK, projection_hidden=None)),
    variant("two-views", core=replace(SAC, critic_views=2)),
]
