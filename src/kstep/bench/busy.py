"""A learning step beside somebody else's work: what laptops, shared nodes and sweeps are like."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SPINNING = """
import os
parent = os.getppid()
print(flush=True)
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""
"""Keeps one core busy until its parent is gone."""


@contextmanager
def neighbour() -> Iterator[None]:
    """Keep one core of this machine busy inside the block, with a process of its own."""
    with subprocess.Popen([sys.executable, "-c", SPINNING], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it has begun
            yield
        finally:
            process.kill()
