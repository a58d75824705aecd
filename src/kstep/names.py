"""The names of methods and presets with a line about each, without importing what is behind them.

`kstep list` prints them and a wrong name is refused at once: PyTorch, which the declarations in
`methods/` and `config.py` need, takes seconds to import. Both must have exactly these names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from kstep import plugins
from kstep.errors import KstepError
from kstep.values import near

METHOD_SUMMARIES = {
    "ksl": "k-Step Latent, as the paper's text describes it",
    "ksl-results": "k-Step Latent, as in the authors' code when the paper's result figure was made",
    "ksl-released": "k-Step Latent, as in the code its authors released",
    "rad": "RAD: Soft Actor-Critic on random crops",
    "drq": "DrQ: Soft Actor-Critic, two shifted views in the critic's loss",
    "curl": "CURL: random crops and a contrastive task",
    "sac_ae": "SAC-AE: Soft Actor-Critic and a reconstruction task",
    "sac_state": "Soft Actor-Critic from the simulator's state vector",
    "sac_pixel": "Soft Actor-Critic from pixels: no augmentation, no auxiliary task",
    "pi_sac": "PI-SAC: Soft Actor-Critic and compressed predictive information",
    "proto_rl": "Proto-RL: prototypes and exploration first, then the task on the kept encoder",
    "rad-original": "RAD with its authors' settings",
    "drq-original": "DrQ with its authors' settings",
    "curl-original": "CURL with its authors' settings",
    "sac_ae-original": "SAC-AE with its authors' settings",
    "sac_state-original": "Soft Actor-Critic from state, settings behind the paper's column",
    "sac_pixel-original": "SAC-AE's code without its decoder: Soft Actor-Critic from pixels",
    "pi_sac-original": "PI-SAC with its authors' networks, pretraining and action repeats",
    "proto_rl-original": "Proto-RL with its authors' settings",
    "drq_v2": "DrQ-v2: deterministic policy gradients on shifts, n-step returns, falling noise",
    "ksl_drq_v2": "k-Step Latent beside DrQ-v2",
    "dqn": "Deep Q-learning for discrete actions: double, dueling, n-step returns, shifts",
    "ksl_dqn": "k-Step Latent beside deep Q-learning",
    **{
        f"ksl-k{k}-l{layers}": f"KSL, k = {k}, {layers} shared critic layers"
        for k in (1, 3, 5)
        for layers in (0, 1, 2)
        if (k, layers) != (3, 0)  # that is `ksl` itself
    },
    "ksl-conv": "KSL, a convolutional transition model",
    "ksl-one-optimizer": "KSL, one optimizer for both losses",
    "ksl-no-augmentation": "KSL, no augmentation",
    "ksl-no-projection": "KSL, no projection",
    "ksl-two-views": "KSL, two views in the critic's loss",
}

ENCODER_SUMMARIES = {
    "convolutional": "The paper's: four 3x3 convolutions, a linear layer, LayerNorm.",
    "compact": "The same with a second stride of 2, as the preset cpu has it.",
    "impala": "The residual network of IMPALA.",
    "minatar": "One 3x3 convolution for images of 10x10, as MinAtar's authors have it.",
    "state": "None: state vectors as they are.",
}
"""What `method.encoder.kind` may be."""

PRESET_SUMMARIES = {
    "paper": "The paper's sizes.",
    "cpu": "The compact encoder: a second stride of 2, about a third of the arithmetic.",
    "debug": "The whole pipeline in seconds. Learns nothing worth looking at.",
}


def methods() -> dict[str, str]:
    """Return every method with a line about it: ours, those that installed packages name, and those
    that were registered in this process."""
    registry = sys.modules.get("kstep.methods")
    registered = {} if registry is None else registry.METHODS
    others = {name: f"from {package}" for name, package in plugins.methods().items()}
    for name, method in registered.items():
        if name not in METHOD_SUMMARIES:
            source = others.get(name, "registered in this process")
            others[name] = f"{method.summary} ({source})" if method.summary else source
    return METHOD_SUMMARIES | others


def encoders() -> dict[str, str]:
    """Return every encoder with a line about it, those that were registered in this process too."""
    base = sys.modules.get("kstep.nets.base")
    kinds = {} if base is None else base.EncoderConfig.kinds
    others = {
        name: f"{(kind.__doc__ or '').partition(chr(10))[0]} ({kind.__module__})".strip()
        for name, kind in kinds.items()
        if name not in ENCODER_SUMMARIES
    }
    return ENCODER_SUMMARIES | others


def check_method(name: str) -> None:
    """Raise if no method has this name."""
    if name not in methods():
        plugins.load_modules()
    require(name, methods(), "method", plugins.complaints())


def require(name: str, known: Iterable[str], what: str, more: str = "") -> None:
    """Raise if `name` is not one of the known ones, with the nearest of them."""
    known = list(known)
    if name not in known:
        hint, listed = near(name, known), f"{what.title()}s: {', '.join(known)}"
        raise KstepError(f"unknown {what} '{name}'.{hint} {listed}{more}")
