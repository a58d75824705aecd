"""The training loop.

Order of one decision, as in all code of this family: choose the action, learn from what is already
stored, then step the environment and store. An evaluation comes between two decisions, as soon as
env_steps have reached its mark, and the last one after the final decision.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Literal

import torch
from rich.console import Console

from kstep import checkpoint, encoders, envs, faults, native, origin, system
from kstep.agent import Agent, Update
from kstep.checkpoint import Positions, Session
from kstep.config import Experiment
from kstep.data.replay import Replay
from kstep.data.ring import ReplayConfig, Storage
from kstep.envs import ControlEnv
from kstep.episode import Episode
from kstep.evaluate import evaluate, evaluation_seeds
from kstep.files import sha256, write_atomically
from kstep.health import Health
from kstep.log import JsonLines, Progresses, TensorBoard, scalars
from kstep.native import Asked, Choice
from kstep.nets.backends import native_shape
from kstep.origin import Allowed, Origin
from kstep.rng import Streams, episode_seed
from kstep.run import Run
from kstep.types import Counts, EnvSpec, KstepError


@dataclass(frozen=True)
class Runtime:
    """How a run is carried out; none of it decides what is computed, up to rounding."""

    device: str = "cpu"
    threads: int | None = None
    """Of torch; None leaves its choice."""
    checkpoint_minutes: float = 5.0
    log_every: int = 50
    """Updates between lines in metrics.jsonl."""
    tensorboard: bool = False
    replay: Storage = "memory"
    """Where the replay's frames are kept."""
    overlap: Literal["auto", "on", "off"] = "auto"
    """Whether the environment moves in a process of its own while the agent learns. The results are
    the same bit for bit. `auto`: for simulated pixels, where a core is free for it."""
    encoder_backend: Asked = "auto"
    """What computes the encoder's convolutions: PyTorch, its compiler (`compiled`), our kernels
    (`native`), or `auto`: those where they are right and faster. It decides the last bits, so a run
    keeps what it began with."""
    save_encoders_every: int | None = None
    """env_steps between saved encoders, for analyses; the first weights and the last are saved as
    well. None: no encoder is saved apart from the checkpoints."""
    frozen_encoder: Path | None = None
    """Where an experiment with a frozen encoder finds it at first; it is copied into the run."""
    allowed: Allowed = field(default_factory=Allowed)
    """What may differ from the checkpoint that is continued."""


class Stopped(KstepError):
    """The user asked the run to stop."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


@dataclass
class _Stop:
    """Set by the first Ctrl-C or SIGTERM; the loop ends after the decision it is in.

    A Ctrl-C after that is somebody in a hurry. A second SIGTERM is not: the kernel sends one for
    each thread of a parent that dies.
    """

    signal: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number


def train(run: Run, runtime: Runtime, console: Console | None = None) -> None:
    """Bring the run to its budget, from wherever it is."""
    console = console or Console(soft_wrap=True)
    experiment = run.experiment
    reached = checkpoint.reached(run) if run.folder.exists() else 0
    if reached >= experiment.env_steps:
        console.print(f"nothing to do: the run is at {reached:,} env steps", highlight=False)
        return
    rendering = envs.rendering(experiment.env)
    env = envs.make(experiment.env, experiment.seed, apart=_overlaps(run, runtime))
    try:
        # Everything that can be refused is refused before anything is written.
        spec = envs.spec_of(env)
        envs.try_out(env, experiment.seed)
        _refuse_impossible(experiment, spec)
        _refuse_encoders(experiment, runtime)
        frozen = _frozen_encoder(run, runtime, spec)
        memory = replay_config(experiment, runtime)
        Replay.refuse_too_large(memory, spec, experiment.method.stack, run.folder)
        streams = Streams(experiment.seed, system.device(runtime.device))
        system.use_tf32(getattr(experiment.method.encoder, "precision", "") == "tf32")
        with _threads(runtime.threads):
            choice = encoder_choice(run, runtime, spec)
        run.encoder_backend = choice.backend
        agent = Agent(experiment.method, spec, streams, runtime.device, choice.backend)
        if runtime.tensorboard:
            TensorBoard.refuse_missing()
        here = origin.here(experiment.env, runtime.device, runtime.threads)
        checkpoint.check(run, here, runtime.allowed)
        with (
            faults.told(lambda: checkpoint.standing(run)),
            run.being_written(),
            _threads(runtime.threads),
        ):
            if frozen is not None and not run.frozen_encoder.exists():
                write_atomically(run.frozen_encoder, frozen.read_bytes())
            console.print(rendering, highlight=False)
            console.print(str(choice), highlight=False)
            system.record(run.folder, runtime.device, rendering)
            _Trainer(run, runtime, env, agent, here, console).bring_to_budget()
    finally:
        env.close()


class _Trainer:
    def __init__(
        self,
        run: Run,
        runtime: Runtime,
        env: ControlEnv,
        agent: Agent,
        here: Origin,
        console: Console,
    ) -> None:
        experiment = run.experiment
        self.run, self.runtime, self.experiment, self.console = run, runtime, experiment, console
        self.spec = envs.spec_of(env)
        self.session = Session(
            agent=agent,
            replay=Replay(
                replay_config(experiment, runtime),
                self.spec,
                experiment.method.stack,
                run.replay,
            ),
            episode=Episode(env, experiment.method.stack),
            counts=Counts(),
            origin=here,
        )
        if experiment.frozen_encoder is not None:
            self.session.agent.take_encoder(encoders.load(run.frozen_encoder).encoder)
        self.lanes: list[ControlEnv] = []
        self.encoder_saved_at: int | None = None

    def bring_to_budget(self) -> None:
        counts, session = self.session.counts, self.session
        self.console.print(session.replay.describe(), highlight=False)
        positions = Positions()
        if checkpoint.exists(self.run):
            positions, notes = checkpoint.load(self.run, session, self.runtime.allowed)
            for note in notes:
                self.console.print(note, highlight=False)
            self.console.print(f"going on at {counts.env_steps:,} env steps", highlight=False)
        else:
            checkpoint.begin(self.run)
            session.replay.begin(session.episode.start(self._next_seed()))
        self.metrics = JsonLines(self.run.metrics_file, positions.metrics)
        self.evaluations = JsonLines(self.run.evaluations_file, positions.evaluations)
        for log in (self.metrics, self.evaluations):
            if log.lost:
                self.console.print(f"{log.lost} bytes of {log.path.name} are lost", highlight=False)
        self.evaluated_at = {row["mark"]: row["env_steps"] for row in self.run.evaluations()}
        self.tensorboard = (
            TensorBoard(self.run.folder / "tensorboard") if self.runtime.tensorboard else None
        )
        name, preset = self.experiment.method.name, self.experiment.preset
        title = f"{name} ({preset}) {self.experiment.env.task}"
        try:
            with (
                Progresses(title, self.experiment.env_steps, self.console) as self.progress,
                _catching_signals() as stop,
            ):
                self.health = Health(session.agent, session.replay, self.progress.say)
                self._loop(stop)
        except KeyboardInterrupt:
            raise Stopped(
                f"stopped at once. {checkpoint.standing(self.run)}", signal.SIGINT
            ) from None
        finally:
            self.metrics.close()
            self.evaluations.close()
            if self.tensorboard:
                self.tensorboard.close()
            envs.close_lanes(self.lanes)

    def _loop(self, stop: _Stop) -> None:
        counts, budget = self.session.counts, self.experiment.env_steps
        saved = time.monotonic()
        while counts.env_steps < budget:
            # Before an evaluation, which may take longer than whoever stops the run will wait. It
            # is made up for when the run goes on.
            if stop.signal is not None:
                self._save()
                raise Stopped(
                    f"stopped at {counts.env_steps:,} env steps; a checkpoint is written",
                    stop.signal,
                )
            self._evaluate_if_due()
            self._save_encoder_if_due()
            self._decide()
            self.progress.advanced(counts, counts.updates > 0)
            due = time.monotonic() - saved > 60 * self.runtime.checkpoint_minutes
            # A checkpoint at the budget says that the run is done: it has the last evaluation.
            if due and counts.env_steps < budget:
                self._save()
                saved = time.monotonic()
        if counts.env_steps not in self.evaluated_at.values():
            self._evaluate(counts.env_steps)
        self._save_encoder_if_due(last=True)
        self._save()

    def _decide(self) -> None:
        """One decision: act, learn, step, store."""
        session, counts = self.session, self.session.counts
        agent, replay, episode = session.agent, session.replay, session.episode
        # Counted in the replay, which a second phase starts empty.
        learning = len(replay) >= self.experiment.method.learning.initial_decisions
        if learning or agent.phase > 0:
            action = agent.act(episode.observation[None], explore=True)[0]
        else:
            action = agent.random_action()
        self.health.watch_action(action)
        episode.begin(action)
        if learning:
            with self.health.watching():
                update = self._learn()
            # The first of every `log_every` updates: an even one, which has the actor's metrics.
            if counts.updates % self.runtime.log_every == 0:
                self._log(update)
            counts.updates = agent.updates
        step = episode.finish()
        replay.add(action, step.reward, step.terminated, step.truncated, step.frame)
        counts.decisions += 1
        counts.env_steps += step.env_steps
        if step.done:
            counts.episodes += 1
            self._log_episode()
            self._begin_task_if_due()
            replay.begin(episode.start(self._next_seed()))

    def _begin_task_if_due(self) -> None:
        """End the exploration of a two-phase method, at the first episode's end after its mark."""
        exploration, session = self.experiment.method.exploration, self.session
        if exploration is None or session.agent.phase > 0:
            return
        assert exploration.env_steps is not None  # settled when the experiment was resolved
        if session.counts.env_steps >= exploration.env_steps:
            session.agent.begin_task()
            session.replay.forget()
            self.progress.say(
                f"  {session.counts.env_steps:>7,} env steps: exploration ends, the task begins"
            )

    def _learn(self) -> Update:
        """Take the updates of one decision: one, unless learning just starts with more."""
        agent, replay = self.session.agent, self.session.replay
        learning, auxiliary = self.experiment.method.learning, self.experiment.method.auxiliary
        if agent.updates == 0:
            for _ in range(auxiliary.pretraining if auxiliary is not None else 0):
                agent.pretrain(replay)
            for _ in range(learning.burst - 1):
                agent.update(replay, every_part=True)
        return agent.update(replay, every_part=agent.updates < learning.burst)

    def _next_seed(self) -> int:
        return episode_seed(self.experiment.seed, "train", self.session.counts.episodes)

    def _evaluate_if_due(self) -> None:
        """Evaluate once for every mark, as soon as env_steps reach it."""
        every = self.experiment.evaluation.every
        mark = self.session.counts.env_steps // every * every
        if mark not in self.evaluated_at:
            self._evaluate(mark)

    def _evaluate(self, mark: int) -> None:
        counts, episodes = self.session.counts, self.experiment.evaluation.episodes
        if not self.lanes:
            self.lanes = envs.make_lanes(self.experiment.env, self.experiment.seed, episodes)
        self.health.refuse_broken()
        started = time.monotonic()
        seeds = evaluation_seeds(self.experiment.seed, mark, episodes)
        result = evaluate(self.session.agent, self.lanes, seeds)
        row = {
            "mark": mark,
            **asdict(counts),
            "returns": result.returns,
            "lengths": result.lengths,
        }
        self.evaluations.write(row)
        self.evaluated_at[mark] = counts.env_steps
        if self.tensorboard:
            self.tensorboard.write({"evaluation/return": result.mean}, counts.env_steps)
        self.progress.evaluated(counts, result, time.monotonic() - started)

    def _save_encoder_if_due(self, *, last: bool = False) -> None:
        """Save the encoder once for every mark, as soon as env_steps reach it.

        After an interruption, marks passed since the checkpoint are reached again and their files
        replaced by equal ones.
        """
        every, env_steps = self.runtime.save_encoders_every, self.session.counts.env_steps
        if every is None:
            return
        mark = env_steps if last and env_steps % every else env_steps // every * every
        # A checkpoint may lie between marks: the one behind it was saved before.
        behind = encoders.folder_of(self.run) / f"{mark:09d}.safetensors"
        first_look = self.encoder_saved_at is None and env_steps > mark and behind.exists()
        if mark != self.encoder_saved_at and not first_look:
            encoders.save(self.run, self.session.agent, self.session.counts, mark)
        self.encoder_saved_at = mark

    def _log(self, update: Update) -> None:
        values = scalars(update.metrics)
        values |= self.health.look(values, update.latent)
        counts = self.session.counts
        self.metrics.write({**asdict(counts), **values})
        if self.tensorboard:
            self.tensorboard.write(values, counts.env_steps)

    def _log_episode(self) -> None:
        episode, counts = self.session.episode, self.session.counts
        values = {
            "train/return": episode.total_reward,
            "train/length": len(episode.actions),
            "replay/size": len(self.session.replay),
        }
        self.metrics.write({**asdict(counts), **values})
        if self.tensorboard:
            self.tensorboard.write(values, counts.env_steps)

    def _save(self) -> None:
        self.health.refuse_broken()
        positions = Positions(self.metrics.sync(), self.evaluations.sync())
        checkpoint.save(self.run, self.session, positions)


def _overlaps(run: Run, runtime: Runtime) -> bool:
    if runtime.overlap != "auto":
        return runtime.overlap == "on"
    env = run.experiment.env
    if env.observation != "pixels" or envs.parse(env.task).kind != "suite":
        return False  # too quick to be worth it, or registered in this process only
    threads = runtime.threads or torch.get_num_threads()
    return runtime.device != "cpu" or threads < len(os.sched_getaffinity(0))


def encoder_choice(run: Run, runtime: Runtime, spec: EnvSpec) -> Choice:
    """What computes the encoder's convolutions: what the run began with, or what is best here."""
    asked, begun_with = runtime.encoder_backend, run.encoder_backend
    if begun_with is not None and asked not in ("auto", begun_with):
        raise KstepError(
            f"{run.folder} was begun with encoder_backend={begun_with}, not {asked}; that decides "
            "its last bits. Leave it at auto, or choose another --folder"
        )
    method = run.experiment.method
    seen = method.augment.seen_shape(spec.frame_shape)
    shape = native_shape(method.encoder, seen, method.stack)
    if begun_with == "native":
        try:
            return native.choose("native", shape, runtime.device)
        except native.Unavailable as error:
            raise KstepError(
                f"{run.folder} was begun with encoder_backend=native, which cannot be used here: "
                f"{error}. Go on where it can, or choose another --folder"
            ) from error
    if begun_with is not None:
        return Choice(begun_with, "as the run began")
    return native.choose(asked, shape, runtime.device)


def _refuse_impossible(experiment: Experiment, spec: EnvSpec) -> None:
    """Refuse what only shows once the environment is known."""
    if experiment.method.auxiliary is not None:
        experiment.method.auxiliary.check_episodes(experiment.method, spec)


def _refuse_encoders(experiment: Experiment, runtime: Runtime) -> None:
    every = runtime.save_encoders_every
    if every is None:
        return
    if every < 1:
        raise KstepError(f"--save-encoders-every must be at least 1 env step, not {every}")
    if experiment.method.observation != "pixels":
        raise KstepError(f"'{experiment.method.name}' sees the state: it has no encoder to save")


def _frozen_encoder(run: Run, runtime: Runtime, spec: EnvSpec) -> Path | None:
    """Return the file of the run's frozen encoder, refusing one that is another or does not fit."""
    wanted = run.experiment.frozen_encoder
    if wanted is None:
        return None
    path = run.frozen_encoder if run.frozen_encoder.exists() else runtime.frozen_encoder
    if path is None or not path.is_file():
        raise KstepError("the frozen encoder is missing: give its file with --frozen-encoder")
    if sha256(path) != wanted.sha256:
        raise KstepError(f"{path} is not the encoder that this run was begun with")
    saved, method = encoders.load(path), run.experiment.method
    shape = method.augment.seen_shape(spec.frame_shape)
    if (saved.config, saved.stack, saved.seen_shape) != (method.encoder, method.stack, shape):
        raise KstepError(
            f"{path} does not fit: it has {saved.config} on {saved.stack} frames of "
            f"{saved.seen_shape}, '{method.name}' has {method.encoder} on {method.stack} of {shape}"
        )
    return path


def replay_config(experiment: Experiment, runtime: Runtime) -> ReplayConfig:
    """The replay of a run: its method's capacity, or as much as its budget can fill."""
    # A run stores at most two frames per env step, even if every episode were one decision long.
    capacity = min(experiment.method.learning.replay_capacity, 2 * experiment.env_steps)
    return ReplayConfig(capacity, runtime.replay)


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if number is not None:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _catching_signals() -> Iterator[_Stop]:
    stop = _Stop()
    try:
        before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever owns it handles signals
        before = {}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
