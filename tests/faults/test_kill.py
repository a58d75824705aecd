"""Kill a run at any point, start the same command again: it ends as if nothing had happened.

Most points are chosen, not met by chance (`tests/faults/forked.py`): every file-system event of a
run, the inside of a write, the inside of an evaluation. After every command, whether it was killed
or not, nothing outside the run folder has changed and nobody has seen a traceback.
"""

from __future__ import annotations

import itertools
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from kstep.methods import METHODS
from kstep.run.folder import Run, RunFolder
from tests.faults.forked import Ended, Forked, Kill, forking
from tests.make import HANGING, toy
from tests.pairs import PAIRS, declared
from tests.runs import assert_same, contents

BUDGET, PARTS = 16, 8
KSL = ["ksl", "--set", "method.auxiliary.sampling=any"]
FAMILIES = {"plain": ["sac_pixel"], "auxiliary": KSL, "two-phase": ["proto_rl"]}
FAMILIES |= {"state": ["sac_state"], "replay on disk": [*KSL, "--replay", "disk"]}
FAMILIES |= {"schedules": ["ksl_drq_v2", "--set", "method.core.noise.decisions=12"]}
FAMILIES |= {"choices": ["ksl_dqn", "--set", "method.core.epsilon.decisions=12"]}


def command(method: list[str], folder: str = "run") -> list[str]:
    """A short run with a checkpoint after every decision, evaluations, saved encoders, and a replay
    that forgets, so that old frames are removed."""
    name = method[0]
    value = declared(name) if name in PAIRS else METHODS[name]
    words = ["train", name, toy(value), "--preset", "debug"]
    words += ["--import", "tests.faults.pairs"] * (name in PAIRS)
    words += ["--env-steps", str(BUDGET)]
    for setting in ("initial_decisions=5", "batch_size=4", "replay_capacity=10"):
        words += ["--set", f"method.learning.{setting}"]
    words += ["--set", "evaluation.every=5", "--set", "evaluation.episodes=1", *method[1:]]
    words += ["--save-encoders-every", "5"] * (name != "sac_state")
    words += ["--threads", "1", "--encoder-backend", "torch", "--checkpoint-minutes", "1e-9"]
    return [*words, "--folder", folder]


class Scene:
    """A run among others' files, and how it ends if it is left alone."""

    def __init__(self, forked: Forked, folder: Path, method: list[str]) -> None:
        self._forked, self.root, self._command = forked, folder / "root", command(method)
        self.folder = self.root / "run"
        self.root.mkdir()
        self._around: dict[Path, bytes] = {}
        assert self.start().code == 0
        self.whole = Run.open(self.folder.rename(folder / "whole"))
        # Beside the run, and where its commands are typed: files with the names of its own.
        for path in contents(self.whole.folder):
            target = self.root / path.relative_to(self.whole.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text("somebody's")
        shutil.copytree(self.whole.folder, self.root / "neighbour")
        self._around = self._outside()

    def start(self, *options: str, kill: Kill | None = None) -> Ended:
        """Run the command, perhaps into its death."""
        ended = self._forked([*self._command, *options], self.root, kill)
        assert ended.killed or ended.code == 0, ended.output
        assert "Traceback" not in ended.output
        assert not ended.outside
        assert self._outside() == self._around
        return ended

    def killed(self, kill: Kill, *options: str) -> bool:
        """Kill a run, resume it, compare; False if it was done before it could be killed."""
        shutil.rmtree(self.folder, ignore_errors=True)
        killed = self.start(*options, kill=kill).killed
        if killed:
            assert self.start(*options).code == 0
        self.compare()
        return killed

    def compare(self) -> None:
        assert_same(self.whole, Run.open(self.folder))
        names = [path.relative_to(self.folder) for path in self.folder.rglob("*")]
        assert not [name for name in names if name.name.endswith(".part")]
        encoders = [contents(folder / "encoders") for folder in (self.whole.folder, self.folder)]
        assert [*encoders[0].values()] == [*encoders[1].values()]

    def _outside(self) -> dict[Path, bytes]:
        found = contents(self.root) if self._around else {}
        return {path: data for path, data in found.items() if self.folder not in path.parents}


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forked]:
    with forking(tmp_path_factory.mktemp("forked")) as found:
        yield found


@pytest.fixture
def scene(forked: Forked, tmp_path: Path) -> Scene:
    return Scene(forked, tmp_path, KSL)


def kills(scene: Scene, points: Iterator[Kill], *options: str) -> int:
    """Kill runs at one point after another until one is done before; return how many were."""
    return sum(1 for _ in itertools.takewhile(lambda kill: scene.killed(kill, *options), points))


def test_a_killed_run_ends_as_if_it_had_not_been(scene: Scene) -> None:
    """A few of the points that the long tests try one by one."""
    for number in (1, 8, 25, 26, 61, 118, 231, 344, 425):
        assert scene.killed(Kill("event", number)), number
    assert scene.killed(Kill("write", 40, 100_000))  # weights half written
    assert scene.killed(Kill("write", 300, 9_000))  # frames half written
    assert scene.killed(Kill("evaluation", 300))
    scene.killed(Kill("instant", amount=0.2))


@pytest.mark.parametrize("name", PAIRS)
def test_a_killed_run_of_any_core_and_task_ends_as_if_it_had_not_been(
    name: str, forked: Forked, tmp_path: Path
) -> None:
    assert Scene(forked, tmp_path, [name]).killed(Kill("event", 231))


def test_a_killed_run_with_frames_on_the_device_ends_as_one_in_memory(scene: Scene) -> None:
    for number in (26, 118, 344):
        assert scene.killed(Kill("event", number), "--replay", "device"), number
    assert scene.killed(Kill("write", 300, 9_000), "--replay", "device")  # frames half written


def test_a_killed_worker_leaves_no_trace(scene: Scene) -> None:
    assert not scene.killed(Kill("worker", 100), "--overlap", "on")


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_run_killed_at_every_file_system_event(part: int, scene: Scene) -> None:
    count = kills(scene, (Kill("event", number) for number in itertools.count(1 + part, PARTS)))
    print(f"file-system events: {count} kills")
    assert count >= 400 / PARTS


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_run_killed_inside_its_writes(scene: Scene) -> None:
    rng, count = random.Random("write"), 0
    while count < 60:
        size = rng.choice([rng.randrange(500, 14_000), rng.randrange(14_000, 350_000)])
        count += scene.killed(Kill("write", rng.randrange(1, 400), size))
    print(f"inside a write: {count} kills")


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_run_killed_in_its_evaluations(scene: Scene) -> None:
    count = kills(scene, (Kill("evaluation", number) for number in itertools.count(1, 397)))
    print(f"in evaluations: {count} kills")
    assert count >= 20


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_workers_killed_at_many_events(scene: Scene) -> None:
    points = range(5, 405, 16)
    for number in points:
        assert not scene.killed(Kill("worker", number), "--overlap", "on")
    both = [scene.killed(Kill("event", number), "--overlap", "on") for number in range(20, 400, 38)]
    assert all(both)
    print(f"of environment workers: {len(points)} kills; of runs that have one: {len(both)}")


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("method", FAMILIES.values(), ids=FAMILIES)
def test_a_run_killed_many_times_ends_as_if_it_had_not_been(
    method: list[str], forked: Forked, tmp_path: Path
) -> None:
    """At instants that the machine decides on, again and again: the same run, until it is done."""
    scene, rng, count, runs = Scene(forked, tmp_path, method), random.Random(method[0]), 0, 0
    while count < 25:
        shutil.rmtree(scene.folder, ignore_errors=True)
        while scene.start(kill=Kill("instant", amount=rng.uniform(0.0, 0.8))).killed:
            count += 1
        scene.compare()
        runs += 1
    print(f"{' '.join(method)}: {count} kills over {runs} runs")


SWEEP = """
tasks = ["toy_reach"]
[[group]]
methods = ["sac_state", "sac_pixel"]
seeds = 1
env_steps = 60
"""


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_killed_sweeps_end_as_if_they_had_not_been(forked: Forked, tmp_path: Path) -> None:
    """The sweep itself, whose runs then stop with a checkpoint, and its runs, which it retries."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "tiny.toml").write_text(SWEEP)
    words = ["sweep", "tiny.toml", "--scale", "debug", "--workers", "2", "--threads", "1"]
    words += ["--checkpoint-minutes", "0.0005", "--encoder-backend", "torch", "--retries", "9"]

    def sweep(runs: str, kill: Kill | None = None) -> bool:
        ended = forked([*words, "--runs", runs], root, kill)
        assert ended.killed or ended.code == 0, ended.output
        assert "Traceback" not in ended.output
        assert not ended.outside
        assert {path.name for path in root.iterdir()} <= {"tiny.toml", "calm", "killed"}
        folders = [path.parent for path in root.glob(f"{runs}/*/*/seed1/lock")]
        _wait(lambda: not any(RunFolder(folder).is_locked() for folder in folders))
        return ended.killed

    def compare() -> None:
        for folder in root.glob("calm/*/*/seed1"):
            other = root / "killed" / folder.relative_to(root / "calm")
            assert_same(Run.open(folder), Run.open(other))
            assert "Traceback" not in RunFolder(other).log_file.read_text()
        shutil.rmtree(root / "killed")

    assert not sweep("calm")
    count = 0
    for number in itertools.count(1, 2):
        killed = sweep("killed", Kill("event", number))
        if killed:
            count += 1
            assert not sweep("killed")
        compare()
        if not killed:
            break
    for checkpoints in (0, 1, 2, 3, 5):  # and then both runs, wherever they are by then
        killer = _Killer([root / "killed" / "toy_reach" / name / "seed1" for name in _NAMES])
        killer.start_at(checkpoints)
        assert not sweep("killed")
        killer.join()
        count += killer.count
        compare()
    print(f"of sweeps and their runs: {count} kills")
    assert count >= 10


_NAMES = ("sac_state-debug", "sac_pixel-debug")


class _Killer(threading.Thread):
    """Kills the writers of run folders, each once, when they have so many checkpoints."""

    def __init__(self, folders: list[Path]) -> None:
        super().__init__()
        self._folders, self.count = folders, 0

    def start_at(self, checkpoints: int) -> None:
        self._checkpoints = checkpoints
        self.start()

    def run(self) -> None:
        for folder in self._folders:
            _wait(lambda folder=folder: self._ready(RunFolder(folder)))  # type: ignore[misc]
            try:
                psutil.Process(int((folder / "lock").read_text().split()[0])).kill()
                self.count += 1
            except (psutil.NoSuchProcess, ValueError):
                pass  # it was done already

    def _ready(self, run: RunFolder) -> bool:
        return (run.is_locked() and run.checkpointed() >= self._checkpoints) or run.is_done(60)


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANGING
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_killed_run_of_the_real_task_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    """Cart-pole from 84-pixel images, drawn in a process of its own, killed in mid-run."""

    def arguments(folder: Path) -> list[str]:
        words = [sys.executable, "-m", "kstep", "train", "ksl", "cartpole_swingup"]
        words += ["--preset", "debug", "--set", "method.encoder.image_size=84", "--overlap", "on"]
        words += ["--threads", "1", "--checkpoint-minutes", "0.0005", "--folder", str(folder)]
        return words

    def finish(folder: Path) -> Run:
        done = subprocess.run(arguments(folder), capture_output=True, text=True, timeout=HANGING)
        assert done.returncode == 0, done.stdout + done.stderr
        return Run.open(folder)

    whole, folder = finish(tmp_path / "whole"), tmp_path / "run"
    for decisions in (20, 100):
        process = subprocess.Popen(arguments(folder), stdout=subprocess.DEVNULL)
        while process.poll() is None and RunFolder(folder).checkpointed() < decisions:
            time.sleep(0.05)
        assert process.poll() is None, "it was done before it could be killed"
        process.kill()
        process.wait()
    assert_same(whole, finish(folder))
