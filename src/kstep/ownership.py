"""Who steps what: the optimizers' table and the list of slow copies of an agent.

The KSL paper's point is that the same encoder is stepped on the critic's loss and on the auxiliary
task's, by two optimizers with separate moments. What of it each of them trains follows from the
method's values alone; nothing else may be stepped by two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import nn

from kstep.auxiliary.base import AuxiliaryTask
from kstep.methods.base import Method
from kstep.nets.base import Encoder
from kstep.optimizers import Ema, Group
from kstep.rl.core import Core

Modules = dict[str, nn.Module | nn.Parameter]

SHARED = frozenset({"encoder", "convolutions", "borrowed"})
"""What several optimizers may step: the encoder, by whichever name, and borrowed Q-layers."""


def optimizer_groups(
    method: Method, encoder: Encoder, core: Core, auxiliary: AuxiliaryTask | None
) -> dict[str, Group]:
    """Return what each optimizer steps; `auxiliary` is None where that task is not trained."""
    groups = _groups(method, encoder, core, auxiliary)
    refuse_undeclared_sharing(groups)
    return groups


def _groups(
    method: Method, encoder: Encoder, core: Core, auxiliary: AuxiliaryTask | None
) -> dict[str, Group]:
    learning = method.learning
    trained: Modules = {}
    if learning.critic_trains == "all":
        trained = {"encoder": encoder}
    elif learning.critic_trains == "head":
        trained = {"head": encoder.stages()["head"]}
    critic = {**trained, "critic": core.critic}
    groups = {
        "critic": Group(critic, learning.learning_rate, learning.betas),
        **core.groups(learning),
    }
    if auxiliary is None or method.auxiliary is None:
        return groups
    if clash := {*groups, *SHARED, "head"} & set(auxiliary.learned()):
        raise ValueError(f"the auxiliary task must name its heads otherwise: {clash}")
    own = _auxiliary_group(method, encoder, core, auxiliary)
    if not method.auxiliary.one_optimizer:
        return {**groups, "auxiliary": own}
    heads = {name: module for name, module in own.modules.items() if name not in SHARED}
    groups["critic"] = replace(
        groups["critic"],
        modules={**critic, **heads},
        learning_rates=dict.fromkeys(heads, own.learning_rate),
        weight_decays=own.weight_decays,
    )
    return groups


def _auxiliary_group(
    method: Method, encoder: Encoder, core: Core, auxiliary: AuxiliaryTask
) -> Group:
    config, learning = method.auxiliary, method.learning
    assert config is not None
    rate, encoder_rate = config.learning_rate, config.encoder_learning_rate
    rate = learning.learning_rate if rate is None else rate
    encoder_rate = rate if encoder_rate is None else encoder_rate
    if config.double_step:
        encoder_rate += learning.learning_rate
    shaped: Modules = {"encoder": encoder}
    if auxiliary.sees == "features" and encoder.stages():
        shaped = {"convolutions": encoder.stages()["convolutions"]}
    rates = dict.fromkeys(shaped, encoder_rate)
    if borrowed := core.borrowed_layers(auxiliary.borrowed_layers):
        shaped["borrowed"] = nn.ModuleList(borrowed)
    modules = {**shaped, **auxiliary.learned()}
    return Group(modules, rate, learning.betas, rates, auxiliary.weight_decays())


def slow_copies(
    method: Method,
    encoder: Encoder,
    core: Core,
    auxiliary: AuxiliaryTask | None,
    slow_encoder: Encoder,
) -> list[Ema]:
    """Return what is a moving average of what: all that moves and has a slow copy."""
    rate, trains = method.encoder.ema_rate, method.learning.critic_trains
    copies = core.slow_copies()
    online, slow = encoder.stages(), slow_encoder.stages()
    of_critic = method.encoder.head_of_critic or method.core.head_of_critic
    # The head belongs to the critic where it is all that the critic trains, or where the authors
    # count it among the critic's layers (D46, D55).
    if trains == "head" or (of_critic and online):
        copies.append(Ema("head", slow["head"], online["head"], method.core.ema_rate))
        if trains == "all" or auxiliary is not None:
            name = "convolutions"
            copies.append(Ema(name, slow[name], online[name], rate))
    elif trains == "all" or auxiliary is not None:
        copies.append(Ema("encoder", slow_encoder, encoder, rate))
    return [*copies, *(auxiliary.slow_copies() if auxiliary is not None else ())]


def owners(groups: Mapping[str, Group]) -> dict[str, list[str]]:
    """Module name -> the optimizers that step it."""
    owners: dict[str, list[str]] = {}
    for name, group in groups.items():
        for module in group.modules:
            owners.setdefault(module, []).append(name)
    return owners


def refuse_undeclared_sharing(groups: Mapping[str, Group]) -> None:
    """Raise if two optimizers step a parameter that is not part of what may be shared."""
    seen: dict[int, str] = {}
    for name, group in groups.items():
        for key, parameter in group.named_parameters():
            place = f"{name}: {key}"
            if id(parameter) in seen and key.split(".")[0] not in SHARED:
                raise ValueError(f"{place} is also stepped as {seen[id(parameter)]}")
            seen[id(parameter)] = place
