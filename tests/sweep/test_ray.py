"""Ray: a real cluster of two node processes; the same results as local, also when they die.

Needs the extra `ray`; every process of the cluster is started and ended here.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import kstep
from kstep.sweep.engines import Local
from kstep.sweep.plan import RunSpec, is_locked, status
from tests.sweep.test_engines import OFTEN, results, specs_in, wait_until

ray = pytest.importorskip("ray")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(kstep.__file__).parents[1]))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        yield cluster
    finally:
        cluster.shutdown()


def train_process(spec: RunSpec, sweeping: subprocess.Popen[str]) -> psutil.Process:
    """Wait until a run has a checkpoint and is written; return the process that does it."""
    lock = spec.folder / "lock"

    def writes() -> bool:
        assert sweeping.poll() is None, sweeping.communicate()[0]
        saved = any(spec.folder.glob("checkpoints/0*"))
        return saved and bool(lock.read_text()) and is_locked(spec.folder)

    wait_until(writes, 300)
    return psutil.Process(int(lock.read_text()))


def sweep(folder: Path, address: str) -> subprocess.Popen[str]:
    """Start the sweep as a user would."""
    command = [sys.executable, "-m", "kstep", "sweep", str(folder / "tiny.toml")]
    command += ["--scale", "debug", "--runs", str(folder / "runs"), "--threads", "1"]
    command += ["--engine", "ray", "--address", address]
    command += ["--checkpoint-minutes", str(OFTEN.checkpoint_minutes)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_the_same_tables_as_local_though_a_worker_and_a_node_die(
    cluster: Any, tmp_path: Path
) -> None:
    node = cluster.add_node(**NODE)
    for name in ("local", "ray"):
        (tmp_path / name).mkdir()
    wild = specs_in(tmp_path / "ray", "sac_state", seeds=3, env_steps=300)
    process = sweep(tmp_path / "ray", cluster.address)
    worker = train_process(wild[0], process).parent()
    assert worker is not None
    assert "ray::" in " ".join(worker.cmdline())
    os.kill(worker.pid, signal.SIGKILL)
    train_process(wild[1], process)
    cluster.remove_node(node, allow_graceful=False)
    out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, out
    assert "sweep ended: 3 done" in out
    assert {status(spec).state for spec in wild} == {"done"}
    assert "going on at" in wild[0].log.read_text()
    calm = specs_in(tmp_path / "local", "sac_state", seeds=3, env_steps=300)
    assert all(event[1].result == "done" for event in Local(2).run(calm, OFTEN, 1) if event)
    for ours, theirs in zip(calm, wild, strict=True):
        assert results(ours) == results(theirs)
