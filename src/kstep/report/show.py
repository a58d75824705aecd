"""`kstep show`: a method explained by its live agent: ownership, losses, slow copies, settings.

Everything printed here is read from the objects that train, so it cannot drift from them.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from kstep.agent import Agent
from kstep.bench.steps import spec_of
from kstep.config import Experiment, resolve
from kstep.optimizers import Group
from kstep.ownership import owners
from kstep.rng import Streams
from kstep.terminal import say, terminal
from kstep.values import difference, encode, flat


def show(method: str, diff: str | None, task: str, preset: str) -> None:
    """Print a method as it is on a task, or where another one differs."""
    console, left = terminal(120), resolve(method, task, preset=preset)
    if diff is None:
        show_method(left, console)
    else:
        show_difference(left, resolve(diff, task, preset=preset), console)


def show_method(experiment: Experiment, console: Console) -> None:
    """Print what a method consists of."""
    method = experiment.method
    agent = Agent(method, spec_of(experiment), Streams(0))  # shapes of cartpole_swingup
    say(console, Text.assemble((method.name, "bold"), f": {method.summary}"))
    say(console, f"one update: {' -> '.join(_turns(agent))}")
    for line in _schedule(experiment):
        say(console, line)
    console.print()
    console.print(_ownership(agent))
    console.print(_gradients(agent))
    console.print(_slow_copies(agent))
    say(console, "settings", "bold")
    for part in ("method", "env", "evaluation"):
        for key, value in flat(encode(getattr(experiment, part), complete=True), part):
            say(console, f"  {key} = {text(value)}")


def show_difference(left: Experiment, right: Experiment, console: Console) -> None:
    """Print where two methods differ."""
    one, other = left.method.name, right.method.name
    table = Table(Column("setting", no_wrap=True), one, other, highlight=False)
    for key, a, b in difference(left, right):
        if key not in ("method.base", "method.variant"):
            table.add_row(key, text(a), text(b))
    if table.row_count:
        console.print(table)
    else:
        say(console, f"{one} and {other} do not differ")


def text(value: Any) -> str:
    return "-" if value is None else str(value)


def _turns(agent: Agent) -> list[str]:
    """Return the parts of an update in order, with how often each is due."""
    method, auxiliary = agent.method, agent.method.auxiliary
    every = {
        "critic": 1,
        "actor": method.core.actor_every,
        "slow copies": method.learning.ema_every,
    }
    parts = list(every)
    if auxiliary is not None:
        every["auxiliary"] = auxiliary.every
        positions = {"first": 0, "after critic": 1, "last": len(parts)}
        parts.insert(positions[auxiliary.turn], "auxiliary")
    return [part + (f" (every {every[part]} updates)" if every[part] > 1 else "") for part in parts]


def _schedule(experiment: Experiment) -> list[str]:
    """Return what is special at the start of learning and between phases."""
    learning, exploration = experiment.method.learning, experiment.method.exploration
    auxiliary = experiment.method.auxiliary
    lines = [f"before learning: {learning.initial_decisions:,} random decisions"]
    if auxiliary is not None and auxiliary.pretraining:
        lines.append(f"first: {auxiliary.pretraining:,} updates of the auxiliary task alone")
    if learning.burst:
        lines.append(f"first: {learning.burst:,} complete updates in a row")
    if exploration is not None:
        bonus = f" plus {exploration.bonus:g} of the bonus" if exploration.bonus else ""
        lines.append(
            f"phase 1: {exploration.env_steps or 0:,} env steps, rewarded by the auxiliary task; "
            "phase 2: keep encoder, auxiliary task and actor, reinitialise the rest; the "
            f"environment's reward{bonus}"
        )
    return lines


def _ownership(agent: Agent) -> Table:
    table = Table("network", "parameters", "stepped by", "learning rate", title="who owns what")
    for module, names in owners(agent.optimizers.groups).items():
        groups = [agent.optimizers.groups[name] for name in names]
        count = _size(groups[0], module)
        if count:
            rates = ", ".join(f"{group.rate(module):g}" for group in groups)
            table.add_row(module, f"{count:,}", ", ".join(names), rates)
    return table


def _gradients(agent: Agent) -> Table:
    table = Table("loss", "moves", "leaves alone", title="which loss reaches what")
    every = list(owners(agent.optimizers.groups))
    for name, group in agent.optimizers.groups.items():
        moved = [module for module in every if module in group.modules and _size(group, module)]
        rest = [m for m in every if m not in group.modules]
        table.add_row(name, ", ".join(moved), ", ".join(rest))
    return table


def _size(group: Group, module: str) -> int:
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
