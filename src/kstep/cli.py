"""The command `kstep`: verbs to functions, no logic. Heavy imports happen inside the verbs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import Positional, UseAppendAction

from kstep import errors as faults
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
    encoder_backend: Literal["auto", "torch", "native", "compiled"] = "auto"
    """What computes the convolutions; auto: our kernels where they are right and faster, else
    PyTorch. compiled: PyTorch's compiler, which captures graphs on CUDA."""
    save_encoders_every: int | None = None
    """Also keep the encoder every so many env steps, for kstep analyze (the paper: 5000)."""
    frozen_encoder: Path | None = None
    """Take this encoder, saved by another run, as it is and learn only actor and critic on it."""
    tensorboard: bool = False
    """Also write TensorBoard events (needs the extra tb)."""
    force_version: bool = False
    """Go on with a checkpoint of other versions; the run is no longer reproducible."""
    force_renderer: bool = False
    """Go on with frames of another renderer; the run is no longer reproducible."""

    def __call__(self) -> None:
        from rich.console import Console

        from kstep import config
        from kstep.run import saved_encoders as encoders
        from kstep.run import system
        from kstep.run.folder import Run
        from kstep.run.provenance import Allowed
        from kstep.run.runtime import Runtime
        from kstep.run.train import Stopped, train

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
            encoder_backend=self.encoder_backend,
            save_encoders_every=self.save_encoders_every,
            frozen_encoder=self.frozen_encoder,
            allowed=Allowed(self.force_version, self.force_renderer),
        )
        try:
            train(run, runtime, console)
        except Stopped as stopped:
            console.print(f"{stopped}. The same command goes on from there.", highlight=False)
            sys.exit(stopped.exit_code)
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

        from kstep.run.evaluate import evaluate, evaluation_seeds
        from kstep.run.load import opened

        if self.episodes < 1:
            raise KstepError(f"--episodes must be at least 1, not {self.episodes}")
        if self.seed < 0:
            raise KstepError(f"--seed must not be negative, not {self.seed}")
        seeds = evaluation_seeds(self.seed, -1, self.episodes)
        with opened(self.run, self.device, lanes=self.episodes) as (agent, lanes, counts):
            result = evaluate(agent, lanes, seeds)
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

        from kstep.report.film import FilmConfig, film
        from kstep.run.evaluate import evaluation_seeds
        from kstep.run.load import opened

        if self.seed < 0:
            raise KstepError(f"--seed must not be negative, not {self.seed}")
        config = FilmConfig(self.height, self.width, self.camera, self.fps)
        with opened(self.run, self.device) as (agent, [env], _):
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
    conv-transition, optimizers or generalization. Also: wall-clock, environments."""
    encoders: Positional[tuple[Path, ...]] = ()
    """Run folders (all encoders they saved, or the newest checkpoint) or saved encoders; none: all
    runs of the experiment behind the paper's figure, as far as they are there."""
    experiment: str = ""
    """Whose runs, if not those."""
    scale: str = "paper"
    """The scale of that experiment."""
    runs: Path = Path("runs")
    """Where its run folders are."""
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
        from kstep.report import analyze

        analyze.run(
            self.question,
            self.encoders,
            where=analyze.Where(self.experiment, self.scale, self.runs),
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

        from kstep import config
        from kstep.report import show

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
    """List methods, tasks, presets or experiments.

    Example: kstep list methods
    """

    what: Positional[Literal["methods", "tasks", "presets", "experiments"]] = "methods"

    def __call__(self) -> None:
        from kstep import config, methods
        from kstep.envs import tasks

        if self.what == "methods":
            for method in methods.METHODS.values():
                print(f"{method.name:20} {method.summary}")
        elif self.what == "presets":
            for name, preset in config.PRESETS.items():
                print(f"{name:14} {preset.__doc__}")
        elif self.what == "experiments":
            from kstep.sweep import plan

            for name in plan.shipped():
                print(f"{name:16} {plan.read(name).title}")
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

        from kstep.bench.doctor import doctor

        if not doctor(Console(soft_wrap=True), self.backend):
            sys.exit(1)


@dataclass(frozen=True)
class Bench:
    """Measure speed and memory in one interleaved run: tables, a JSON file and a figure.

    Leave the machine alone meanwhile; about ten minutes on two cores. Example: kstep bench
    """

    only: tuple[
        Literal["methods", "split", "encoder", "plain", "memory", "renderers", "cost"], ...
    ] = ()
    """Sections to measure; the default is all of them."""
    threads: tuple[int, ...] = ()
    """Numbers of threads; the default is 1 and all cores. The encoder is measured with each, all
    else with the largest."""
    rounds: int | None = None
    """How often everything is measured; what is reported are medians."""
    backend: Literal["both", "torch", "native"] = "both"
    """What computes the convolutions."""
    quick: bool = False
    """A small size and two rounds: whether it works, not how fast it is."""
    out: Path | None = None
    """The JSON file, the figure beside it; default bench.json, with a date where that is taken."""

    def __call__(self) -> None:
        from rich.console import Console

        from kstep.bench import Options, bench

        console = Console()
        if not console.is_terminal:
            console = Console(width=120)  # for files and pipes, whatever the window is
        options = Options(self.only, self.threads, self.rounds, self.backend, self.quick, self.out)
        bench(options, console)


@dataclass(frozen=True)
class Selfcheck:
    """Check that this installation learns: a short run whose result is known beforehand.

    Five to twenty minutes on two cores, on rendered images. Example: kstep selfcheck --quick
    """

    quick: bool = False
    """A minute or so on the toy task, without MuJoCo and rendering."""
    seed: int = 1
    """Another seed is another run; the expected band is the same."""
    runs: Path = Path("runs")
    """The run is kept below this folder; interrupted, the same command goes on."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    threads: int | None = None
    """Processor threads; the default uses all cores."""

    def __call__(self) -> None:
        from rich.console import Console

        from kstep.run import selfcheck, system
        from kstep.run.runtime import Runtime
        from kstep.run.train import Stopped

        if self.threads is not None and self.threads < 1:
            raise KstepError(f"--threads must be at least 1, not {self.threads}")
        system.keep_freed_memory()
        system.device(self.device)
        check = selfcheck.quick(self.seed) if self.quick else selfcheck.swingup(self.seed)
        folder = self.runs / "selfcheck" / check.experiment.env.task / f"seed{self.seed}"
        runtime = Runtime(self.device, self.threads)
        console = Console(soft_wrap=True)
        try:
            place = selfcheck.selfcheck(check, folder, runtime, console)
        except Stopped as stopped:
            console.print(f"{stopped}. The same command goes on from there.", highlight=False)
            sys.exit(130)
        if place == "below":
            sys.exit(1)


@dataclass(frozen=True)
class Sweep:
    """Carry out one of the paper's experiments, or your own. The same command again goes on.

    Example: kstep sweep main --scale cpu --tasks cartpole_swingup --seeds 1-3 --plan
    """

    experiment: Positional[str]
    """An experiment (kstep list experiments) or a .toml file of the same form."""
    scale: str = "paper"
    """paper: the paper's size. cpu: compact encoder, fewer seeds. debug: the whole in minutes."""
    tasks: tuple[str, ...] = ()
    """Only these tasks, or others than the experiment's."""
    methods: tuple[str, ...] = ()
    """Only these of the experiment's methods, or other readings and settings of them, such as
    ksl-results or drq-original."""
    seeds: str = ""
    """Only these seeds, such as 1-3 or 1,2,7."""
    plan: bool = False
    """Show the grid, what is done, what is missing and what it will take; start nothing."""
    engine: Literal["local", "ray", "slurm"] = "local"
    """This machine; a Ray cluster (extra ray); Slurm (extra slurm)."""
    runs: Path = Path("runs")
    """Where run folders are kept; for ray and slurm, on storage that every node sees."""
    workers: int | None = None
    """Runs at once on this machine; the default follows from cores and memory."""
    threads: int | None = None
    """Processor threads per run; the default divides the cores among the runs."""
    device: str = "cpu"
    """cpu, cuda or mps."""
    retries: int = 1
    """How often a run that died is tried again, from its checkpoint."""
    checkpoint_minutes: float = 5.0
    """Minutes between checkpoints: what a lost node costs."""
    encoder_backend: Literal["auto", "torch", "native", "compiled"] = "auto"
    """What computes the convolutions; auto: each machine chooses, which decides the last bits."""
    address: str = "auto"
    """Of the Ray cluster."""
    partition: str | None = None
    """Of Slurm."""
    hours: float = 24.0
    """Time limit of one Slurm job; a run that needs longer is submitted again and goes on."""

    def __call__(self) -> None:
        from dataclasses import replace
        from functools import partial

        from rich.console import Console

        from kstep.native import expected
        from kstep.sweep import engines, plan, watch

        console = Console(soft_wrap=True)
        sweep = plan.read(self.experiment, self.scale)
        seeds = plan.numbers(self.seeds) if self.seeds else ()
        planned = partial(
            plan.plan, sweep, self.runs, tasks=self.tasks, methods=self.methods, seeds=seeds
        )
        specs = planned()
        cores = len(os.sched_getaffinity(0))
        statuses = [plan.status(spec) for spec in specs]
        backend = expected(self.encoder_backend, self.device)
        watch.show_plan(sweep, specs, statuses, console, cores, backend)
        if self.plan:
            return
        here = self.engine == "local"
        workers, slot = engines.divide(
            specs,
            workers=self.workers,
            threads=self.threads if here else self.threads or 1,
            device=self.device,
            alone=sweep.alone,
            memory_gb=None if here else float("inf"),
        )
        slot = replace(
            slot,
            checkpoint_minutes=self.checkpoint_minutes,
            encoder_backend=self.encoder_backend,
        )
        chosen: engines.Engine
        if self.engine == "ray":
            chosen = engines.Ray(self.address)
        elif self.engine == "slurm":
            chosen = engines.Slurm(self.partition, int(60 * self.hours))
        else:
            chosen = engines.Local(workers)
            console.print(f"{workers} runs at once, {slot.threads} threads each", highlight=False)
        try:
            outcomes = watch.conduct_in_stages(chosen, planned, slot, self.retries, console)
        except KeyboardInterrupt:
            console.print("stopped; every run wrote a checkpoint. The same command goes on.")
            sys.exit(130)
        if not watch.summary(outcomes, console):
            sys.exit(1)


@dataclass(frozen=True)
class Collect:
    """Gather every evaluation below a folder into one Parquet table. Repeating it is harmless.

    Example: kstep collect runs --output results.parquet
    """

    runs: Positional[Path] = Path("runs")
    """A folder with run folders somewhere below it."""
    output: Path = Path("results.parquet")
    """The table; rows of runs that are not below the folder stay in it."""

    def __call__(self) -> None:
        from rich.console import Console

        from kstep.sweep import store

        gathered = store.collect(self.runs, self.output)
        Console(soft_wrap=True).print(str(gathered), highlight=False)


@dataclass(frozen=True)
class Import:
    """Put other people's results, as CSV, into the table beside ours (form: docs/scale.md).

    Example: kstep import drq_authors.csv --source "DrQ, authors' data"
    """

    file: Positional[Path]
    """CSV with the columns method, task, seed, env_steps, return and perhaps others."""
    source: str
    """Where the numbers come from; shown with them. Importing a source again replaces it."""
    output: Path = Path("results.parquet")

    def __call__(self) -> None:
        from rich.console import Console

        from kstep.sweep import store

        gathered = store.import_csv(self.file, self.source, self.output)
        Console(soft_wrap=True).print(str(gathered), highlight=False)


@dataclass(frozen=True)
class Compare:
    """Compare methods at an experiment's marks: per task, in the aggregate, beside the paper.

    Example: kstep compare main --scale cpu --table results.parquet --paper
    """

    experiment: Positional[str]
    """An experiment (kstep list experiments) or a .toml file of the same form."""
    scale: str = "paper"
    """Whose preset and marks to take."""
    table: Path = Path("results.parquet")
    """Made by kstep collect."""
    tasks: tuple[str, ...] = ()
    """Only these tasks."""
    paper: bool = False
    """Put the paper's numbers beside ours: inside, above or below (Welch, p = 0.05)."""
    seed: int = 0
    """Of the bootstrap."""
    repetitions: int = 2_000
    """Of the bootstrap; 50,000 for publication."""

    def __call__(self) -> None:
        from rich.console import Console

        from kstep.report import compare
        from kstep.sweep import plan, store

        sweep, table = plan.read(self.experiment, self.scale), store.read(self.table)
        console = Console(soft_wrap=True)
        if not console.is_terminal:
            console = Console(width=240)  # for files and pipes, whatever the window is
        compare.compare(
            sweep,
            table,
            console,
            tasks=self.tasks,
            beside_paper=self.paper,
            seed=self.seed,
            repetitions=self.repetitions,
        )


Verb = (
    Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Eval, tyro.conf.subcommand("eval")]
    | Annotated[Film, tyro.conf.subcommand("film")]
    | Annotated[EvaluationSet, tyro.conf.subcommand("evaluation-set")]
    | Annotated[Analyze, tyro.conf.subcommand("analyze")]
    | Annotated[Show, tyro.conf.subcommand("show")]
    | Annotated[List, tyro.conf.subcommand("list")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Selfcheck, tyro.conf.subcommand("selfcheck")]
    | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    | Annotated[Collect, tyro.conf.subcommand("collect")]
    | Annotated[Import, tyro.conf.subcommand("import")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
)


def main(arguments: list[str] | None = None) -> None:
    """Run one verb; what a user can put right is said in one line, without a traceback."""
    # By default idle OpenMP threads spin for milliseconds, which makes a run many times slower as
    # soon as anything else wants a core. Twenty thousand turns are some 50 us. Read by torch.
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    verb: Callable[[], None] = tyro.cli(
        Verb,
        args=arguments,
        prog="kstep",
        description="Data-efficient reinforcement learning from pixels: KSL and its peers.",
        config=(tyro.conf.OmitSubcommandPrefixes,),
    )
    try:
        verb()
    except KeyboardInterrupt:
        print("kstep: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        refused = isinstance(error, KstepError) and not isinstance(error, faults.Fault)
        told = str(error) if refused else faults.explain(error)
        if told is None:  # a mistake of ours, which a traceback helps to find
            raise
        print(f"kstep: {told}", file=sys.stderr)
        sys.exit(2 if refused else 1)
