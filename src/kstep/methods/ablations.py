"""Ablations of KSL, each one change away from the text's reading.

The grid over k and l, the convolutional transition and the single optimizer are the paper's own; no
augmentation, no projection and two views are ours.
"""

from dataclasses import replace

from kstep.augment import AugmentConfig
from kstep.auxiliary.ksl import KSLConfig
from kstep.methods.base import Method
from kstep.methods.ksl import KSL


def variant(name: str, summary: str, **changes: object) -> Method:
    """Return KSL with another name and some changed parts."""
    return replace(KSL, name=f"ksl-{name}", summary=f"KSL, {summary}", **changes)  # type: ignore[arg-type]


NONE = AugmentConfig(kind="none")

GRID = [
    variant(
        f"k{k}-l{l}",
        f"k = {k}, {l} shared critic layers",
        auxiliary=KSLConfig(k=k, knowledge_sharing=l),
    )
    for k in (1, 3, 5)
    for l in (0, 1, 2)  # noqa: E741 - the paper's letter
    if (k, l) != (3, 0)  # that is `ksl` itself
]

ABLATIONS = [
    *GRID,
    variant(
        "conv",
        "a convolutional transition model",
        encoder=replace(KSL.encoder, head="convolutional"),
        sac=replace(KSL.sac, actor_encoder="share_convolutions"),
        auxiliary=KSLConfig(transition="convolutional"),
    ),
    variant(
        "one-optimizer",
        "one optimizer for both losses",
        learning=replace(KSL.learning, one_optimizer=True),
    ),
    variant("no-augmentation", "no augmentation", augment=NONE, sequence_augment=NONE),
    variant("no-projection", "no projection", auxiliary=KSLConfig(projection=False)),
    variant("two-views", "two views in the critic's loss", sac=replace(KSL.sac, critic_views=2)),
]
