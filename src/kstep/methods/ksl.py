"""KSL in three readings: the paper's text, the code behind its figures, the code it released.

They differ in values only; `kstep show ksl --diff ksl-released` prints them. Where each value comes
from: docs/methods/ksl.md and the records in docs/decisions.
"""

from dataclasses import replace

from kstep.augment import AugmentConfig
from kstep.auxiliary.ksl import KSLConfig
from kstep.methods.base import LearningConfig, Method
from kstep.nets.encoder import EncoderConfig
from kstep.rl.sac import SACConfig

SHIFT = AugmentConfig(kind="shift", pad=4, padding="replicate")

KSL = Method(
    name="ksl",
    summary="k-Step Latent, as the paper's text describes it",
    encoder=EncoderConfig(tanh=True, init="delta_orthogonal"),
    augment=SHIFT,
    sac=SACConfig(critic_views=1, actor_encoder="share_all", init="delta_orthogonal"),
    auxiliary=KSLConfig(k=3),
    sequence_augment=SHIFT,
)

KSL_RESULTS = replace(
    KSL,
    name="ksl-results",
    summary="k-Step Latent, as the authors' code stood when the paper's result figure was drawn",
    encoder=EncoderConfig(tanh=False, init="delta_orthogonal"),
    sac=SACConfig(critic_views=2, actor_encoder="share_convolutions", init="delta_orthogonal"),
    auxiliary=KSLConfig(
        k=3, reduce="sum", transition_inputs=2, transition_relu=False, init="delta_orthogonal"
    ),
    sequence_augment=replace(SHIFT, padding="zero"),
    sequence_rule="released",
    learning=LearningConfig(auxiliary_learning_rate=1e-4, encoder_double_step=True),
)

KSL_RELEASED = replace(
    KSL_RESULTS,
    name="ksl-released",
    summary="k-Step Latent, as in the code its authors released",
    encoder=replace(KSL_RESULTS.encoder, init="default"),
    sac=replace(KSL_RESULTS.sac, init="default"),
    auxiliary=KSLConfig(
        k=3, reduce="sum", transition_inputs=2, transition_relu=False, init="default"
    ),
    learning=LearningConfig(
        encoder_double_step=True, order=("auxiliary", "critic", "actor", "slow")
    ),
)
