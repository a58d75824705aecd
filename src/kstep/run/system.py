"""Where a run is computed: versions, processor, memory, device, commit.

A result without this cannot be compared: simulator and driver versions change pixels and dynamics.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]
import torch

import kstep
from kstep.files import Tree
from kstep.types import KstepError

PACKAGES = ("torch", "numpy", "mujoco", "dm-control", "gymnasium", "safetensors")


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
def threads(number: int | None) -> Iterator[None]:
    """Let PyTorch use this many threads inside the block; None leaves its choice."""
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def versions() -> dict[str, str]:
    found = {"kstep": kstep.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def processor() -> str:
    """The processor's own name where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


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


def describe(device_name: str, rendering: str) -> dict[str, Any]:
    return {
        "versions": versions(),
        "commit": commit(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": int(psutil.virtual_memory().total),
        "platform": platform.platform(),
        "device": device_name,
        "rendering": rendering,
    }


def record(tree: Tree, path: Path, device_name: str, rendering: str) -> None:
    """Add this machine to the run's list of where it was computed."""
    try:
        history = json.loads(path.read_text()) if path.exists() else []
        if not isinstance(history, list):
            raise ValueError
    except ValueError:  # nothing depends on it, but nothing is thrown away either
        tree.rename(path, f"{path.name}.damaged")
        history = []
    now = datetime.now(UTC).isoformat(timespec="seconds")
    history.append({"started": now, **describe(device_name, rendering)})
    tree.write_json(path, history)
