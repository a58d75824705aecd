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

ENCODER = PixelEncoderConfig(tanh=True, init="delta_orthogonal")
SAC = SACConfig(critic_views=1, actor_encoder="share_all", init="delta_orthogonal")
TASK = KSLConfig(k=3, augment=Shift())

KSL = Method(
    base="ksl",
    encoder=ENCODER,
    augment=Shift(),
    core=SAC,
    auxiliary=TASK,
    # The one task whose learning rate the paper lowers (D31).
    per_task={"cheetah_run": {"learning.learning_rate": 2e-4}},
)

RESULTS_SAC = replace(SAC, critic_views=2, actor_encoder="share_convolutions")
RESULTS_TASK = KSLConfig(
    k=3,
    reduce="sum",
    transition=DenseTransitionConfig(inputs=2, relu=False),
    augment=Shift(padding="zero"),
    sampling="released",
    learning_rate=1e-4,
    double_step=True,
)

KSL_RESULTS = replace(
    KSL,
    variant="results",
    encoder=replace(ENCODER, tanh=False),
    core=RESULTS_SAC,
    auxiliary=RESULTS_TASK,
)

KSL_RELEASED = replace(
    KSL_RESULTS,
    variant="released",
    encoder=replace(ENCODER, tanh=False, init="default"),
    core=replace(RESULTS_SAC, init="default"),
    auxiliary=replace(RESULTS_TASK, init="default", learning_rate=None, turn="first"),
)
