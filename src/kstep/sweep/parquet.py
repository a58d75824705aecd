"""Parquet, decoded in a process of its own.

The decoder ends its whole process where a damaged file contradicts itself, and can be made to ask
for any amount of memory. So a table goes through a short-lived process: Parquet in, the same table
in the plain Arrow format out, which the decoder itself has written.
"""

from __future__ import annotations

import io
import os
import resource
import subprocess
import sys

import polars as pl

from kstep.errors import KstepError

MEMORY = 8 * 2**30
"""Bytes of addresses that decoding may take, or a hundred times the size of the file."""
SECONDS = 600.0


def decoded(data: bytes) -> pl.DataFrame:
    """Return the table in the content of a Parquet file; raise for anything else."""
    environment = {**os.environ, "POLARS_MAX_THREADS": "1", "RUST_BACKTRACE": "0"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "kstep.sweep.parquet"],
            input=data,
            capture_output=True,
            env=environment,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise KstepError(f"it took longer than {SECONDS:.0f} seconds to decode") from error
    if done.returncode != 0:
        raise KstepError("it is not a Parquet table, or a damaged one")
    return pl.read_ipc(io.BytesIO(done.stdout))


def main() -> None:
    data = sys.stdin.buffer.read()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = max(MEMORY, 100 * len(data))
    resource.setrlimit(resource.RLIMIT_AS, (most if hard < 0 else min(most, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pl.read_parquet(io.BytesIO(data)).write_ipc(sys.stdout.buffer)


if __name__ == "__main__":
    main()
