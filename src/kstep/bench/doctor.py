"""Is this machine ready? Rendering, kernels, versions, threads, memory: tested, not guessed."""

from __future__ import annotations

import os
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]
import torch
from rich.console import Console

from kstep import native
from kstep.data.replay import Replay
from kstep.data.ring import ReplayConfig
from kstep.envs import gl
from kstep.nets.backends import native_shape
from kstep.nets.encoder import PixelEncoderConfig
from kstep.run import system
from kstep.types import EnvSpec, KstepError


def doctor(console: Console, backend: str | None = None) -> bool:
    """Print what was found; return whether training from pixels can start."""
    console.print("[bold]versions[/]")
    for name, found in system.versions().items():
        console.print(f"  {name:12} {found}", highlight=False)

    console.print("[bold]processor[/]")
    console.print(f"  {system.processor()}", highlight=False)
    cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    console.print(f"  {cores} cores usable, torch uses {threads} threads", highlight=False)
    if cores > 1:
        ways = [f"{runs} at once: --threads {cores // runs} each" for runs in sorted({2, cores})]
        console.print(
            f"  one run uses all of them; {'; '.join(ways)}. "
            "More threads than cores fight, and all lose",
            highlight=False,
        )
    devices = ["cpu"]
    devices += ["cuda"] if torch.cuda.is_available() else []
    devices += ["mps"] if torch.backends.mps.is_available() else []
    console.print(f"  devices: {', '.join(devices)}", highlight=False)

    console.print("[bold]encoder[/]")
    for name, strides in (("paper's size", (2, 1, 1, 1)), ("compact", (2, 2, 1, 1))):
        shape = native_shape(PixelEncoderConfig(strides=strides), (84, 84, 3), 3)
        choice = native.choose("auto", shape)
        console.print(f"  {name}: {choice.backend} ({choice.reason})", highlight=False)

    console.print("[bold]memory[/]")
    free = int(psutil.virtual_memory().available)
    spec = EnvSpec("pixels", (84, 84, 3), 1, 8, 125)
    needed = Replay.bytes_needed(ReplayConfig(), spec)
    verdict = "fits" if needed < 0.8 * free else "does not fit: use train with --replay disk"
    console.print(
        f"  {free / 1e9:.1f} GB free; the default replay (100,000 decisions of 84x84 frames) "
        f"needs {needed / 1e9:.2f} GB: {verdict}",
        highlight=False,
    )
    disk = psutil.disk_usage(str(Path.cwd()))
    console.print(f"  {disk.free / 1e9:.0f} GB free on disk here", highlight=False)

    console.print("[bold]rendering[/]")
    try:
        chosen = gl.choose(backend)
    except KstepError as error:
        console.print(f"  [red]{error}[/]", highlight=False)
        return False
    console.print(f"  {gl.describe(chosen)}", highlight=False)
    console.print(
        f"  library {chosen.library or '?'}, device {chosen.device or '?'}", highlight=False
    )
    if chosen.note:
        console.print(f"  {chosen.note}", highlight=False)
    return True
