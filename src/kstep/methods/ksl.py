"""KSL in three readings: the paper's text, the code behind its figures, the code it released.

They differ in values only; `kstep show ksl --diff ksl-released` prints them. Where each value comes
from: docs/methods/ksl.md and the records in docs/decisions.
"""

from dataclasses import replace

from kstep.auxiliary.ksl import DenseTransitionConfig, KSLConfig
from kstep.data.augment import Shift
from kstep.methods.base import Method
from kstep.nets.encoder import PixelEncoderConfig
from kstep.rl.sac import SACConfig

KSL = Method(
    base="ksl",
    summary="k-Step Latent, as the paper's text describes it",
    encoder=PixelEncoderConfig(tanh=True, init="delta_orthogonal"),
    augment=Shift(),
    core=SACConfig(critic_views=1, actor_encoder="share_all", init="delta_orthogonal"),
    auxiliary=KSLConfig(k=3, augment=Shift()),
    # The one task whose learning rate the paper lowers (D31).
    per_task={"cheetah_run": {"learning.learning_rate": 2e-4}},
)

KSL_RESULTS = replace(
    KSL,
    variant="results",
    summary="k-Step Latent, as the authors' code stood when the paper's result figure was drawn",
    encoder=PixelEncoderConfig(tanh=False, init="delta_orthogonal"),
    core=SACConfig(critic_views=2, actor_encoder="share_convolutions", init="delta_orthogonal"),
    auxiliary=KSLConfig(
        k=3,
        reduce="sum",
        transition=DenseTransitionConfig(inputs=2, relu=False),
        init="delta_orthogonal",
        augment=Shift(padding="zero"),
        sampling="released",
        learning_rate=1e-4,
        double_step=True,
    ),
)

KSL_RELEASED = replace(
    KSL_RESULTS,
    variant="released",
    summary="k-Step Latent, as in the code its authors released",
    encoder=replace(KSL_RESULTS.encoder, init="default"),
    core=replace(KSL_RESULTS.core, init="default"),
    auxiliary=replace(
        KSL_RESULTS.auxiliary, init="default", learning_rate=None, turn="first"
    ),
)
