"""Deep Q-learning for discrete actions, and KSL beside it.

DrQ's agent for 100,000 decisions of Atari (Kostrikov, Yarats, Fergus 2020, "Image Augmentation Is
All You Need", arXiv:2004.13649), exploring as in Agarwal et al. 2021 (arXiv:2108.13264), on KSL's
encoder and with KSL's slow copies (D60).
"""

from dataclasses import replace

from kstep.data.augment import NoAugment, Shift
from kstep.envs.tasks import MINATAR
from kstep.methods.base import LearningConfig, Method
from kstep.methods.ksl import ENCODER, TASK
from kstep.nets.trunks import MinAtarConfig
from kstep.rl.dqn import DQNConfig

SMALL = {
    # Ten by ten cells of which each means something, velocities among them: no shift, no stack.
    "stack": 1,
    "encoder": MinAtarConfig(),
    "augment": NoAugment(),
    "core.hidden": 128,
}

DQN = Method(
    base="dqn",
    stack=4,
    encoder=ENCODER,
    augment=Shift(),
    core=DQNConfig(),
    learning=LearningConfig(batch_size=32, learning_rate=1e-4, initial_decisions=1600),
    per_task=dict.fromkeys(MINATAR, SMALL),
)

KSL_DQN = replace(
    DQN,
    base="ksl_dqn",
    auxiliary=TASK,
    per_task={game: {**SMALL, "auxiliary.augment": NoAugment()} for game in MINATAR},
)
