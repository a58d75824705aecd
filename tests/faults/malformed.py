"""Malformed files of every kind that a verb reads, from a seed, and what each verb makes of them.

A `Specimen` is a folder with two runs, their encoders, an evaluation set, an experiment, a table
and somebody's CSV, all intact. A case copies it, spoils one file, and runs one verb that reads that
file. What must hold afterwards: it exits with 0 or 2 (or with 1 where an experiment that can be
read cannot be computed here), says what is wrong in words and names it, never ends in a traceback,
sends no escape sequence to the terminal and changes nothing but what it was asked to write; a table
that it wrote can be read.

    python -m tests.faults.malformed 5000

prints how many of each kind were refused, left out and accepted.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from kstep import cli
from kstep.files import fingerprint
from kstep.run.folder import Attempt, RunFolder
from kstep.sweep import experiments, plan, store

EXPERIMENT = """
title = "Two methods"
tasks = ["toy_reach"]
marks = [60]
save_encoders_every = 30

[[group]]
methods = ["ksl"]
seeds = "1-2"
env_steps = 60
set = [
    "method.learning.initial_decisions=30", "method.learning.batch_size=4",
    "method.auxiliary.sampling=any", "evaluation.every=30", "evaluation.episodes=2",
]

[[group]]
methods = ["sac_pixel"]
seeds = "1"
env_steps = 60
"""
CSV = """method,task,seed,env_steps,return,variant,episode
drq,toy_reach,1,0,1.5,published,0
drq,toy_reach,1,60,3.25,published,0
drq,toy_reach,2,60,4,published,0
"""
TABLE = "out/table.parquet"
RUN = "run"
"""Stands for the run whose file is spoiled, in the arguments of a verb."""


class Specimen:
    """Everything that verbs read, intact."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        with contextlib.chdir(root), contextlib.redirect_stdout(io.StringIO()):
            Path("mine.toml").write_text(EXPERIMENT)
            Path("theirs.csv").write_text(CSV)
            sweep = experiments.read("mine.toml", "debug")
            self.specs = sorted(plan.plan(sweep), key=lambda spec: (spec.method, spec.seed))
            for spec in self.specs:
                cli.main([*spec.arguments(), "--threads", "1", "--checkpoint-minutes", "1e-3"])
                attempt = Attempt("then", 2.5, 1, "cpu", "here", 60, "done", 0, "")
                text = json.dumps(asdict(attempt)) + "\n"
                spec.run.attempts_file.write_text(2 * text)
            self.run = self.specs[1].folder
            encoder = RunFolder(self.specs[0].folder).saved_encoders()[-1]
            frozen = ["train", "sac_pixel", "toy_glide", "--preset", "debug", "--env-steps", "60"]
            small = ["method.learning.initial_decisions=30", "method.learning.batch_size=4"]
            for text in (*small, "evaluation.every=30", "evaluation.episodes=2"):
                frozen += ["--set", text]
            self.frozen = [*frozen, "--threads", "1", "--frozen-encoder", str(encoder)]
            cli.main([*self.frozen, "--folder", "frozen"])
            cli.main(["collect", "runs"])
            cli.main(["evaluation-set", str(self.run), "--output", "set", "--episodes", "2"])

    def longer(self) -> list[str]:
        """Return the command that resumes the run for two more decisions."""
        words = self.specs[1].arguments()
        words[words.index("--env-steps") + 1] = "62"
        return [*words, "--threads", "1"]

    def verbs(self) -> dict[str, list[str]]:
        """Return every command by what it does; each writes at most to the folder `out`."""
        run, found = str(self.run), ["--experiment", "mine.toml", "--scale", "debug"]
        encoder = f"{run}/encoders/000000060.safetensors"
        resumed = [word if word != "60" else "62" for word in self.frozen]
        pixel = str(self.specs[-1].folder)
        on, out = ["--on", "set"], ["--output", "out"]
        return {
            "collect": ["collect", "runs", "--output", TABLE],
            "collect into": ["collect", "runs"],
            "import": ["import", "theirs.csv", "--source", "them", "--output", "out/t.parquet"],
            "import into": ["import", "theirs.csv", "--source", "them"],
            "compare": ["compare", "mine.toml", "--scale", "debug", "--repetitions", "10"],
            "plan": ["sweep", "mine.toml", "--scale", "debug", "--plan"],
            "eval": ["eval", run, "--episodes", "1"],
            "film": ["film", run, "--output", "out/film.gif", "--height", "16", "--width", "16"],
            "evaluation-set": ["evaluation-set", run, "--output", "out/set", "--episodes", "1"],
            "train": self.longer(),
            "train, frozen": [*resumed, "--folder", "frozen"],
            "train on": [*self.frozen[:-1], encoder, "--folder", "out/new"],
            "analyze main": ["analyze", "main", run, *out],
            "analyze main, found": ["analyze", "main", *found, *out],
            "analyze conv-transition": ["analyze", "conv-transition", run, *out],
            "analyze wall-clock": ["analyze", "wall-clock", run, pixel, *out],
            "analyze wall-clock, found": ["analyze", "wall-clock", *found, *out],
            "analyze gradients": ["analyze", "gradients", encoder, *out],
            "analyze gradients, found": ["analyze", "gradients", *found, *out],
            "analyze collapse": ["analyze", "collapse", encoder, *on, *out],
            "analyze horizon": ["analyze", "horizon", run, *on, *out],
        }


Spoil = Callable[[Path, random.Random], None]
ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 1.5, -0.5, 1e308, -1e308, 10**12, 2**63, 10**30, -(10**18)),
    *(float("nan"), float("inf"), float("-inf")),
    *(
        "",
        "x",
        "a" * 100_000,
        "\ud800",
        "\x1b[31m\x07",
        "[/bold]",
        "../../../tmp/x",
        "\x00",
        "ksl",
        r"$\frac{",
    ),
    *([], {}, [[]], [None], {"x": {"y": [1]}}, [1e9] * 50, ["x"] * 3),
)


def deep(levels: int) -> str:
    return "[" * levels + "]" * levels


# --- what can happen to any file ------------------------------------------------------------------


def truncated(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def flipped(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 2, 20))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def overwritten(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    at, length = rng.randrange(len(data)), rng.choice((1, 8, 64))
    data[at : at + length] = rng.randbytes(length)
    path.write_bytes(data)


def appended(path: Path, rng: random.Random) -> None:
    more = (b"\x00", b"{}\n", b"[1]\n", b"\xff\xfe\n", b"=1+1\n", rng.randbytes(30), b"\n\n")
    with path.open("ab") as file:
        file.write(rng.choice(more))


def other_content(path: Path, rng: random.Random) -> None:
    texts: tuple[bytes, ...] = (
        b"",
        b"\n",
        b"null\n",
        b"[]\n",
        b"{}\n",
        b"3\n",
        b'"x"\n',
        b"{\n",
        b"\x80\x04K\x01.",
    )
    texts += (b"NaN\n", b"1e999\n", b"9" * 5_000 + b"\n", b"\x00" * 64, b"PAR1PAR1", b"\xff\xfe{}")
    texts += tuple(deep(levels).encode() + b"\n" for levels in (40, 2_000, 100_000))
    texts += (b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"\n", b"\x1b[2J[/bold]\n")
    path.write_bytes(rng.choice(texts))


def other_encoding(path: Path, rng: random.Random) -> None:
    text = path.read_bytes().decode("latin-1")
    encodings = ("utf-16", "utf-32", "utf-8-sig", "utf-7", "cp037")
    path.write_bytes(text.encode(rng.choice(encodings)))


def other_kind_of_file(path: Path, rng: random.Random) -> None:
    path.unlink()
    kind = rng.choice(("pipe", "folder", "dangling", "loop", "device", "socket name", "missing"))
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
        (path / "inside").write_text("x")
    elif kind == "dangling":
        path.symlink_to("nowhere/at/all")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "device":
        path.symlink_to(rng.choice(("/dev/zero", "/dev/full", "/dev/tty", "/dev/null")))
    elif kind == "socket name":
        os.mknod(path, stat.S_IFSOCK | 0o600)


def sparse(path: Path, rng: random.Random) -> None:
    os.truncate(path, rng.choice((2**37, 2**42)))


ANY: tuple[Spoil, ...] = (
    *(truncated, flipped, flipped, overwritten, appended),
    *(other_content, other_content, other_encoding, other_kind_of_file, other_kind_of_file, sparse),
)


# --- what can happen to values --------------------------------------------------------------------


def odd_value(value: Any, rng: random.Random) -> Any:
    """Return a JSON value in which one place holds something else, lacks it or has more."""
    places: list[tuple[Any, Any]] = []

    def look(inner: Any) -> None:
        keys = inner.keys() if isinstance(inner, dict) else range(len(inner))
        for key in keys:
            places.append((inner, key))
            if isinstance(inner[key], dict | list):
                look(inner[key])

    if isinstance(value, dict | list) and value:
        look(value)
    if not places or rng.random() < 0.03:
        return rng.choice(ODD)
    holder, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.7:
        holder[key] = rng.choice(ODD)
    elif kind < 0.8:
        del holder[key]
    elif kind < 0.9 and isinstance(holder, dict):
        holder[rng.choice(("unknown", "", "\x1b[31m", "[/x]", "kind"))] = rng.choice(ODD)
    else:
        holder[key] = json.loads(deep(60))
    return value


def json_value(path: Path, rng: random.Random) -> None:
    path.write_text(json.dumps(odd_value(json.loads(path.read_text()), rng)))


def config_signed(path: Path, rng: random.Random) -> None:
    """Change a setting and make the digest fit."""
    data = json.loads(path.read_text())
    if isinstance(data["experiment"], dict):
        data["experiment"] = odd_value(data["experiment"], rng)
        settings = data["experiment"]
        if isinstance(settings, dict):
            rest = {key: value for key, value in settings.items() if key != "env_steps"}
            data["digest"] = fingerprint(rest)[:16]
    path.write_text(json.dumps(data))


def state_signed(path: Path, rng: random.Random) -> None:
    """Change a value and make the checksum fit."""
    data = json.loads(path.read_text())
    del data["checksum"]
    data = odd_value(data, rng)
    if isinstance(data, dict):
        data["checksum"] = fingerprint(data)
    path.write_text(json.dumps(data))


def json_line(path: Path, rng: random.Random) -> None:
    lines = path.read_text().splitlines()
    at = rng.randrange(len(lines))
    lines[at] = json.dumps(odd_value(json.loads(lines[at]), rng))
    path.write_text("\n".join(lines) + "\n")


def odd_tensors(path: Path, rng: random.Random) -> None:
    """Change the header, or what a tensor is, so that it still is a file of tensors."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, rest = json.loads(data[8 : 8 + length]), data[8 + length :]
    about = header.get("__metadata__", {})
    arrays = safetensors.numpy.load(data)
    kind = rng.choice(("header", "metadata", "metadata", "array", "array", "length"))
    if kind == "length":
        path.write_bytes(rng.choice((0, 1, 2**31, 2**63, 2**64 - 1)).to_bytes(8, "little") + rest)
        return
    if kind == "metadata" and "kstep encoder" in about:
        changed = odd_value(json.loads(about["kstep encoder"]), rng)
        about = {"kstep encoder": json.dumps(changed)}
    elif kind == "array" or "kstep encoder" not in about:
        name = rng.choice([*arrays])
        array = arrays[name]
        odd: dict[str, Callable[[], Any]] = {
            "gone": lambda: None,
            "not finite": lambda: np.full(array.shape, np.nan, np.float32),
            "infinite": lambda: np.full(array.shape, -np.inf, np.float64),
            "flat": lambda: array.reshape(-1),
            "longer": lambda: np.concatenate([array.reshape(-1), array.reshape(-1)]),
            "empty": lambda: array.reshape(-1)[:0],
            "scalar": lambda: np.array(3.0),
            "negative": lambda: -np.ones(array.shape, np.int64),
            "large": lambda: np.full(array.shape, 2**62, np.int64),
            "half": lambda: array.astype(np.float16),
            "bool": lambda: array.astype(bool),
        }
        changed = odd[rng.choice([*odd])]()
        arrays.pop(name)
        if changed is not None:
            arrays[rng.choice((name, name, name, "other"))] = np.ascontiguousarray(changed)
    else:
        text = json.dumps(odd_value(header, rng)).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + rest)
        return
    path.write_bytes(safetensors.numpy.save(arrays, about or None))


def signed(inner: Spoil) -> Spoil:
    """Make the checksum in the file beside it fit a file of tensors that was spoiled."""

    def spoil(path: Path, rng: random.Random) -> None:
        inner(path, rng)
        if not stat.S_ISREG(path.stat().st_mode if path.exists() else 0):
            return
        if path.stat().st_size > 2**30:
            return
        checksum = hashlib.sha256(path.read_bytes()).hexdigest()
        if path.name == "states.safetensors":
            file = path.with_name("set.json")
            file.write_text(json.dumps({**json.loads(file.read_text()), "states": checksum}))
            return
        replay = path.parent.name == "replay"
        for file in path.parents[1 if replay else 0].rglob("state.json"):
            state = json.loads(file.read_text())
            del state["checksum"]
            if not replay:
                state["weights"] = checksum
            elif path.name in state["replay"]["segments"]:
                state["replay"]["segments"][path.name] = checksum
            file.write_text(json.dumps({**state, "checksum": fingerprint(state)}))

    return spoil


def odd_toml(path: Path, rng: random.Random) -> None:
    odd: tuple[str, ...] = (
        "nan",
        "inf",
        "-1",
        "0",
        "1e400",
        "9" * 5_000,
        "2**3",
        "true",
        "1979-05-27",
        '"x"',
        "[]",
    )
    odd += ("[[1]]", "{a=1}", '"\\u001b[31m[/bold]"', '["ksl"]', deep(60), deep(3_000), '"1-9"', "")
    lines = path.read_text().splitlines()
    at = rng.choice([i for i, line in enumerate(lines) if "=" in line and line[0] != " "])
    key = lines[at].partition("=")[0]
    if rng.random() < 0.2:
        key = rng.choice(("unknown", "a.b", "scale", "group", "paper", "transfer", "alone"))
    kept = [] if "set" not in lines[at] else lines[at + 1 : at + 4]
    text = [*lines[:at], f"{key} = {rng.choice(odd)}", *lines[at + 1 + len(kept) :]]
    path.write_text("\n".join(text) + "\n")


def odd_cell(path: Path, rng: random.Random) -> None:
    odd: tuple[str, ...] = (
        "nan",
        "inf",
        "-inf",
        "1e400",
        "1.5",
        "-1",
        "",
        " ",
        "x",
        '"',
        "=1+1",
        "9" * 5_000,
    )
    odd += (
        "1e300",
        "99999999999999999999",
        "\x00",
        "\x1b[31m",
        "a" * 200_000,
        "0x10",
        "1_0",
        "\u0661",
    )
    rows = [line.split(",") for line in path.read_text().splitlines()]
    row = rng.choice(rows)
    kind = rng.random()
    if kind < 0.8:
        row[rng.randrange(len(row))] = rng.choice(odd)
    elif kind < 0.9:
        row.append("more")
    else:
        row.pop()
    path.write_text("\n".join(",".join(row) for row in rows) + "\n")


def odd_table(path: Path, rng: random.Random) -> None:
    """A table that can be read, of something else."""
    import polars as pl

    frame = pl.read_parquet(path)
    name = rng.choice(frame.columns)
    changes: dict[str, Callable[[], pl.DataFrame]] = {
        "gone": lambda: frame.drop(name),
        "more": lambda: frame.with_columns(pl.lit(1).alias("more")),
        "null": lambda: frame.with_columns(pl.lit(None, frame.schema[name]).alias(name)),
        "text": lambda: frame.with_columns(pl.lit("\x1b[31m[/bold]").alias(name)),
        "nan": lambda: frame.with_columns(pl.lit(float("nan")).alias("return")),
        "huge": lambda: frame.with_columns(pl.lit(1e300).alias("return")),
        "negative": lambda: frame.with_columns(-1 - pl.col("mark")),
        "twice": lambda: pl.concat([frame, frame]),
        "no rows": lambda: frame.clear(),
        "other order": lambda: frame.select(reversed(frame.columns)),
        "nested": lambda: frame.with_columns(pl.struct("seed", "mark").alias(name)),
    }
    changes[rng.choice([*changes])]().write_parquet(path)


def renamed(path: Path, rng: random.Random) -> None:
    """Give the run's folder a name that is no plain text."""
    names: tuple[str, ...] = (
        "[/bold]",
        "[red]x",
        "\x1b[31m",
        "a\nb",
        "%s{0}",
        "-rf",
        "=1+1",
        "ä" * 80,
        " ",
        "'",
    )
    names += (os.fsdecode(b"\xff\xfe"), "<script>", "a" * 250)
    path.parent.rename(path.parent.with_name(rng.choice(names)))


@dataclass(frozen=True)
class Kind:
    """A kind of file: where it is, what can happen to it, and which verbs read it."""

    name: str
    path: str
    spoils: tuple[Spoil, ...]
    verbs: tuple[str, ...]


SEEING = ("eval", "evaluation-set", "film", "analyze horizon")
KINDS = (
    Kind(
        "config.json",
        f"{RUN}/config.json",
        (*ANY, *[json_value] * 3, *[config_signed] * 6, renamed),
        ("collect", "plan", "train", "analyze main", "analyze main, found", *SEEING),
    ),
    Kind("system.json", f"{RUN}/system.json", (*ANY, *[json_value] * 6), ("collect", "train")),
    Kind(
        "evaluations.jsonl",
        f"{RUN}/evaluations.jsonl",
        (*ANY, *[json_line] * 8),
        ("collect", "plan", "train", "analyze main", "analyze main, found"),
    ),
    Kind(
        "metrics.jsonl",
        f"{RUN}/metrics.jsonl",
        (*ANY, *[json_line] * 8),
        ("plan", "train", "analyze conv-transition"),
    ),
    Kind("clock.jsonl", f"{RUN}/clock.jsonl", (*ANY, *[json_line] * 8), ("collect", "train")),
    Kind(
        "attempts.jsonl",
        f"{RUN}.attempts.jsonl",
        (*ANY, *[json_line] * 8),
        ("plan", "analyze wall-clock", "analyze wall-clock, found"),
    ),
    Kind(
        "state.json",
        f"{RUN}/checkpoints/*/state.json",
        (*ANY, *[json_value] * 2, *[state_signed] * 12),
        ("train", "train", *SEEING),
    ),
    Kind(
        "agent.safetensors",
        f"{RUN}/checkpoints/*/agent.safetensors",
        (*ANY, *map(signed, ANY), *[signed(odd_tensors)] * 12),
        ("train", "train", *SEEING),
    ),
    Kind(
        "replay segment",
        f"{RUN}/replay/frames-*.safetensors",
        (*ANY, *map(signed, ANY), *[signed(odd_tensors)] * 12),
        ("train",),
    ),
    Kind(
        "saved encoder",
        f"{RUN}/encoders/000000060.safetensors",
        (*ANY, *[odd_tensors] * 12),
        ("analyze gradients", "analyze gradients, found", "analyze collapse", "train on", "plan"),
    ),
    Kind(
        "frozen encoder",
        "frozen/frozen_encoder.safetensors",
        (*ANY, *[odd_tensors] * 6),
        ("train, frozen",),
    ),
    Kind(
        "set.json",
        "set/set.json",
        (*ANY, *[json_value] * 10),
        ("analyze collapse", "analyze horizon"),
    ),
    Kind(
        "states.safetensors",
        "set/states.safetensors",
        (*ANY, *map(signed, ANY), *[signed(odd_tensors)] * 12),
        ("analyze collapse", "analyze horizon"),
    ),
    Kind(
        "experiment.toml",
        "mine.toml",
        (*ANY, *[odd_toml] * 12),
        ("plan", "plan", "compare", "analyze main, found"),
    ),
    Kind(
        "results.parquet",
        "results.parquet",
        (*ANY, *[odd_table] * 8),
        ("compare", "compare", "collect into", "import into"),
    ),
    Kind("import.csv", "theirs.csv", (*ANY, *[odd_cell] * 12), ("import",)),
)


@dataclass(frozen=True)
class Outcome:
    """What became of one case."""

    kind: str
    how: str
    verb: str
    code: Any
    said: str

    @property
    def result(self) -> str:
        if self.code:
            return "refused"
        return "left out" if "left out:" in self.said or "stay empty" in self.said else "accepted"


def examine(specimen: Specimen, kind: Kind, seed: int) -> Outcome:
    """Spoil one file of that kind and run one verb that reads it; raise if that ends badly."""
    rng = random.Random(f"{kind.name} {seed}")
    spoil, verb = rng.choice(kind.spoils), rng.choice(kind.verbs)
    how = getattr(spoil, "__name__", "")
    case = f"{kind.name}, seed {seed}: {how}, {verb}"
    with tempfile.TemporaryDirectory(prefix="malformed") as parent:
        root = Path(parent) / "work"
        shutil.copytree(specimen.root, root, symlinks=True)
        (root / "out").mkdir()
        with contextlib.chdir(root):
            path = rng.choice(sorted(Path().glob(kind.path.replace(RUN, str(specimen.run), 1))))
            if "checkpoints" in path.parts and rng.random() < 0.7:
                for other in {*path.parents[1].iterdir()} - {path.parent}:
                    shutil.rmtree(other)  # which would take its place
            spoil(path, rng)
            before = dict(listing(Path(parent)))
            code, said = called(specimen.verbs()[verb], case)
            after = dict(listing(Path(parent)))
            if code == 0 and Path(TABLE).exists():
                store.read(Path(TABLE))
    check(case, code, said)
    written = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    allowed = ["work/out"]
    if verb in ("collect into", "import into"):
        allowed.append("work/results.parquet")
    if verb in ("train", "train, frozen"):
        allowed.append(f"work/{'frozen' if 'frozen' in verb else specimen.run}")
    outside = [name for name in written if not any(name.startswith(start) for start in allowed)]
    assert not outside, f"{case}: wrote {outside}"
    if how in ("other_kind_of_file", "sparse") and code == 0:
        assert named_or_harmless(kind, verb, said), f"{case}: accepted without a word\n{said}"
    return Outcome(kind.name, how, verb, code, said)


def listing(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield what is below a folder: names, and what regular files hold."""
    for path in folder.rglob("*"):
        status = path.lstat()
        small = stat.S_ISREG(status.st_mode) and status.st_size < 2**30
        content = hashlib.sha256(path.read_bytes()).digest() if small else status.st_size
        mode = stat.S_IFMT(status.st_mode)
        yield str(path.relative_to(folder)), (mode, content if not path.is_dir() else None)


def called(words: list[str], case: str) -> tuple[Any, str]:
    """Run a command in this process; return its exit code and everything it said."""
    out = io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            cli.main(words)
        except SystemExit as stopped:
            code = stopped.code
        except BaseException as error:
            raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
    return code, out.getvalue()


CANNOT_COMPUTE = ("learning broke", "out of memory", "raised", "disk is full")
"""What an experiment that can be read may end in."""


def check(case: str, code: Any, said: str) -> None:
    """One clear sentence, no traceback, no escape sequence."""
    assert "Traceback" not in said, f"{case}: {said}"
    control = [c for c in said if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0]
    assert not control, f"{case}: {said!r}"
    if code == 0:
        return
    sentences = [line for line in said.splitlines() if line.startswith("kstep: ")]
    assert len(sentences) == 1, f"{case}: {said}"
    assert len(sentences[0]) > 20, f"{case}: {said}"
    could_not = code == 1 and any(reason in said for reason in CANNOT_COMPUTE)
    assert code == 2 or could_not, f"{case}: exit code {code}: {said}"


def named_or_harmless(kind: Kind, verb: str, said: str) -> bool:
    """Whether a file that is none was named, or is not needed by that verb."""
    name = kind.path.rpartition("/")[2].rpartition("*")[2].removeprefix(RUN)
    harmless = {
        # Nothing depends on it: what is there is kept under another name.
        ("system.json", "train"),
        # Times and progress that cannot be read are not known; the plan says what is.
        *(("metrics.jsonl", "plan"), ("attempts.jsonl", "plan"), ("evaluations.jsonl", "plan")),
        *(("config.json", "plan"), ("saved encoder", "plan"), ("clock.jsonl", verb)),
        # The checkpoint before, or a log of which nothing is needed yet, takes its place.
        *(("state.json", verb), ("agent.safetensors", verb), ("replay segment", verb)),
        *(("metrics.jsonl", "train"), ("evaluations.jsonl", "train")),
        # Where there is none, the file that --frozen-encoder names is copied once more.
        ("frozen encoder", "train, frozen"),
        # A run without one is not a run, or has no time yet.
        *(("config.json", "collect"), ("config.json", "analyze main, found")),
        ("evaluations.jsonl", "collect"),
        *(("attempts.jsonl", "analyze wall-clock, found"), ("system.json", "collect")),
        *(("evaluations.jsonl", "analyze main, found"), ("results.parquet", "collect into")),
        *(("metrics.jsonl", "analyze conv-transition"), ("results.parquet", "import into")),
    }
    return name in said or (kind.name, verb) in harmless


def figures(outcomes: list[Outcome]) -> str:
    """Return a table of what became of every kind, in Markdown."""
    lines = [
        "| file | inputs | verbs | refused | left out | accepted |",
        "|---|---|---|---|---|---|",
    ]
    total: Counter[str] = Counter()
    for kind in KINDS:
        own = [outcome for outcome in outcomes if outcome.kind == kind.name]
        counts = Counter(outcome.result for outcome in own)
        total += counts
        cells = (len(own), len({o.verb for o in own}), *(counts[r] for r in RESULTS))
        lines.append(f"| `{kind.name}` | {' | '.join(f'{cell:,}' for cell in cells)} |")
    cells = (len(outcomes), len({o.verb for o in outcomes}), *(total[r] for r in RESULTS))
    lines.append(f"| all | {' | '.join(f'{cell:,}' for cell in cells)} |")
    return "\n".join(lines)


RESULTS = ("refused", "left out", "accepted")


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        specimen = Specimen(Path(folder) / "specimen")
        outcomes, failures = [], []
        for number in range(count):
            kind = KINDS[number % len(KINDS)]
            try:
                outcomes.append(examine(specimen, kind, number // len(KINDS)))
            except AssertionError as error:
                failures.append(str(error))
                print(f"FAILED {error}", file=sys.stderr, flush=True)
        print(figures(outcomes))
        print(f"{len(failures)} failures")


if __name__ == "__main__":
    main(int(sys.argv[1]))
