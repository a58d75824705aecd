"""The command `kstep`: verbs to functions, no logic. Heavy imports happen inside the verbs."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import sys
import typing
from collections.abc import Callable
from typing import Any

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

import kstep
from kstep import names, values
from kstep.cli.analyses import Analyze, EvaluationSet
from kstep.cli.looking import Bench, CheckEnv, Doctor, List, Show
from kstep.cli.pages import Report, Watch
from kstep.cli.sweeps import Collect, Compare, Import, Status, Sweep
from kstep.cli.training import Eval, Export, Film, Selfcheck, Train, Trust
from kstep.errors import KstepError, explain
from kstep.signals import answered
from kstep.terminal import OutputClosed, Terminal, abandon_output, say, terminal

Verb = (
    Train
    | Eval
    | Film
    | Export
    | Trust
    | EvaluationSet
    | Analyze
    | Show
    | List
    | CheckEnv
    | Doctor
    | Bench
    | Selfcheck
    | Sweep
    | Status
    | Collect
    | Import
    | Compare
    | Report
    | Watch
)
COMMANDS = tuple(
    re.sub(r"(?<=[a-z])(?=[A-Z])", "-", verb.__name__).lower() for verb in typing.get_args(Verb)
)
"""What verbs are called by users: check-env for `CheckEnv`."""

REGISTRY = ConstructorRegistry()


@REGISTRY.primitive_rule
def whole_numbers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """Accept 100_000 and 1e5 wherever a whole number is expected."""
    if info.type is not int:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: values.whole_number(words[0]),
        is_instance=lambda value: type(value) is int,
        str_from_instance=lambda value: [str(value)],
    )


def main(arguments: list[str] | None = None) -> None:
    """Run one verb; errors that a user can fix are printed in one line, without a traceback."""
    # By default idle OpenMP threads spin for milliseconds, which makes a run many times slower as
    # soon as anything else needs a core. Twenty thousand turns are some 50 us. Read by torch.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    words = sys.argv[1:] if arguments is None else arguments
    code: Any = 0
    asked_to_exit = False
    try:
        code = run(words)
    except SystemExit as exit_:  # of a verb, or of tyro, which prints help and mistakes in flags
        code, asked_to_exit = exit_.code, True
    except OutputClosed:  # as in `kstep list methods | head -1`
        code = 128 + signal.SIGPIPE
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        abandon_output()
        code = code or 128 + signal.SIGPIPE
    except OSError as error:
        abandon_output()
        code = code or _report(error)
    if code or asked_to_exit:
        sys.exit(code)


def run(words: list[str]) -> int:
    """Run one verb and return the exit code; errors that a user can fix are reported."""
    with answered():
        try:
            if words == ["--version"]:
                say(terminal(), f"kstep {kstep.__version__}")
                return 0
            verb = parsed(words)
            check(verb)
            bring(verb)
            verb()
        except Exception as error:
            return _report(error)
    return 0


def parsed(words: list[str]) -> Callable[[], None]:
    """Return the verb and its flags; prints help, or what is wrong with them."""
    if words and not words[0].startswith("-"):
        names.require(words[0], COMMANDS, "command")
    try:
        verb: Callable[[], None] = tyro.cli(
            Verb,
            args=words,
            prog="kstep",
            description="Data-efficient reinforcement learning from pixels: KSL and its peers. "
            "kstep --version prints the version.",
            config=(tyro.conf.OmitSubcommandPrefixes,),
            registry=REGISTRY,
        )
    except BrokenPipeError as error:
        raise OutputClosed from error
    return verb


def bring(flags: Any) -> None:
    """Import the modules that the user has named, whatever the verb."""
    if modules := getattr(flags, "imports", ()):
        from kstep.envs import own

        own.bring(modules)


def _report(error: Exception) -> int:
    """Print an error that a user can fix and return its exit code; raise any other."""
    message = str(error) if isinstance(error, KstepError) else explain(error)
    if message is None:  # nobody reads any more, or a bug of ours, which a traceback helps to find
        raise error
    say(Terminal(stderr=True), f"kstep: {message}")
    return error.exit_code if isinstance(error, KstepError) else 1


def check(flags: Any) -> None:
    """Refuse values outside the bounds that stand beside their flags."""
    hints = typing.get_type_hints(type(flags), include_extras=True)
    for field in dataclasses.fields(flags):
        value = getattr(flags, field.name)
        if dataclasses.is_dataclass(value):
            check(value)
        else:
            values.decode(hints[field.name], value, f"--{field.name.replace('_', '-')}")
