"""Ray: a real cluster of two nodes on loopback; the same results as local, also when it dies.

Needs the extra `ray`; every process of the cluster is started and ended here.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kstep.sweep.engines import Local, Outcome, Ray
from kstep.sweep.plan import RunSpec, is_locked
from tests.sweep.test_engines import OFTEN, results, specs_in, wait_until

ray = pytest.importorskip("ray")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STORE = 80_000_000


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    head = {"num_cpus": 1, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={**head, "node_ip_address": "127.0.0.1"})
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def second_node(cluster: Any) -> Any:
    return cluster.add_node(num_cpus=1, object_store_memory=STORE, node_ip_address="127.0.0.1")


def train_process(spec: RunSpec) -> psutil.Process:
    """Wait until a run is written and return the process that does it."""
    lock = spec.folder / "lock"
    wait_until(lambda: lock.exists() and lock.read_text() and is_locked(spec.folder), 300)
    return psutil.Process(int(lock.read_text()))


def test_the_same_tables_as_local_though_a_worker_and_a_node_die(
    cluster: Any, tmp_path: Path
) -> None:
    node = second_node(cluster)
    for name in ("local", "ray"):
        (tmp_path / name).mkdir()
    calm = specs_in(tmp_path / "local", "sac_state", "sac_pixel", seeds=2, env_steps=400)
    wild = specs_in(tmp_path / "ray", "sac_state", "sac_pixel", seeds=2, env_steps=400)
    assert all(e[1].result == "done" for e in Local(2).run(calm, OFTEN, 1) if e)

    killed: list[str] = []

    def disturb() -> None:
        worker = train_process(wild[0]).parent()
        assert worker is not None
        os.kill(worker.pid, signal.SIGKILL)
        killed.append("worker")
        train_process(wild[1])
        cluster.remove_node(node, allow_graceful=False)
        killed.append("node")

    disturber = threading.Thread(target=disturb)
    disturber.start()
    outcomes: dict[RunSpec, Outcome] = {}
    for event in Ray(cluster.address).run(wild, OFTEN, 1):
        if event is not None:
            assert event[0] not in outcomes  # none twice
            outcomes[event[0]] = event[1]
    disturber.join()
    assert killed == ["worker", "node"]
    assert {outcome.result for outcome in outcomes.values()} == {"done"}, outcomes
    assert set(outcomes) == set(wild)
    for ours, theirs in zip(calm, wild, strict=True):
        assert results(ours) == results(theirs)
