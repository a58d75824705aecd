"""Run `kstep` so that it does not outlive the process that started it.

    python -P -m kstep.sweep.die_with_parent PARENT train ksl cartpole_swingup ...

A worker of a cluster can be killed without a chance to end its children. An orphan would continue
to write its run, and a second attempt elsewhere would wait for its lock. So the kernel is asked to
send SIGTERM when the parent dies, upon which training writes a checkpoint and ends. Linux only;
elsewhere it is plain `kstep`.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import sys

from kstep.signals import Terminated, answered

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent = int(sys.argv[1])
    with answered():
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:  # it died before the kernel was asked
                raise Terminated
        sys.argv = ["kstep", *sys.argv[2:]]
        runpy.run_module("kstep", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
