"""The training loop.

Order of one decision, as in all code of this family: choose the action, learn from what is already
stored, then step the environment and store. An evaluation comes between two decisions, as soon as
env_steps have reached its mark, and the last one after the final decision.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import NoReturn, TypeAlias

from rich.console import Console

from kstep import envs, reading, values
from kstep.agent import Agent, Update
from kstep.data.replay import Replay
from kstep.envs import ControlEnv
from kstep.errors import Stopped as Stopped
from kstep.errors import as_faults
from kstep.rng import Streams, episode_seed
from kstep.run import checkpoint, policies, preflight, saved_encoders, system, trust
from kstep.run.callbacks import Callback, Callbacks, Outcome, asked_for
from kstep.run.checkpoint import Positions, Session
from kstep.run.clock import Clock
from kstep.run.episode import Episode
from kstep.run.evaluate import evaluate, evaluation_seeds
from kstep.run.folder import LOGS, Evaluated, Run
from kstep.run.health import Health
from kstep.run.log import JsonLines, Written
from kstep.run.progress import ProgressReport
from kstep.run.runtime import Runtime
from kstep.signals import signal_of
from kstep.terminal import say, terminal
from kstep.types import Counts, KstepError

Handler: TypeAlias = Callable[[int, FrameType | None], None]

PATIENCE = 10.0
"""Seconds that a run which was asked to stop waits for its environment: after about as many, who
asked may kill it."""


class _Leave(BaseException):
    """Raised inside what can be left without an end: an evaluation, a wait for an environment, or
    the many updates that learning may start with.

    No `Exception`, so that no environment's code takes it for its own.
    """


class _Stop:
    """Set by the first Ctrl-C or SIGTERM; the loop ends after the decision it is in.

    A Ctrl-C after that is somebody in a hurry. A second SIGTERM is not: the kernel sends one for
    each thread of a parent that dies.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.checkpoint_wanted = False
        self._waiting_since: float | None = None
        self._timer_before = (0.0, 0.0)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.signal is None:
            self.signal = number
            self._timer_before = signal.setitimer(signal.ITIMER_REAL, PATIENCE, 1.0)

    def want_checkpoint(self, number: int, frame: FrameType | None) -> None:
        """Somebody asks for a checkpoint now (SIGUSR1)."""
        self.checkpoint_wanted = True

    def alarm(self, number: int, frame: FrameType | None) -> None:
        """End a wait that has been too long; called every second once a stop was asked for."""
        since = self._waiting_since
        if since is not None and time.monotonic() - since > PATIENCE:
            raise _Leave

    def end(self) -> None:
        if self.signal is not None:
            signal.setitimer(signal.ITIMER_REAL, *self._timer_before)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While the environment is waited for."""
        self._waiting_since = time.monotonic()
        try:
            yield
        finally:
            self._waiting_since = None

    def leave(self, what: str) -> None:
        """Leave something if the run was asked to stop."""
        if self.signal is not None:
            raise _Leave(f"during {what}")


def train(
    run: Run,
    runtime: Runtime,
    console: Console | None = None,
    callbacks: Sequence[Callback] = (),
) -> None:
    """Bring the run to its budget, from wherever it is, and tell the callbacks."""
    console = console or terminal()
    experiment = run.experiment
    values.check(runtime)
    if _is_done(run, console):
        with suppress(KstepError, OSError):  # another process, or a disk that is read-only
            checkpoint.tidy(run)
        return
    rendering = envs.rendering(experiment.env)
    env = envs.make_for_training(
        experiment.env,
        experiment.seed,
        preflight.overlap(run, runtime),
        runtime.env_timeout,
        report=lambda text: say(console, text),
    )
    try:
        cleared = preflight.check(run, runtime, env)
        run.encoder_backend, run.environment = cleared.backend.backend, cleared.environment
        streams = Streams(experiment.seed, system.device(runtime.device))
        system.use_tf32(getattr(experiment.method.encoder, "precision", "") == "tf32")
        agent = Agent(experiment.method, cleared.spec, streams, runtime.device, run.encoder_backend)
        with (
            as_faults(lambda: checkpoint.describe(run)),
            _deaf_to_requests(),
            run.locked(f"{runtime.checkpoint_minutes:g}"),
            system.threads(runtime.threads, run.encoder_backend),
        ):
            encoder = preflight.look_again(run, runtime, cleared)
            if _is_done(run, console):
                return
            run.begin()
            trust.remember(run)
            if encoder is not None and not run.frozen_encoder.exists():
                data = reading.contents(encoder, reading.LARGEST_TENSORS)
                run.tree.write(run.frozen_encoder, data)
            say(console, rendering)
            say(console, str(env.sight))
            say(console, str(cleared.backend))
            system.record(run.tree, run.system_file, runtime.device, rendering)
            memory, stack = preflight.replay_config(experiment, runtime), experiment.method.stack
            replay, episode = Replay(memory, cleared.spec, stack, run.replay), Episode(env, stack)
            session = Session(agent, replay, episode, Counts(), cleared.provenance)
            told = Callbacks([*callbacks, *asked_for(runtime)], lambda text: say(console, text))
            _Trainer(run, runtime, session, console, told).bring_to_budget()
    finally:
        env.close()


def _is_done(run: Run, console: Console) -> bool:
    """Whether nothing is left to do; also print so."""
    # By the names in its folder, and then by what of it can still be read.
    budget = run.experiment.env_steps
    if not run.is_done(budget) or checkpoint.reached(run) < budget:
        return False
    say(console, f"nothing to do: the run is at {run.reached():,} env steps")
    return True


class _Trainer:
    def __init__(
        self,
        run: Run,
        runtime: Runtime,
        session: Session,
        console: Console,
        callbacks: Callbacks,
    ) -> None:
        self.run, self.runtime, self.session, self.console = run, runtime, session, console
        self.callbacks = callbacks
        self.experiment = run.experiment
        if self.experiment.frozen_encoder is not None:
            session.agent.take_encoder(saved_encoders.load(run.frozen_encoder).encoder)
        self.stop, self.clock = _Stop(), Clock(run)
        self.lanes: list[ControlEnv] = []
        self.saved_at: dict[Path, int] = {}

    def bring_to_budget(self) -> None:
        counts, session = self.session.counts, self.session
        say(self.console, session.replay.describe())
        positions: Positions = {}
        if checkpoint.exists(self.run):
            positions, notes = checkpoint.load(self.run, session, self.runtime.allowed)
            for note in notes:
                say(self.console, note)
            say(self.console, f"resuming at {counts.env_steps:,} env steps")
        else:
            checkpoint.begin(self.run)
            session.replay.begin(session.episode.start(self._next_seed()))
        self.metrics, self.evaluations = logs = [
            JsonLines(self.run.tree, self.run.log(name), positions.get(name, Written()))
            for name in LOGS
        ]
        for log in logs:
            if log.lost:
                say(self.console, f"{log.lost} bytes of {log.path.name} are lost")
        evaluations = self.run.evaluations()
        self.evaluated_at = {row.mark: row.env_steps for row in evaluations}
        outcome: Outcome = "failed"
        name, preset = self.experiment.method.name, self.experiment.preset
        title = f"{name} ({preset}) {self.experiment.env.task}"
        try:
            self.callbacks.start(self.run, counts)
            budget, newest = self.experiment.env_steps, evaluations[-1] if evaluations else None
            self.progress = ProgressReport(title, budget, self.console, newest)
            with self.progress.bar, _catching_signals() as self.stop:
                self.health = Health(session.agent, session.replay, self.progress.say)
                self._loop()
            outcome = "done"
        except Stopped:
            outcome = "stopped"
            raise
        except (KeyboardInterrupt, _Leave) as left:
            outcome = "stopped"
            how, number = "at once", signal.SIGINT
            if isinstance(left, KeyboardInterrupt):
                number = signal_of(left)
            else:
                how = str(left) or f"while {session.episode.env} did not answer"
                number = signal.Signals(self.stop.signal or number)
            raise Stopped(
                f"stopped {how}. {checkpoint.describe(self.run)}. Rerun the command to resume",
                number,
            ) from None
        finally:
            self.metrics.close()
            self.evaluations.close()
            envs.close_lanes(self.lanes)
            self.callbacks.tell("end", counts, outcome)

    def _loop(self) -> None:
        counts, budget = self.session.counts, self.experiment.env_steps
        saved = time.monotonic()
        while counts.env_steps < budget:
            if self.stop.signal is not None:
                self._save_and_stop(self.stop.signal)
            self._evaluate_if_due()
            self._save_parts_if_due()
            self._decide()
            self.progress.advanced(counts, counts.updates > 0)
            due = time.monotonic() - saved > 60 * self.runtime.checkpoint_minutes
            due |= self.stop.checkpoint_wanted
            # A checkpoint at the budget says that the run is done: it has the last evaluation.
            if due and counts.env_steps < budget:
                self.stop.checkpoint_wanted = False
                self._save()
                saved = time.monotonic()
        if counts.env_steps not in self.evaluated_at.values():
            self._evaluate(counts.env_steps)
        self._save_parts_if_due(last=True)
        self._save()

    def _decide(self) -> None:
        """One decision: act, learn, step, store."""
        session, counts = self.session, self.session.counts
        agent, replay, episode = session.agent, session.replay, session.episode
        # Counted in the replay, which a second phase starts empty.
        settings = self.experiment.method.learning
        learning = len(replay) >= settings.initial_decisions
        agent.core.decisions = counts.decisions
        if learning or agent.phase > 0:
            action = agent.act(episode.observation[None], explore=True)[0]
        else:
            action = agent.random_action()
        self.health.watch_action(action)
        episode.begin(action)
        if learning and counts.decisions % settings.update_every == 0:
            with self.health.watching():
                update = self._learn()
            # The first of every `log_every` updates: an even one, which has the actor's metrics.
            if counts.updates % self.runtime.log_every == 0:
                # The one place that waits for the device.
                values = {path: float(value) for path, value in update.metrics.items()}
                self._log(values | self.health.look(values, update.latent))
            counts.updates = agent.updates
        with self.stop.waiting():
            step = episode.finish()
        ends = (step.terminated, step.truncated)
        replay.add(action, step.learned_reward, *ends, step.frame, life_lost=step.life_lost)
        counts.decisions += 1
        counts.env_steps += step.env_steps
        if step.done:
            counts.episodes += 1
            self._log(
                {
                    "train/return": episode.total_reward,
                    "train/length": len(episode.actions),
                    "replay/size": len(replay),
                }
            )
            self._begin_task_if_due()
            with self.stop.waiting():
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
        """Take the updates of one decision: one, unless learning just starts with more. A stop does
        not wait for those: the run ends at its last checkpoint and they are taken again."""
        agent, replay = self.session.agent, self.session.replay
        learning, auxiliary = self.experiment.method.learning, self.experiment.method.auxiliary
        if agent.updates == 0:
            for _ in range(auxiliary.pretraining if auxiliary is not None else 0):
                self.stop.leave("pretraining")
                agent.pretrain(replay)
            for _ in range(learning.burst - 1):
                self.stop.leave("the first updates")
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
        """Evaluate for a mark. A stop does not wait for the end: the evaluation is made up for when
        the run is resumed."""
        session, counts, experiment = self.session, self.session.counts, self.experiment
        self.health.refuse_broken()
        started = time.monotonic()
        seeds = evaluation_seeds(experiment.seed, mark, experiment.evaluation.episodes)
        try:
            with self.stop.waiting():
                if not self.lanes:
                    env, beside = experiment.env, session.episode.env
                    self.lanes = envs.make_lanes(env, experiment.seed, len(seeds), beside)
                result = evaluate(
                    session.agent, self.lanes, seeds, lambda _: self.stop.leave("an evaluation")
                )
        except _Leave:
            self._save_and_stop(self.stop.signal or signal.SIGINT)
        self.evaluations.write(asdict(Evaluated(mark, **asdict(counts), **asdict(result))))
        self.clock.tick(counts)
        self.evaluated_at[mark] = counts.env_steps
        self.callbacks.tell("evaluation", counts, result)
        self.progress.evaluated(counts, result, time.monotonic() - started)

    def _save_parts_if_due(self, *, last: bool = False) -> None:
        """Save the encoder and the policy once for every mark of theirs, as soon as env_steps reach
        it.

        After an interruption, marks passed since the checkpoint are reached again and their files
        replaced by equal ones.
        """
        runtime, run, env_steps = self.runtime, self.run, self.session.counts.env_steps
        for every, folder, save in (
            (runtime.save_encoders_every, run.encoders, saved_encoders.save),
            (runtime.save_policies_every, run.policies, policies.save),
        ):
            if every is None:
                continue
            mark = env_steps if last and env_steps % every else env_steps // every * every
            # A checkpoint may lie between marks: the one behind it was saved before.
            behind = folder / f"{mark:09d}.safetensors"
            first_look = folder not in self.saved_at and env_steps > mark and behind.exists()
            if mark != self.saved_at.get(folder) and not first_look:
                save(run, self.session.agent, self.session.counts, mark)
            self.saved_at[folder] = mark

    def _log(self, values: dict[str, float]) -> None:
        """Write a line of metrics."""
        counts = self.session.counts
        self.metrics.write({**asdict(counts), **values})
        self.callbacks.tell("metrics", counts, values)

    def _save_and_stop(self, number: int) -> NoReturn:
        self._save()
        raise Stopped(
            f"stopped at {self.session.counts.env_steps:,} env steps; a checkpoint is written. "
            "Rerun the command to resume",
            number,
        )

    def _save(self) -> None:
        self.health.refuse_broken()
        logs = (self.metrics, self.evaluations)
        positions = {name: log.sync() for name, log in zip(LOGS, logs, strict=True)}
        folder = checkpoint.save(self.run, self.session, positions)
        self.clock.tick(self.session.counts)
        self.callbacks.tell("checkpoint", self.session.counts, folder)


@contextmanager
def _deaf_to_requests() -> Iterator[None]:
    """Whoever holds a run's lock may be asked for a checkpoint: before it can answer, and after,
    that must not end it."""
    try:
        before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    except ValueError:  # not the main thread: whoever owns it handles signals
        before = None
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGUSR1, before)


@contextmanager
def _catching_signals() -> Iterator[_Stop]:
    stop = _Stop()
    handlers: dict[int, Handler] = {
        signal.SIGINT: stop,
        signal.SIGTERM: stop,
        signal.SIGALRM: stop.alarm,
        signal.SIGUSR1: stop.want_checkpoint,
    }
    try:
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    except ValueError:  # not the main thread: whoever owns it handles signals
        before = {}
    try:
        yield stop
    finally:
        stop.end()
        for number, handler in before.items():
            signal.signal(number, handler)
