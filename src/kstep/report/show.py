"""Explaining a method from the live agent: who owns what, what moves what, what follows what.

Everything printed here is read from the objects that train, so it cannot drift from them.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Column, Table

from kstep.agent import Agent
from kstep.config import Experiment
from kstep.rng import Streams
from kstep.types import EnvSpec
from kstep.values import difference, encode
from kstep.values import flat as flat_values


def example_spec(experiment: Experiment) -> EnvSpec:
    """The shapes of cartpole_swingup; enough to build an agent without a simulator."""
    size = experiment.env.size
    pixels = experiment.method.observation == "pixels"
    shape = (size, size, 3) if pixels else (5,)
    return EnvSpec(experiment.method.observation, shape, 1, 8, 125)


def show_method(experiment: Experiment, console: Console) -> None:
    """Print what a method consists of."""
    method = experiment.method
    agent = Agent(method, example_spec(experiment), Streams(0))
    console.print(f"[bold]{method.name}[/]: {method.summary}", highlight=False, soft_wrap=True)
    console.print(f"one update: {' -> '.join(_turns(agent))}", highlight=False, soft_wrap=True)
    for line in _schedule(experiment):
        console.print(line, highlight=False, soft_wrap=True)
    console.print()
    console.print(_ownership(agent))
    console.print(_gradients(agent))
    console.print(_slow_copies(agent))
    console.print("[bold]settings[/]")
    for part in ("method", "env", "evaluation"):
        for key, value in flat(getattr(experiment, part), part):
            console.print(f"  {key} = {value}", highlight=False, soft_wrap=True)


def show_difference(left: Experiment, right: Experiment, console: Console) -> None:
    """Print where two methods differ."""
    rows = [
        (key, a, b)
        for key, a, b in difference(left, right)
        if key not in ("method.base", "method.variant")
    ]
    if not rows:
        console.print(f"{left.method.name} and {right.method.name} do not differ")
        return
    table = Table(
        Column("setting", no_wrap=True), left.method.name, right.method.name, highlight=False
    )
    for key, a, b in rows:
        table.add_row(key, text(a), text(b))
    console.print(table)


def flat(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Return every setting as (dotted key, text)."""
    return [(key, text(setting)) for key, setting in flat_values(encode(value), prefix)]


def text(value: Any) -> str:
    return "-" if value is None else str(value)


def _turns(agent: Agent) -> list[str]:
    """The parts of an update in order, with how often their turn comes."""
    method, auxiliary = agent.method, agent.method.auxiliary
    every = {
        "critic": 1,
        "actor": method.core.actor_every,
        "slow copies": method.learning.ema_every,
    }
    parts = list(every)
    if auxiliary is not None:
        every["auxiliary"] = auxiliary.every
        places = {"first": 0, "after critic": 1, "last": len(parts)}
        parts.insert(places[auxiliary.turn], "auxiliary")
    return [part + (f" (every {every[part]} updates)" if every[part] > 1 else "") for part in parts]


def _schedule(experiment: Experiment) -> list[str]:
    """What happens at the start of learning and between phases, where anything does."""
    learning, exploration = experiment.method.learning, experiment.method.exploration
    auxiliary = experiment.method.auxiliary
    lines = [f"before learning: {learning.initial_decisions:,} random decisions"]
    if auxiliary is not None and auxiliary.pretraining:
        lines.append(f"first: {auxiliary.pretraining:,} updates of the auxiliary task alone")
    if learning.burst:
        lines.append(f"first: {learning.burst:,} whole updates in a row")
    if exploration is not None:
        bonus = f" plus {exploration.bonus:g} of the bonus" if exploration.bonus else ""
        lines.append(
            f"phase 1: {exploration.env_steps or 0:,} env steps, rewarded by the task's own bonus; "
            f"phase 2: encoder and task kept, actor kept, all else anew, the task's reward{bonus}"
        )
    return lines


def _ownership(agent: Agent) -> Table:
    table = Table("network", "parameters", "stepped by", "learning rate", title="who owns what")
    for module, owners in agent.optimizers.owners().items():
        groups = [agent.optimizers.groups[owner] for owner in owners]
        count = sum(
            parameter.numel()
            for key, parameter in groups[0].named_parameters()
            if key.split(".")[0] == module
        )
        if count:
            rates = ", ".join(f"{group.rate(module):g}" for group in groups)
            table.add_row(module, f"{count:,}", ", ".join(owners), rates)
    return table


def _gradients(agent: Agent) -> Table:
    table = Table("loss", "moves", "leaves alone", title="which loss reaches what")
    every = list(agent.optimizers.owners())
    for name, group in agent.optimizers.groups.items():
        moved = [module for module in every if module in group.modules and _size(group, module)]
        rest = [m for m in every if m not in group.modules]
        table.add_row(name, ", ".join(moved), ", ".join(rest))
    return table


def _size(group: Any, module: str) -> int:
    return sum(p.numel() for key, p in group.named_parameters() if key.split(".")[0] == module)


def _slow_copies(agent: Agent) -> Table:
    table = Table("slow copy", "follows", "rate", title="what is a moving average of what")
    for ema in agent.slow_copies:
        if any(True for _ in ema.slow.parameters()):
            table.add_row(f"slow_{ema.name}", ema.name, f"{ema.rate:g}")
    if agent.auxiliary is not None and agent.auxiliary.slow_encoder_rate is not None:
        rate = agent.auxiliary.slow_encoder_rate
        table.add_row("the auxiliary task's own", "encoder", f"{rate:g}")
    return table
