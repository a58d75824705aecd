"""Add a trained agent to those that come with the package.

    python scripts/zoo.py RUN [--name NAME] [--episodes 20]

takes encoder and actor of the run's newest checkpoint, rounds them to half precision, evaluates
exactly what will be shipped, and writes src/kstep/zoo/NAME with its card. NAME is the task unless
given. The commit, the renderer and the processors in the card are those that the run recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shlex
import shutil
from pathlib import Path

import torch

from kstep import reading, zoo
from kstep.config import resolve
from kstep.files import Tree
from kstep.run import clock, policies, system
from kstep.run.evaluate import evaluate, evaluation_seeds
from kstep.run.folder import Run
from kstep.run.load import opened
from kstep.run.system import Machine
from kstep.types import KstepError
from kstep.values import difference, encode
from kstep.zoo import Card

LARGEST = 5_000_000
"""Bytes of one agent: all of them are in every installation."""


def add(run: Run, name: str, home: Path = zoo.HOME, episodes: int = 20) -> Path:
    """Write the agent's folder and return it; an agent of that name is refused."""
    if not re.fullmatch(r"[a-z0-9_-]+", name):
        raise KstepError(f"--name must have only a to z, 0 to 9, _ and -, not {name!r}")
    folder = home / name
    if folder.exists():
        raise KstepError(f"{folder} exists already; remove it to add the agent again")
    with opened(run.folder) as (agent, _, counts):
        weights = policies.packed(run, agent, counts, torch.float16)
    if len(weights) > LARGEST:
        raise KstepError(f"the policy has {len(weights):,} bytes, more than {LARGEST:,}")
    config = reading.contents(run.config_file)
    tree = Tree(folder)
    tree.make(folder)
    try:
        tree.write(folder / "config.json", config)
        tree.write(folder / "policy.safetensors", weights)
        with opened(folder, lanes=episodes) as (agent, lanes, _):
            result = evaluate(agent, lanes, evaluation_seeds(0, -1, episodes))
        last, history = run.evaluations()[-1], system.history(run.system_file)
        took = clock.spent(clock.ticks(run), counts.decisions)
        experiment = run.experiment
        card = Card(
            method=experiment.method.name,
            preset=experiment.preset,
            task=experiment.env.task,
            seed=experiment.seed,
            env_steps=counts.env_steps,
            decisions=counts.decisions,
            updates=counts.updates,
            returns=tuple(round(value, 3) for value in result.returns),
            return_in_training=round(last.mean, 3),
            command=command(run),
            kstep=history[-1].versions.get("kstep", "") if history else "",
            commits=tuple(dict.fromkeys(each.commit for each in history if each.commit)),
            rendering=tuple(dict.fromkeys(map(_renderer, history))),
            processors=tuple(dict.fromkeys(each.processor for each in history)),
            hours=None if took is None else round(took[0] / 3600, 2),
            digest=run.digest,
            sha256={
                "config.json": hashlib.sha256(config).hexdigest(),
                "policy.safetensors": hashlib.sha256(weights).hexdigest(),
            },
        )
        tree.write(folder / "README.md", card.text(name).encode())
        tree.write_json(folder / "card.json", encode(card))  # last: with it the agent exists
    except BaseException:
        shutil.rmtree(folder)
        raise
    return folder


def _renderer(machine: Machine) -> str:
    """Return what drew, without how long it took."""
    return machine.rendering.removeprefix("rendering: ").partition(", ")[0]


def command(run: Run) -> str:
    """Return the command that trains the same run."""
    experiment = run.experiment
    words = ["kstep", "train", experiment.method.name, experiment.env.task]
    words += ["--preset", experiment.preset, "--seed", str(experiment.seed)]
    words += ["--env-steps", str(experiment.env_steps)]
    plain = resolve(
        experiment.method.name,
        experiment.env.task,
        preset=experiment.preset,
        seed=experiment.seed,
        env_steps=experiment.env_steps,
    )
    for key, value, _ in difference(experiment, plain):
        words += ["--set", f"{key}={value}"]
    return shlex.join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", help="the task, unless given")
    parser.add_argument("--episodes", type=int, default=20)
    arguments = parser.parse_args()
    run = Run.open(arguments.run)
    folder = add(run, arguments.name or run.experiment.env.task, episodes=arguments.episodes)
    print((folder / "README.md").read_text())
    print(f"wrote {folder}: {sum(path.stat().st_size for path in folder.iterdir()):,} bytes")


if __name__ == "__main__":
    main()
