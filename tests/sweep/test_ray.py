"""Ray: a real cluster of two node processes; the same results as local, also when they die.

Needs the extra `ray`; every process of the cluster is started and ended here, on loopback.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import kstep
from kstep.cli import main
from kstep.sweep import store
from kstep.sweep.engines import Local
from kstep.sweep.plan import RunSpec, status
from tests.make import HANGING
from tests.sweep.test_engines import OFTEN, hostile, results, specs_in, wait_until

ray = pytest.importorskip("ray")

pytestmark = pytest.mark.timeout(7200)

NODE = {"num_cpus": 1, "object_store_memory": 80_000_000, "node_ip_address": "127.0.0.1"}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A head and a second node."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(kstep.__file__).parents[1]), prepend=os.pathsep)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # Otherwise Ray reads 127.0.0.1 as this machine's address in its network, where nobody listens.
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        cluster.second = cluster.add_node(**NODE)
        yield cluster
    finally:
        cluster.shutdown()


def sweep(cluster: Any, *arguments: str) -> subprocess.Popen[str]:
    """Start a sweep on the cluster as the command `kstep` does, which imports nothing from the
    current directory."""
    command = [sys.executable, "-P", "-m", "kstep", "sweep", *arguments, "--scale", "debug"]
    command += ["--engine", "ray", "--address", cluster.address, "--threads", "1"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def ended_well(sweeping: subprocess.Popen[str]) -> str:
    out, _ = sweeping.communicate(timeout=HANGING)
    assert sweeping.returncode == 0, out
    return out


def table(runs: Path) -> str:
    """Collect what a sweep left, but for the time it took; the same results are the same text."""
    file = runs.parent / "results.parquet"
    main(["collect", str(runs), "--output", str(file)])
    return store.read(file).drop("seconds", "core_seconds").write_csv()


def compared_with_local(cluster: Any, folder: Path, *chosen: str) -> None:
    ours, theirs = folder / "local" / "runs", folder / "ray" / "runs"
    out = ended_well(sweep(cluster, "main", *chosen, "--runs", str(theirs)))
    assert not re.search(r"\d failed", out), out
    local = ["sweep", "main", *chosen, "--scale", "debug", "--runs", str(ours), "--threads", "1"]
    main(local)
    assert table(ours) == table(theirs)


def test_the_same_table_as_local(cluster: Any, tmp_path: Path) -> None:
    compared_with_local(cluster, tmp_path, "--methods", "sac_state", "ksl", "--seeds", "1")


def test_nothing_is_imported_from_the_current_directory(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(hostile(tmp_path))
    (spec,) = specs_in(tmp_path, "sac_state", env_steps=60)
    out = ended_well(sweep(cluster, str(tmp_path / "tiny.toml"), "--runs", str(tmp_path / "runs")))
    assert "sweep ended: 1 done" in out
    assert status(spec).state == "done"
    assert not (tmp_path / "hostile" / "__pycache__").exists()


@pytest.mark.slow
def test_frozen_encoders(cluster: Any, tmp_path: Path) -> None:
    chosen = ["generalization", "--methods", "ksl", "--seeds", "1"]
    out = ended_well(sweep(cluster, *chosen, "--runs", str(tmp_path / "runs")))
    assert "sweep ended: 4 done" in out


@pytest.mark.slow
def test_the_same_table_as_local_for_the_whole_experiment(cluster: Any, tmp_path: Path) -> None:
    compared_with_local(cluster, tmp_path)


def training(spec: RunSpec, home: Path, sweeping: subprocess.Popen[str]) -> psutil.Process:
    """Wait until a run has a checkpoint where it belongs and is trained; return who trains it."""
    found: list[psutil.Process] = []

    def trains() -> bool:
        assert sweeping.poll() is None, sweeping.communicate()[0]
        if spec.run.checkpointed() < 0 or not spec.run.is_locked():
            return False
        for process in psutil.process_iter():
            try:
                words = process.cmdline()
                ours = process.environ().get("HOME") == str(home)
            except psutil.Error:
                continue
            if ours and "kstep.sweep.die_with_parent" in words:
                seed = words[words.index("--seed") + 1]
                found.extend([process] * (seed == str(spec.seed)))
        return bool(found)

    wait_until(trains, 600)
    return found[0]


@pytest.mark.slow
def test_a_worker_and_a_node_die_and_nothing_is_lost(cluster: Any, tmp_path: Path) -> None:
    for name in ("local", "ray"):
        (tmp_path / name).mkdir()
    wild = specs_in(tmp_path / "ray", "sac_state", seeds=3, env_steps=300)
    often = ["--checkpoint-minutes", str(OFTEN.checkpoint_minutes)]
    runs = ["--runs", str(tmp_path / "ray" / "runs")]
    sweeping = sweep(cluster, str(tmp_path / "ray" / "tiny.toml"), *runs, *often)
    worker = training(wild[0], tmp_path, sweeping).parent()
    assert worker is not None
    assert "ray::" in " ".join(worker.cmdline())
    os.kill(worker.pid, signal.SIGKILL)
    training(wild[1], tmp_path, sweeping)
    cluster.remove_node(cluster.second, allow_graceful=False)
    assert "sweep ended: 3 done" in ended_well(sweeping)
    assert {status(spec).state for spec in wild} == {"done"}
    assert not any(spec.run.is_locked() for spec in wild)
    assert "resuming at" in wild[0].run.log_file.read_text()
    calm = specs_in(tmp_path / "local", "sac_state", seeds=3, env_steps=300)
    assert all(event[1].result == "done" for event in Local(2).run(calm, OFTEN, 1) if event)
    for ours, theirs in zip(calm, wild, strict=True):
        assert results(ours) == results(theirs)
