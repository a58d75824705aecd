"""The command `kstep`: verbs to functions, no logic. Heavy imports happen inside the verbs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, UseAppendAction

from kstep.errors import KstepError


@dataclass(frozen=True)
class Train:
    """Train an agent. The same command again goes on where it stopped.

    Example: kstep train ksl cartpole_swingup --preset cpu --seed 1
    """

    method: Positional[str]
    """A method, such as ksl or sac_pixel (all of them: kstep list methods)."""
    task: Positional[str]
    """A task, such as cartpole_swingup, gym:<id> or toy_reach (kstep list tasks)."""
    preset: str = "paper"
    """paper: the paper's sizes. cpu: a compact encoder, a third of the work. debug: seconds."""
    seed: int = 1
    """Decides everything random about the run."""
    env_steps: int | None = None
    """Budget in simulator steps, action repeats counted (100,000 unless the preset says less)."""
    set: UseAppendAction[tuple[str, ...]] = ()
    """Change any setting: --set method.auxiliary.k=5 (keys: kstep show METHOD). May be repeated."""
    runs: Path = Path("runs")
    """Where run folders are kept."""
    folder: Path | None = None
    """This run's folder, if not the usual place below --runs."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    threads: int | None = None
    """Processor threads; the default uses all cores."""
    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints."""
    replay: Literal["memory", "disk"] = "memory"
    """Where the frames of the replay are kept; disk is slower and needs no memory."""
    overlap: Literal["auto", "on", "off"] = "auto"
    """Step the environment in a process of its own while learning; same results, bit for bit."""
    save_encoders_every: int | None = None
    """Also keep the encoder every so many env steps, for kstep analyze (the paper: 5000)."""
    frozen_encoder: Path | None = None
    """Take this encoder, saved by another run, as it is and learn only actor and critic on it."""
    tensorboard: bool = False
    """Also write TensorBoard events (needs the extra tb)."""

    def __call__(self) -> None:
        from rich.console import Console

        from kstep import config, encoders, system
        from kstep.run import Run
        from kstep.train import Runtime, Stopped, train

        if self.threads is not None and self.threads < 1:
            raise KstepError(f"--threads must be at least 1, not {self.threads}")
        if not 0 < self.checkpoint_minutes < float("inf"):
            raise KstepError(
                f"--checkpoint-minutes must be positive, not {self.checkpoint_minutes}"
            )
        system.keep_freed_memory()
        console = Console(soft_wrap=True)
        experiment = config.resolve(
            self.method,
            self.task,
            preset=self.preset,
            seed=self.seed,
            env_steps=self.env_steps,
            overrides=self.set,
            frozen_encoder=encoders.frozen(self.frozen_encoder) if self.frozen_encoder else None,
        )
        system.device(self.device)
        special = bool(self.set) or self.frozen_encoder is not None
        folder = self.folder or Run.default_folder(self.runs, experiment, special)
        run = Run.prepare(folder, experiment)
        console.print(f"run folder: {folder}", highlight=False)
        runtime = Runtime(
            self.device,
            self.threads,
            self.checkpoint_minutes,
            tensorboard=self.tensorboard,
            replay=self.replay,
            overlap=self.overlap,
            save_encoders_every=self.save_encoders_every,
            frozen_encoder=self.frozen_encoder,
        )
        try:
            train(run, runtime, console)
        except Stopped as stopped:
            console.print(f"{stopped}. The same command goes on from there.", highlight=False)
            sys.exit(130)
        console.print(f"done: {folder / 'evaluations.jsonl'}", highlight=False)


@dataclass(frozen=True)
class Eval:
    """Evaluate a run's newest checkpoint: greedy episodes, every return printed.

    Example: kstep eval runs/cartpole_swingup/ksl-cpu/seed1 --episodes 20
    """

    run: Positional[Path]
    """A run folder."""
    episodes: int = 10
    seed: int = 0
    """Which episodes: the same seed repeats the same starts."""
    device: str = "cpu"

    def __call__(self) -> None:
        from rich.console import Console

        from kstep.evaluate import evaluate, evaluation_seeds
        from kstep.play import opened

        if self.episodes < 1:
            raise KstepError(f"--episodes must be at least 1, not {self.episodes}")
        if self.seed < 0:
            raise KstepError(f"--seed must not be negative, not {self.seed}")
        with opened(self.run, self.device) as (agent, env, counts):
            seeds = evaluation_seeds(self.seed, -1, self.episodes)
            result = evaluate(agent, env, seeds)
        console = Console(soft_wrap=True)
        console.print(
            f"{self.run} at {counts.env_steps:,} env steps, {counts.decisions:,} decisions, "
            f"{counts.updates:,} updates",
            highlight=False,
        )
        for index, value in enumerate(result.returns):
            console.print(f"  episode {index + 1:>3}: {value:8.2f}", highlight=False)
        console.print(
            f"mean {result.mean:.2f}, standard deviation over episodes {result.spread:.2f}",
            highlight=False,
        )


@dataclass(frozen=True)
class Film:
    """Film a run's newest checkpoint as mp4.

    Example: kstep film runs/cartpole_swingup/ksl-cpu/seed1 --output swingup.mp4
    """

    run: Positional[Path]
    """A run folder."""
    output: Path = Path("film.mp4")
    episodes: int = 1
    seed: int = 0
    height: int = 480
    width: int = 640
    camera: int | None = None
    """A camera's number; the default is the one the agent sees through."""
    fps: float | None = None
    """Frames per second; the default is real time."""
    device: str = "cpu"

    def __call__(self) -> None:
        from rich.console import Console

        from kstep.evaluate import evaluation_seeds
        from kstep.film import FilmConfig, film
        from kstep.play import opened

        if self.seed < 0:
            raise KstepError(f"--seed must not be negative, not {self.seed}")
        config = FilmConfig(self.height, self.width, self.camera, self.fps)
        with opened(self.run, self.device) as (agent, env, _):
            seeds = evaluation_seeds(self.seed, -1, self.episodes)
            result = film(agent, env, seeds, self.output, config)
        Console(soft_wrap=True).print(f"{self.output}: return {result.mean:.1f}", highlight=False)


@dataclass(frozen=True)
class EvaluationSet:
    """Collect the states that analyses ask about: greedy episodes of a trained agent.

    Example: kstep evaluation-set runs/walker_walk/ksl/seed1 --output sets/walker_walk
    """

    run: Positional[Path]
    """A run folder."""
    output: Path
    """The folder to make."""
    episodes: int = 10
    seed: int = 0
    """Which episodes: the same seed repeats the same starts."""
    sizes: tuple[int, ...] = ()
    """Further frame sizes to draw, for encoders that see others (100 for crops of 84)."""

    def __call__(self) -> None:
        from rich.console import Console

        from kstep.analysis.evaluation_set import collect_from

        if self.episodes < 1:
            raise KstepError(f"--episodes must be at least 1, not {self.episodes}")
        if self.output.exists():
            raise KstepError(f"{self.output} exists already; choose another --output")
        states = collect_from(self.run, episodes=self.episodes, seed=self.seed, sizes=self.sizes)
        states.save(self.output)
        returns = states.provenance["returns"]
        Console(soft_wrap=True).print(
            f"{self.output}: {len(states):,} states of {self.episodes} episodes, "
            f"returns {min(returns):.1f} to {max(returns):.1f}",
            highlight=False,
        )


@dataclass(frozen=True)
class Analyze:
    """Ask what encoders learned: tables as CSV, figures as PNG.

    Example: kstep analyze reward-mse runs/walker_walk/*/seed* --on sets/walker_walk
    """

    question: Positional[str]
    """About encoders: reward-pca, reward-mse, perturbation, temporal, gradients, collapse,
    state-probe, horizon or saliency; latents: the five that need only one encoding of the states;
    survey: those and perturbation. About returns, beside the paper's: main, tangential, k-l-grid,
    conv-transition, optimizers or generalization."""
    encoders: Positional[tuple[Path, ...]]
    """Run folders (all encoders they saved, or the newest checkpoint) or saved encoders."""
    on: Path | None = None
    """An evaluation set (kstep evaluation-set), for all questions about encoders but gradients."""
    output: Path = Path("analysis")
    """Where tables and figures go; those of the same question are replaced."""
    at: tuple[int, ...] = ()
    """Only encoders saved, or returns tabulated, at these env steps (the paper's PCA: 5000 10000
    15000)."""
    episodes: int | None = None
    """Use only the set's first few episodes, where time is short."""
    perturbed: int = 250
    """How many states perturbation changes, evenly spaced over the set; the paper: all of them."""
    threads: int | None = None

    def __call__(self) -> None:
        from kstep.analysis import command

        command.run(
            self.question,
            self.encoders,
            on=self.on,
            output=self.output,
            at=self.at,
            episodes=self.episodes,
            perturbed=self.perturbed,
            threads=self.threads,
        )


@dataclass(frozen=True)
class Show:
    """Explain a method (who owns what, which loss reaches what), or where two methods differ.

    Example: kstep show ksl --diff ksl-released
    """

    method: Positional[str]
    diff: str | None = None
    """Another method to compare with."""
    task: str = "cartpole_swingup"
    """For settings that depend on the task."""
    preset: str = "paper"

    def __call__(self) -> None:
        from rich.console import Console

        from kstep import config, show

        console = Console()
        if not console.is_terminal:
            console = Console(width=120)  # for files and pipes, whatever the window is
        left = config.resolve(self.method, self.task, preset=self.preset)
        if self.diff is None:
            show.show_method(left, console)
        else:
            right = config.resolve(self.diff, self.task, preset=self.preset)
            show.show_difference(left, right, console)


@dataclass(frozen=True)
class List:
    """List methods, tasks or presets.

    Example: kstep list methods
    """

    what: Positional[Literal["methods", "tasks", "presets"]] = "methods"

    def __call__(self) -> None:
        from kstep import config, methods
        from kstep.envs import tasks

        if self.what == "methods":
            for method in methods.METHODS.values():
                print(f"{method.name:20} {method.summary}")
        elif self.what == "presets":
            for name, preset in config.PRESETS.items():
                print(f"{name:14} {preset.__doc__}")
        else:
            for name in tasks.names():
                print(f"{name:28} action repeat {tasks.parse(name).action_repeat}")
            print("gym:<id>                     any Gymnasium environment with Box actions")


@dataclass(frozen=True)
class Doctor:
    """Check rendering, versions, threads and memory; says what to do where something is missing."""

    backend: str | None = None
    """Test this rendering backend only."""

    def __call__(self) -> None:
        from rich.console import Console

        from kstep.doctor import doctor

        if not doctor(Console(soft_wrap=True), self.backend):
            sys.exit(1)


Verb = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Eval, tyro.conf.subcommand("eval")]
    | Annotated[Film, tyro.conf.subcommand("film")]
    | Annotated[EvaluationSet, tyro.conf.subcommand("evaluation-set")]
    | Annotated[Analyze, tyro.conf.subcommand("analyze")]
    | Annotated[Show, tyro.conf.subcommand("show")]
    | Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
)


def main(arguments: list[str] | None = None) -> None:
    """Run one verb; what a user can put right is said in one line, without a traceback."""
    # By default idle OpenMP threads spin for milliseconds, which makes a run many times slower as
    # soon as anything else wants a core. Twenty thousand turns are some 50 us. Read by torch.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    verb: Train | Eval | Film | EvaluationSet | Analyze | Show | List | Doctor = tyro.cli(
        Verb,
        args=arguments,
        prog="kstep",
        description="Data-efficient reinforcement learning from pixels: KSL and its peers.",
        config=(tyro.conf.OmitSubcommandPrefixes,),
    )
    try:
        verb()
    except KstepError as error:
        print(f"kstep: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # no space, no permission, not a folder: the system says it best
        print(f"kstep: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("kstep: interrupted", file=sys.stderr)
        sys.exit(130)
