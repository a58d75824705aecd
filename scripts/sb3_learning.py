"""Does KSL help Stable-Baselines3's SAC on our own pixel task? Every evaluation, and a figure.

    python scripts/sb3_learning.py --out docs/results/sb3_toy_reach

Fixed before the first run: `toy_reach`, one frame of 36 pixels, 8,000 decisions, seeds 1, 2, 3; SAC
with CnnPolicy at the size of our own learning tests (below), everything else Stable-Baselines3's
default, without KSL and with `KSLCallback(actor=True)`, which trains the extractors of actor and
critic. Added when two of those three runs had not begun to learn, because KSL had made the latents
of the actor's extractor all alike: `KSLCallback()`, which trains the critic's alone. Evaluated
before the first decision and after every 1,000: the greedy return of 20 episodes, whose starts are
the same each time. Shown: the mean over seeds, and each seed.

Writes <out>.csv (one row per evaluation episode) and <out>.png, prints a table. What the CSV has
already is not run again, so an interrupted command can be repeated. All nine runs take about three
quarters of an hour on one free core: 3 minutes each without KSL, 5 and 8 with it.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

from kstep import style
from kstep.analysis.curves import canvas, save
from kstep.envs import EnvConfig, make
from kstep.files import write_atomically
from kstep.interop.stable_baselines3 import KSLCallback

DECISIONS, EVERY, EPISODES, SEEDS = 8_000, 1_000, 20, (1, 2, 3)
ARMS = {"sac": "sac_pixel", "sac+ksl": "ksl", "sac+ksl (actor too)": "ksl-results"}
"""What is compared, and the method of ours whose colour it has."""
SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-3,
    "buffer_size": DECISIONS,
    "learning_starts": 300,
    "batch_size": 32,
    "policy_kwargs": {
        "net_arch": [128, 128],
        "features_extractor_kwargs": {"features_dim": 32},
    },
}
FIELDS = ("arm", "seed", "decisions", "episode", "return")
Row = tuple[str, int, int, int, float]


def environment(seed: int) -> Monitor[Any, Any]:
    return Monitor(make(EnvConfig("toy_reach", size=36), seed))


class Evaluations(BaseCallback):
    """Keeps the returns at every mark."""

    def __init__(self) -> None:
        super().__init__()
        self.returns: dict[int, list[float]] = {}

    def evaluate(self) -> None:
        found, _ = evaluate_policy(
            self.model, environment(1000), n_eval_episodes=EPISODES, return_episode_rewards=True
        )
        assert isinstance(found, list)
        self.returns[self.model.num_timesteps] = found

    def _on_training_start(self) -> None:
        self.evaluate()

    def _on_step(self) -> bool:
        if self.model.num_timesteps % EVERY == 0:
            self.evaluate()
        return True


def run(arm: str, seed: int, decisions: int) -> list[Row]:
    model = SAC("CnnPolicy", environment(seed), seed=seed, device="cpu", **SETTINGS)
    evaluations = Evaluations()
    callbacks: list[BaseCallback] = [evaluations]
    if arm != "sac":
        callbacks.append(KSLCallback(actor=arm != "sac+ksl"))
    model.learn(decisions, callback=callbacks)
    return [
        (arm, seed, mark, episode, round(value, 4))
        for mark, returns in evaluations.returns.items()
        for episode, value in enumerate(returns)
    ]


def read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            (
                row["arm"],
                int(row["seed"]),
                int(row["decisions"]),
                int(row["episode"]),
                float(row["return"]),
            )
            for row in csv.DictReader(file)
        ]


def means(rows: list[Row], arm: str, seed: int) -> dict[int, float]:
    """The mean return of one run by decisions."""
    marks = sorted({row[2] for row in rows if row[:2] == (arm, seed)})
    return {
        mark: float(np.mean([row[4] for row in rows if row[:3] == (arm, seed, mark)]))
        for mark in marks
    }


def draw(rows: list[Row], path: Path) -> None:
    figure = canvas(7.2, 4.2)
    axes, looks = figure.subplots(), style.looks(ARMS.values())
    for arm, like in ARMS.items():
        curves = [means(rows, arm, seed) for seed in SEEDS if means(rows, arm, seed)]
        for curve in curves:
            thin = {**looks[like].line(), "alpha": 0.35, "linewidth": 1, "marker": ""}
            axes.plot([*curve], [*curve.values()], **thin)
        if curves:
            middle = np.mean([[*curve.values()] for curve in curves], axis=0)
            label = f"{arm}, mean of {len(curves)} seeds"
            axes.plot([*curves[0]], middle, label=label, **looks[like].line())
    axes.set_xlabel("decisions")
    axes.set_ylabel(f"return (mean of {EPISODES} greedy episodes)")
    axes.set_title("toy_reach from pixels, Stable-Baselines3's SAC")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(fontsize=8, loc="upper left")
    save(figure, path)


def tell(rows: list[Row]) -> None:
    """Print a table of means, a column per run, as docs/results has it."""
    runs = [(arm, seed) for arm in ARMS for seed in SEEDS if means(rows, arm, seed)]
    print("| decisions |", " | ".join(f"{arm}, seed {seed}" for arm, seed in runs), "|")
    print("|---|" + "---|" * len(runs))
    for mark in sorted({row[2] for row in rows}):
        cells = [f"{means(rows, *run).get(mark, float('nan')):.1f}" for run in runs]
        print(f"| {mark:,} |", " | ".join(cells), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--decisions", type=int, default=DECISIONS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--arms", nargs="+", default=[*ARMS], choices=[*ARMS])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = arguments.out.with_suffix(".csv")
    rows = read(table)
    for seed in arguments.seeds:
        for arm in arguments.arms:
            if means(rows, arm, seed):
                continue
            start = time.process_time()
            rows += run(arm, seed, arguments.decisions)
            lines = [",".join(map(str, row)) for row in [FIELDS, *rows]]
            write_atomically(table, ("\n".join(lines) + "\n").encode())
            shown = {mark: round(mean, 2) for mark, mean in means(rows, arm, seed).items()}
            print(arm, seed, f"{time.process_time() - start:.0f} s", shown, flush=True)
    draw(rows, arguments.out.with_suffix(".png"))
    tell(rows)


if __name__ == "__main__":
    main()
