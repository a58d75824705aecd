"""Where a run is computed: versions, processor, memory, device, commit.

A result without this cannot be compared: simulator and driver versions change pixels and dynamics.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
import torch

import kstep
from kstep import native, reading
from kstep.files import Tree
from kstep.types import Backend, KstepError
from kstep.values import Count, encode

PACKAGES = (
    *("torch", "numpy", "mujoco", "dm-control", "gymnasium", "safetensors"),
    *("ale-py", "minatar"),
)


def device(name: str) -> torch.device:
    """Return the device called `name`, or say which ones this machine has."""
    usable = ["cpu"]
    if torch.cuda.is_available():
        usable += ["cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        usable.append("mps")
    if name not in usable:
        raise KstepError(f"device '{name}' is not available here; usable: {', '.join(usable)}")
    return torch.device(name)


def use_tf32(allowed: bool) -> None:
    """Let CUDA round the factors of products to 10 bits, or not; PyTorch's own defaults differ
    between convolutions and matrices."""
    torch.backends.cudnn.allow_tf32 = allowed
    torch.backends.cuda.matmul.allow_tf32 = allowed


def keep_freed_memory() -> None:
    """Tell glibc to keep large freed blocks instead of returning them to the system.

    Activations of tens of megabytes come and go with every layer; mapping and clearing their pages
    again each time costs about a fifth of a learning step on a CPU. No effect where there is no
    glibc. Call before the first large allocation.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6", use_errno=True).mallopt
    except (OSError, AttributeError):
        return
    mmap_threshold, trim_threshold = -3, -1
    mallopt(mmap_threshold, 1 << 30)
    mallopt(trim_threshold, -1)


@contextmanager
def threads(number: int | None, backend: Backend = "torch") -> Iterator[None]:
    """Compute with this many threads inside the block; None: with as many as PyTorch would use.

    They are PyTorch's or, with the native backend, those of our own pool, and PyTorch has one: two
    pools would fight for the cores, and the bits of PyTorch's sums depend on their number.
    """
    before = torch.get_num_threads()
    wanted, ours = number or before, backend == "native"
    torch.set_num_threads(1 if ours else wanted)
    native_before = native.use_threads(wanted if ours else None)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        native.use_threads(native_before)


def versions() -> dict[str, str]:
    found = {"kstep": kstep.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def processor() -> str:
    """The processor's own name where the system tells it, with its generation: clouds give several
    one name."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        first = ""
    found: dict[str, str] = dict(
        re.findall(r"^(model name|cpu family|model)\s*: (.+)$", first, re.MULTILINE)
    )
    if "model name" not in found:
        return platform.processor() or platform.machine()
    if "cpu family" not in found or "model" not in found:
        return found["model name"].strip()
    return f"{found['model name'].strip()} (family {found['cpu family']}, model {found['model']})"


def commit() -> str:
    """The commit this package was run from, `+` where files had changed, or its version."""
    folder = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "-C", str(folder), "describe", "--always", "--abbrev=40", "--dirty=+"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return f"version {kstep.__version__}"
    return found.stdout.strip()


@dataclass(frozen=True)
class Machine:
    """Where something was computed."""

    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str = ""
    processor: str = ""
    cores: int | None = None
    threads: Count = 0
    memory_bytes: Count = 0
    platform: str = ""
    device: str = ""
    rendering: str = ""
    started: str = ""
    """When a run started or was resumed there."""


def describe(device_name: str, rendering: str, started: str = "") -> Machine:
    """Return what this machine is."""
    return Machine(
        versions=versions(),
        commit=commit(),
        processor=processor(),
        cores=os.cpu_count(),
        threads=native.threads(),
        memory_bytes=int(psutil.virtual_memory().total),
        platform=platform.platform(),
        device=device_name,
        rendering=rendering,
        started=started,
    )


def history(path: Path) -> tuple[Machine, ...]:
    """Return where a run was computed, oldest first: empty if that was not recorded."""
    try:
        found: tuple[Machine, ...] = reading.json_file(path, tuple[Machine, ...])
    except reading.Missing:
        return ()
    return found


def record(tree: Tree, path: Path, device_name: str, rendering: str) -> None:
    """Add this machine to the run's list of where it was computed."""
    try:
        before = history(path)
    except reading.Unreadable:  # nothing depends on it, but nothing is thrown away either
        tree.rename(path, f"{path.name}.damaged")
        before = ()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    tree.write_json(path, encode((*before, describe(device_name, rendering, now))))
