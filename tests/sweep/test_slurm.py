"""Slurm's engine: with submitit's local executor, and on a real Slurm where one is installed.

The real one (Debian's `slurm-wlm` and `munge`) is one node on loopback, with keys, ports and
folders of its own; every process of it is started and ended here.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kstep.cli import main
from kstep.sweep.engines import Local, Slot, Slurm
from kstep.sweep.plan import status
from tests.sweep.test_engines import OFTEN, hostile, results, specs_in, wait_until

pytest.importorskip("submitit")

pytestmark = pytest.mark.slow

INSTALLED = all(shutil.which(name) for name in ("munged", "slurmctld", "slurmd", "sbatch"))
needs_slurm = pytest.mark.skipif(
    not INSTALLED or os.geteuid() != 0, reason="needs slurm-wlm, munge and root"
)


def test_jobs_execute_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where modules of the names that they import lie in the current directory."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.chdir(hostile(tmp_path))
    specs = specs_in(tmp_path, "sac_state", env_steps=60)
    outcomes = dict(event for event in Slurm(cluster="local").run(specs, Slot(), 1) if event)
    assert [outcome.result for outcome in outcomes.values()] == ["done"], outcomes
    assert {status(spec).state for spec in specs} == {"done"}
    assert not (tmp_path / "hostile" / "__pycache__").exists()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Slurm of one node on loopback."""
    home, host = tmp_path / "slurm", socket.gethostname()
    for name in ("state", "spool"):
        (home / name).mkdir(parents=True)
    key = home / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    config = home / "slurm.conf"
    config.write_text(
        f"""ClusterName=kstep
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={free_port()}
SlurmdPort={free_port()}
AuthType=auth/munge
AuthInfo=socket={home}/munge.socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=16000 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
    )
    monkeypatch.setenv("SLURM_CONF", str(config))
    daemons = [
        subprocess.Popen(
            [
                "munged",
                "--foreground",
                "--force",
                f"--key-file={key}",
                f"--socket={home}/munge.socket",
                f"--pid-file={home}/munge.pid",
                f"--log-file={home}/munge.log",
                f"--seed-file={home}/munge.seed",
            ]
        )
    ]
    try:
        wait_until((home / "munge.socket").exists)
        daemons.append(subprocess.Popen(["slurmctld", "-D", "-c"]))
        daemons.append(subprocess.Popen(["slurmd", "-D", "-c"]))
        wait_until(lambda: "idle" in said("sinfo", "--noheader"))
        yield
    finally:
        said("scancel", "--full", "--user=root")
        wait_until(lambda: not said("squeue", "--noheader"))
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def said(*command: str) -> str:
    """Return what a command of Slurm prints; nothing while it cannot be reached."""
    found = subprocess.run(command, capture_output=True, text=True, timeout=600)
    return found.stdout.strip() if found.returncode == 0 else ""


@needs_slurm
@pytest.mark.usefixtures("slurm")
def test_a_real_slurm_executes_the_debug_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    words = "sweep main --scale debug --seeds 1 --methods ksl drq sac_state --engine slurm"
    main([*words.split(), "--hours", "1", "--runs", str(runs)])
    assert "3 done" in capsys.readouterr().out
    assert len(list(runs.rglob("evaluations.jsonl"))) == 3


@needs_slurm
@pytest.mark.usefixtures("slurm")
def test_a_requeued_job_resumes_bit_for_bit(tmp_path: Path) -> None:
    (alone,) = specs_in(tmp_path / "alone", "ksl", env_steps=2_000)
    list(Local().run([alone], Slot(), 0))
    (spec,) = specs_in(tmp_path / "requeued", "ksl", env_steps=2_000)
    events, requeued, begun = Slurm(minutes=60).run([spec], OFTEN, 1), 0, time.monotonic()
    outcome = None
    for event in events:
        if event is not None:
            outcome = event[1]
        elif requeued < 2 and spec.run.checkpointed() > 60 + 300 * requeued and running():
            subprocess.run(["scontrol", "requeue", *running()], check=True)
            requeued += 1
        assert time.monotonic() < begun + 1800, "waited too long"
    assert requeued == 2
    assert outcome is not None
    assert outcome.result == "done", outcome
    assert results(spec) == results(alone)


def running() -> list[str]:
    """Return the jobs that run now."""
    return said("squeue", "--noheader", "--format=%A", "--states=RUNNING").split()
