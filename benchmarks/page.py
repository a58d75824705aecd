"""How long a report of many runs takes, how large the page is, how soon a browser shows it, and
what `kstep watch` costs beside as many runs.

    PYTHONPATH=. python benchmarks/page.py            # 540 runs of nine methods
    PYTHONPATH=. python benchmarks/page.py --seeds 2  # fewer

The runs are made up, their folders are as training leaves them: 26 evaluations and 2,500 logged
updates each. The page is opened in Chromium, if there is one, with an empty cache. Watching is
measured when nothing has changed, and when one run was evaluated once more.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from kstep.config import resolve
from kstep.envs.tasks import PLANET
from kstep.run.folder import Evaluated, Run
from kstep.types import KstepError

METHODS = ("ksl", "rad", "drq", "curl", "sac_ae", "sac_state", "sac_pixel", "pi_sac", "proto_rl")
MARKS = range(0, 500_001, 20_000)
LOGGED = 2_500


def make_runs(root: Path, seeds: int) -> int:
    """Write run folders with made-up returns; return how many."""
    rng = np.random.default_rng(0)
    number = 0
    for method in METHODS:
        for task, repeat in PLANET.items():
            level = rng.uniform(300, 950)
            for seed in range(1, seeds + 1):
                run = Run(
                    root / task / method / f"seed{seed}",
                    resolve(method, task, seed=seed, env_steps=MARKS[-1]),
                )
                with run.locked():
                    run.begin()
                speed = rng.uniform(60_000, 200_000)
                lines = []
                for mark in MARKS:
                    mean = level * (1 - np.exp(-mark / speed))
                    returns = tuple(float(x) for x in np.clip(rng.normal(mean, 40, 10), 0, 1000))
                    decisions = mark // repeat
                    found = Evaluated(
                        mark, mark, decisions, decisions, mark // 1000, returns, (1,) * 10
                    )
                    lines.append(json.dumps(asdict(found)))
                (run.checkpoints / str(decisions)).mkdir()
                run.evaluations_file.write_text("\n".join([*lines, ""]))
                steps = np.linspace(1000, MARKS[-1], LOGGED).astype(int)
                values = rng.normal(size=(LOGGED, 20)).round(6)
                names = ("latent/rank", "latent/spread", "latent/cosine", "critic/q")
                rows = []
                for step, row in zip(steps, values, strict=True):
                    logged: dict[str, float] = {
                        "env_steps": int(step),
                        "decisions": int(step) // repeat,
                    }
                    logged |= {f"critic/{i}": float(x) for i, x in enumerate(row[4:])}
                    logged |= {n: float(abs(x)) + 3 for n, x in zip(names, row[:4], strict=True)}
                    logged["latent/cosine"] = 0.3
                    rows.append(json.dumps(logged))
                run.metrics_file.write_text("\n".join([*rows, ""]))
                number += 1
    return number


def first_paint(page: Path) -> dict[str, float]:
    """Return milliseconds until Chromium has painted something, and until a curve is drawn."""
    from tests.page.browser import opened_page

    with opened_page() as browser:
        started = time.monotonic()
        browser.goto(page.as_uri())
        browser.wait_for_selector(".canvas .main-svg")
        drawn = 1000 * (time.monotonic() - started)
        paints = browser.evaluate(
            "performance.getEntriesByType('paint').map(entry => [entry.name, entry.startTime])"
        )
    return {**dict(paints), "first curve drawn": drawn}


def watch(root: Path) -> None:
    """Print what looking again costs `kstep watch`, and how much it sends."""
    from kstep.report.live.newest import Newest

    found = Newest([root])
    known = ""

    def look(what: str) -> None:
        nonlocal known
        started = time.monotonic()
        found.refresh()
        seconds, text = time.monotonic() - started, found.news(known) or ""
        known = json.loads(text)["version"] if text else known
        print(f"watch, {what}: {seconds:.2f} s, {len(text) / 1e6:.2f} MB sent")

    look("a page that is opened")
    look("nothing has changed")
    run = Run.open(min(root.glob("*/*/seed1")))
    before = run.evaluations_file.read_text()
    last = json.loads(before.splitlines()[-1])
    more = {**last, "mark": MARKS[-1] + MARKS.step, "env_steps": MARKS[-1] + MARKS.step}
    run.evaluations_file.write_text(before + json.dumps(more) + "\n")
    look("one evaluation more")
    run.evaluations_file.write_text(before)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seeds", type=int, default=10)
    arguments.add_argument(
        "--keep", type=Path, help="keep runs and page in this folder, or use those that are there"
    )
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = chosen.keep or Path(temporary)
        made = folder / "runs"
        number = len([*made.glob("*/*/seed*")]) or make_runs(made, chosen.seeds)
        started = time.monotonic()
        command = [sys.executable, "-m", "kstep", "report", str(made)]
        subprocess.run([*command, "--output", str(folder / "report")], check=True)
        seconds = time.monotonic() - started
        page = folder / "report" / "index.html"
        print(f"{number} runs: {seconds:.1f} s, {page.stat().st_size / 1e6:.1f} MB")
        try:
            for name, milliseconds in first_paint(page).items():
                print(f"{name}: {milliseconds:.0f} ms")
        except KstepError as error:
            print(error)
        watch(made)


if __name__ == "__main__":
    main()
