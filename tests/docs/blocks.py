"""The pages of the documentation, their blocks of code, and how blocks are run at debug scale."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^(`{3,})(.*)\n((?:.*\n)*?)\1$", flags=re.MULTILINE)

RUN = ("sh", "python")
NOT_RUN = ("text", "toml")
"""Languages of blocks: what is run, and what is output or a file. A block that begins with a
comment such as `# mine.toml` or `# arm.py` is that file, for the blocks after it."""

ENV_STEPS = 60
"""Of every training run: most methods begin to learn after 40 random decisions."""
DEBUG = (
    (r"(?<!zoo:)\b(cartpole_swingup|walker_walk|cheetah_run)\b", "toy_reach"),
    (r"(?<=[\w*])-(cpu|paper)\b", "-debug"),
    (r"--(preset|scale) cpu", r"--\1 debug"),
    (r"/shared/", ""),
    (r"--at 5000 10000 15000", "--at 20 40 60"),
    (r"--at 15000", "--at 60"),
    (r"kind=shared", "kind=shared --set method.auxiliary.transition.hidden=[32,32]"),
    (r"--sizes 100", "--sizes 64"),
)
"""What stands in a block, and what is run in its place."""


@dataclass(frozen=True)
class Block:
    page: str
    number: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The name of the file that the block is, if it is one."""
        found = re.match(r"# ([\w.]+\.(?:py|toml))\n", self.text)
        return found[1] if found else None


def pages() -> list[str]:
    """Every page, relative to the root of the repository."""
    found = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    others = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
    others += ["src/kstep/native/README.md", "tests/authors/README.md"]
    others += [path.relative_to(ROOT).as_posix() for path in ROOT.glob("src/kstep/zoo/*/README.md")]
    return [*others, *sorted(found)]


def blocks(page: str) -> Iterator[Block]:
    text = (ROOT / page).read_text()
    for number, found in enumerate(FENCE.findall(text)):
        yield Block(page, number, found[1].strip(), found[2])


def at_debug_scale(text: str) -> str:
    for there, here in DEBUG:
        text = re.sub(there, here, text)
    return text


ALWAYS: dict[str, dict[str, object]] = {
    "train": {"--preset": "debug", "--env-steps": ENV_STEPS, "--threads": 1},
    "film": {"--height": 64, "--width": 64},
    "bench": {"--quick": ""},
    "selfcheck": {"--quick": ""},
}
"""Flags that a command gets, whatever it says itself."""
IF_GIVEN: dict[str, dict[str, object]] = {
    "train": {"--save-encoders-every": 20, "--evaluate-every": 30, "--encoder-backend": "auto"}
}
"""Flags that get another value."""
SCALED = ("sweep", "compare", "analyze main")
"""Commands that get `--scale debug`, unless they only plan."""


def smaller(words: Sequence[str]) -> list[str]:
    """Return the words of a `kstep` command with flags that make it short."""
    verb, *rest = words
    flags = {**ALWAYS.get(verb, {})}
    flags |= {flag: value for flag, value in IF_GIVEN.get(verb, {}).items() if flag in rest}
    scaled = any(" ".join(words).startswith(name) for name in SCALED)
    if scaled and "--plan" not in rest:
        flags["--scale"] = "debug"
    if verb == "sweep" and "--plan" not in rest:
        flags |= {"--seeds": 1, "--engine": "local"}  # tests/sweep has Ray and Slurm
        if "--address" in rest:
            del rest[rest.index("--address") : rest.index("--address") + 2]
    for flag, value in flags.items():
        if flag in rest:  # to stand there twice would be refused
            del rest[rest.index(flag) : rest.index(flag) + (2 if value else 1)]
        rest += [flag, str(value)] if value else [flag]
    return [verb, *rest]


PROGRAMS = ("kstep", "python", "make", "pip")
SHELL = "".join(
    f"{program}() {{ printf '%s\\0' {program} \"$@\" '' >&$ASK; "
    "local code; read -r code <&$ANSWER; return $code; }\n"
    for program in PROGRAMS
)


def shell(text: str, folder: Path, run: Callable[[list[str]], int]) -> int:
    """Run a block in bash and return its exit code: loops, globs and variables are the shell's, but
    each command in `PROGRAMS` is handed to `run`, in this process, which saves their imports."""
    asked, ask = os.pipe()
    answer, answered = os.pipe()
    try:
        process = subprocess.Popen(
            ["bash", "-e", "-u", "-c", SHELL + text],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "ASK": str(ask), "ANSWER": str(answer)},
            pass_fds=(ask, answer),
        )
    finally:
        os.close(ask)
        os.close(answer)
    with os.fdopen(asked, "rb") as questions, os.fdopen(answered, "wb") as answers:
        read = b""
        while piece := os.read(questions.fileno(), 65536):
            read += piece
            if read.endswith(b"\0\0"):
                words, read = read[:-2].decode().split("\0"), b""
                answers.write(f"{run(words)}\n".encode())
                answers.flush()
    return process.wait()
