"""Does this installation learn? A short run with a known result.

`kstep doctor` checks the parts; this checks that they learn together. Out: the return before and
after, the band it should end in, and a verdict. The bands are where runs of this code and the
paper's own curves ended, not a measure of how good a method is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from kstep.config import Experiment, resolve
from kstep.run import system
from kstep.run.folder import Run
from kstep.run.runtime import Runtime
from kstep.run.train import train
from kstep.terminal import say
from kstep.types import KstepError

Verdict = Literal["below", "inside", "above"]
"""Where a return lies relative to the expected band."""


@dataclass(frozen=True)
class Check:
    """A run and where it should end."""

    experiment: Experiment
    low: float
    high: float
    why: str
    """Where the band comes from."""

    def verdict(self, value: float) -> Verdict:
        """Compare a mean return with the band; nan counts as below."""
        if not value >= self.low:
            return "below"
        return "inside" if value <= self.high else "above"


def swingup(seed: int = 1) -> Check:
    """Return the check on rendered images: the first fifth of a run of the `cpu` preset."""
    return Check(
        resolve("ksl", "cartpole_swingup", preset="cpu", seed=seed, env_steps=20_000),
        low=80.0,
        high=400.0,
        why="At 20,000 env steps our seed 1 returned 175 and the paper's ten seeds 188, with a "
        "standard deviation of 84; untrained networks return 0 to 30. About one correct run in ten "
        "ends below the band: if one does, repeat it with --seed 2",
    )


def quick(seed: int = 1) -> Check:
    """Return the check on the toy task, which needs neither MuJoCo nor OpenGL."""
    overrides = (
        "method.learning.batch_size=32",
        "method.learning.initial_decisions=300",
        "method.learning.replay_capacity=8000",
        "method.core.hidden=128",
        "method.encoder.channels=16",
        "method.encoder.latent_dim=32",
        "evaluation.every=1000",
        "evaluation.episodes=20",
    )
    return Check(
        resolve(
            "ksl", "toy_reach", preset="debug", seed=seed, env_steps=2_000, overrides=overrides
        ),
        low=0.0,
        high=10.0,
        why="Our seeds 1 to 4 returned 4.7 to 5.2; random actions return about -4, steering "
        "straight at the target about 9",
    )


def selfcheck(check: Check, runs: Path, runtime: Runtime, console: Console) -> Verdict:
    """Run a check, or resume it, below the folder `runs`; print how it ended."""
    system.device(runtime.device)
    system.keep_freed_memory()
    task, seed = check.experiment.env.task, check.experiment.seed
    folder = runs / "selfcheck" / task / f"seed{seed}"
    run = Run.prepare(folder, check.experiment)
    train(run, runtime, console)
    rows = run.evaluations()
    if not rows:
        raise KstepError(f"{folder} has no evaluation; remove it and rerun the command")
    before, after = (row.mean for row in (rows[0], rows[-1]))
    verdict = check.verdict(after)
    sentence = {
        "below": "Too low: this installation does not learn as it should",
        "inside": "As expected: this installation learns",
        "above": "Above all runs of ours: this installation learns",
    }[verdict]
    say(
        console,
        f"return before {before:.1f}, after {after:.1f}; expected {check.low:.0f} to "
        f"{check.high:.0f}. {sentence}.",
    )
    say(console, f"{check.why}.")
    say(console, f"The run is {folder}; remove it to check again.")
    return verdict
