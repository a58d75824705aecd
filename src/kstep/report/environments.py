"""The paper's table of environments, from the live ones, and a picture of the six tasks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kstep.analysis.curves import canvas, save
from kstep.analysis.tables import Row, write_both
from kstep.envs import PLANET, EnvConfig, make, spec_of
from kstep.report import paper
from kstep.types import Array

DECISIONS = 100
"""Random ones per task, to find out which rewards occur."""
PIXELS = 240


def write(output: Path) -> list[Path]:
    """Write the table, as CSV and as Markdown, and the picture."""
    rows, frames = zip(*(_inspect(task) for task in PLANET), strict=True)
    output.mkdir(parents=True, exist_ok=True)
    picture = output / "environments.png"
    shown = canvas(2.4 * len(frames), 2.7)
    for axes, row, frame in zip(shown.subplots(1, len(frames)), rows, frames, strict=True):
        axes.imshow(frame)
        axes.set(xticks=[], yticks=[], title=row["task"])
    save(shown, picture)
    return [*write_both(output / "environments", rows), picture]


def _inspect(task: str) -> tuple[Row, Array]:
    """Return a task's row beside the paper's, and an image of the start of an episode."""
    env = make(EnvConfig(task, action_repeat=1), 0)
    try:
        spec, rng, rewards = spec_of(env), np.random.default_rng(0), set()
        env.set_rendering(False)
        env.reset(seed=0)
        frame = env.film_frame(PIXELS, PIXELS)
        for _ in range(DECISIONS):
            _, reward, *_ = env.step(rng.uniform(-1.0, 1.0, spec.action_dim))
            rewards.add(reward)
    finally:
        env.close()
    theirs, repeat = paper.table("env")[task], PLANET[task]
    row: Row = {
        "task": task,
        "action_dim": spec.action_dim,
        "paper_action_dim": theirs["action_dim"],
        "action_repeat": repeat,
        "paper_action_repeat": theirs["action_repeat"],
        "decisions": -(-spec.episode_decisions // repeat),
        # Graded rewards show up soon; sparse ones are only ever 0 or 1.
        "rewards": "0 or 1" if rewards <= {0.0, 1.0} else "graded",
        "paper_reward": theirs["reward"],
    }
    return row, frame
