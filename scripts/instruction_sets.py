"""Run the tests that depend on rounding with the processor's newer instructions switched off.

A processor with AVX-512, one with AVX2 and an older one add in different orders, so what is equal
bit for bit on one may not be on another. Each library that computes is limited by its own variable;
the contract tests, the traces and the kernels' tests then run as on the older processor. The set
that the machine uses anyway is left out: `make test` is that run. Arguments go to pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys

TESTS = ("tests/authors/test_traces.py", "tests/contract", "tests/unit/test_native.py")
LIMITS = {
    # PyTorch's own name: its variables, oneDNN's, MKL's and those of the native kernels
    "AVX2": ("avx2", "AVX2", "AVX2", "avx2"),
    "DEFAULT": ("default", "SSE41", "SSE4_2", "avx2"),
}
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "KSTEP_NATIVE_INSTRUCTIONS",
)


def capability(environment: dict[str, str]) -> str:
    """Return the instruction set that PyTorch uses with these variables."""
    code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def main(arguments: list[str]) -> int:
    """Return 0 if every limited run passed."""
    here = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    usual = capability(here)
    print(f"this processor runs {usual}, as `make test` does", flush=True)
    failed = []
    for name, values in LIMITS.items():
        limited = here | dict(zip(VARIABLES, values, strict=True))
        found = capability(limited)
        if found == usual:
            print(f"{name}: nothing to switch off here", flush=True)
            continue
        if found != name:
            print(f"{name}: PyTorch still runs {found}", flush=True)
            failed.append(name)
            continue
        print(f"{name}:", flush=True)
        command = [sys.executable, "-m", "pytest", *TESTS, *arguments]
        if subprocess.run(command, env=limited).returncode:
            failed.append(name)
    print(f"failed with {', '.join(failed)}" if failed else "every instruction set passed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
