"""`kstep doctor`: tests of rendering, kernels, versions, threads and memory of this machine."""

from __future__ import annotations

import os
from functools import partial
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
from kstep.terminal import say
from kstep.types import EnvSpec, KstepError


def doctor(console: Console, backend: str | None = None) -> bool:
    """Print the state of this machine; return whether training from pixels can start.

    `backend` names the only way to render that is tested.
    """
    line = partial(say, console)
    line("versions", "bold")
    for name, version in system.versions().items():
        line(f"  {name:12} {version}")

    line("processor", "bold")
    line(f"  {system.processor()}")
    cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    line(f"  {cores} cores usable, torch uses {threads} threads")
    if cores > 1:
        ways = [f"{runs} at once: --threads {cores // runs} each" for runs in sorted({2, cores})]
        line(
            f"  one run uses all of them; {'; '.join(ways)}. Oversubscribing cores slows every run"
        )
    devices = ["cpu"]
    devices += ["cuda"] if torch.cuda.is_available() else []
    devices += ["mps"] if torch.backends.mps.is_available() else []
    line(f"  devices: {', '.join(devices)}")

    line("encoder", "bold")
    for name, strides in (("paper's size", (2, 1, 1, 1)), ("compact", (2, 2, 1, 1))):
        shape = native_shape(PixelEncoderConfig(strides=strides), (84, 84, 3), 3)
        choice = native.choose("auto", shape)
        line(f"  {name}: {choice.backend} ({choice.reason})")

    line("memory", "bold")
    free = int(psutil.virtual_memory().available)
    spec = EnvSpec("pixels", (84, 84, 3), 1, 8, 125)
    needed = Replay.bytes_needed(ReplayConfig(), spec)
    fits = "fits" if needed < 0.8 * free else "does not fit: use train with --replay disk"
    line(
        f"  {free / 1e9:.1f} GB free; the default replay (100,000 decisions of 84x84 frames) "
        f"needs {needed / 1e9:.2f} GB: {fits}"
    )
    line(f"  {psutil.disk_usage(str(Path.cwd())).free / 1e9:.0f} GB free on disk here")

    line("rendering", "bold")
    try:
        chosen = gl.choose(backend)
    except KstepError as error:
        line(f"  {error}", "red")
        return False
    line(f"  {gl.describe(chosen)}")
    line(f"  library {chosen.library or '?'}, device {chosen.device or '?'}")
    if chosen.note:
        line(f"  {chosen.note}")
    return True
