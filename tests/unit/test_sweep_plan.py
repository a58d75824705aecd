"""Plans: the paper's experiments at their size, states of run folders, linear bookkeeping."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kstep import reading
from kstep.bench.steps import METHODS
from kstep.config import Experiment, rendered_size
from kstep.run import folder, saved_encoders
from kstep.run.folder import FORMAT, Attempt, Evaluated, Run, RunFolder
from kstep.sweep import cost
from kstep.sweep import plan as planning
from kstep.sweep.cost import assumptions, cost_of, estimate, measured_speeds
from kstep.sweep.experiments import MOST_SEEDS, SCALES, read, seeds, shipped
from kstep.sweep.plan import RunSpec, plan, status
from kstep.types import KstepError
from kstep.values import encode

PLANET = 6
PAIR = ("toy_reach", "toy_glide")


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("main", 7 * PLANET * 10),
        ("tangential", 4 * PLANET * 10),
        ("generalization", 5 * PLANET * 5 * (1 + 5)),
        ("wall-clock", 6 * 3),
        ("k-l-grid", 9 * 5),
        ("conv-transition", PLANET * 15),
        ("optimizers", 2 * 2 * 5),
        ("representations", 6 * 5),
    ],
)
def test_the_papers_experiments_have_the_papers_size(name: str, runs: int) -> None:
    specs = plan(read(name))
    assert len(specs) == runs
    assert {spec.preset for spec in specs} == {"paper"}
    assert len({spec.folder for spec in specs}) == runs
    ready = [spec for spec in specs if spec.ready]
    assert len({spec.digest for spec in ready}) == len(ready)


def test_every_shipped_experiment_has_every_scale() -> None:
    assert len(shipped()) == 10
    for name in shipped():
        for scale in SCALES:
            sweep = read(name, scale)
            specs = plan(sweep)
            # Our own evidence states its presets, group by group.
            own = name == "evidence" and scale != "debug"
            assert {spec.preset for spec in specs} == ({"cpu", "paper"} if own else {scale})
            assert max(sweep.marks) <= max(spec.env_steps for spec in specs)
    assert {spec.task for spec in plan(read("main", "debug"))} == {"toy_reach"}


def test_runs_may_be_started_group_by_group(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        """
        tasks = ["toy_reach", "toy_glide"]
        order = "groups"
        [[group]]
        methods = ["ksl"]
        tasks = ["toy_glide"]
        seeds = "2-3"
        env_steps = 200
        preset = "debug"
        [[group]]
        methods = ["drq"]
        seeds = "1"
        env_steps = 300
        """
    )
    ksl, drq = [("ksl", "toy_glide", "debug")], [("drq", task, "cpu") for task in PAIR]
    specs = plan(read(str(file), "cpu"))
    assert [(s.method, s.task, s.preset) for s in specs] == ksl + ksl + drq
    assert [spec.seed for spec in specs] == [2, 3, 1, 1]
    only = plan(read(str(file), "cpu"), tasks=["toy_reach"])
    assert [(spec.method, spec.task) for spec in only] == [("drq", "toy_reach")]
    file.write_text(file.read_text().replace('order = "groups"', ""))
    assert [spec.seed for spec in plan(read(str(file), "cpu"))] == [1, 1, 2, 3]


def test_evidence_starts_with_the_question_of_the_readings() -> None:
    specs = plan(read("evidence"))
    assert len(specs) == 50
    first = [(s.method, s.seed) for s in specs if s.task == "cartpole_swingup"][:10]
    assert first == [
        ("ksl", 1),
        ("sac_pixel", 1),
        *(("ksl", seed) for seed in (2, 3)),
        *(("ksl-results", seed) for seed in (1, 2, 3)),
        *(("drq", seed) for seed in (1, 2, 3)),
    ]
    others = [(s.task, s.method, s.seed) for s in specs[10:16]]
    tasks = ("cheetah_run", "ball_in_cup_catch", "reacher_easy")
    assert others == [(task, method, 1) for task in tasks for method in ("ksl", "drq")]


def test_runs_in_a_table_of_results_count(tmp_path: Path) -> None:
    sweep = read("main", "debug")
    first, *rest = plan(sweep, tmp_path)
    again = plan(sweep, tmp_path, recorded={first.digest: first.env_steps})
    assert [status(spec).state for spec in again] == ["done", *(["missing"] * len(rest))]
    short = plan(sweep, tmp_path, recorded={first.digest: first.env_steps - 1})
    assert status(short[0]).state == "missing"


def test_proto_rl_has_runs_of_its_own_for_each_mark() -> None:
    specs = [s for s in plan(read("tangential"), tasks=["walker_walk"]) if s.method == "proto_rl"]
    assert {(s.env_steps, s.overrides) for s in specs} == {
        (100_000, ("method.exploration.env_steps=50000",)),
        (500_000, ("method.exploration.env_steps=250000",)),
    }


def test_a_spec_is_what_the_command_line_would_make_of_it() -> None:
    from kstep.config import digest, resolve

    for spec in plan(read("tangential", "debug")):
        words = spec.arguments()
        overrides = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
        experiment = resolve(
            words[1],
            words[2],
            preset=words[4],
            seed=int(words[6]),
            env_steps=int(words[8]),
            overrides=overrides,
        )
        assert digest(experiment) == spec.digest
        assert Run.default_folder(Path("runs"), experiment, bool(overrides)) == spec.folder


def test_seeds_of_one_setting_lie_side_by_side(tmp_path: Path) -> None:
    from kstep.config import digest, resolve

    def experiment(seed: int, rate: str = "1e-4") -> Experiment:
        overrides = [f"method.learning.learning_rate={rate}"]
        return resolve("ksl", "toy_reach", preset="debug", seed=seed, overrides=overrides)

    def folder(seed: int, rate: str = "1e-4") -> Path:
        return Run.default_folder(tmp_path, experiment(seed, rate), overridden=True)

    assert folder(1).parent == folder(2).parent != folder(1, "2e-4").parent
    name = f"ksl-debug-{digest(experiment(2))[:6]}"
    (begun := tmp_path / "toy_reach" / name / "seed2").mkdir(parents=True)
    assert folder(2) == begun != folder(1)  # by an earlier version


def test_less_of_a_sweep() -> None:
    sweep = read("main", "cpu")
    specs = plan(sweep, tasks=["cartpole_swingup"], methods=["ksl", "drq"], seeds=seeds("1-2,5"))
    assert [(s.method, s.seed) for s in specs] == [
        (method, seed) for seed in (1, 2, 5) for method in ("ksl", "drq")
    ]
    with pytest.raises(KstepError, match="has no method 'proto_rl'"):
        plan(sweep, methods=["proto_rl"])


def test_variants_of_a_sweeps_methods_can_be_named() -> None:
    sweep = read("main")
    names = ["ksl-results", "drq-original"]
    specs = plan(sweep, tasks=["walker_walk"], methods=names, seeds=[1])
    assert [spec.method for spec in specs] == names
    assert {spec.env_steps for spec in specs} == {500_000}
    assert {spec.method for spec in plan(sweep)} == set(sweep.group[0].methods)  # none unasked
    every = {name for group in planning.with_variants(sweep).group for name in group.methods}
    assert {"ksl-released", "sac_state-original"} < every
    assert not {"ksl-conv", "pi_sac", "pi_sac-original"} & every
    # Their encoders may not fit the method that takes them.
    with pytest.raises(KstepError, match="has no method 'ksl-results'"):
        plan(read("generalization"), methods=["ksl-results"])
    # A setting that the others do not take leaves them out.
    single = ("method.auxiliary.one_optimizer=true",)
    group = replace(sweep.group[0], methods=("ksl",), set=single)
    assert planning.with_variants(replace(sweep, group=(group,))).group == (group,)


def test_angles_are_measured_on_runs_that_others_train() -> None:
    angles, carried = (
        {s.folder: s for s in plan(read(n))} for n in ("gradient-angles", "generalization")
    )
    assert len(angles) == 6 * 3
    assert all(carried[folder] == spec for folder, spec in angles.items())


def test_seeds() -> None:
    assert seeds("1-3, 7,2") == (1, 2, 3, 7)
    assert len(seeds(f"1-{MOST_SEEDS}")) == MOST_SEEDS
    assert len(seeds(f"1-{MOST_SEEDS},5-{MOST_SEEDS}")) == MOST_SEEDS


@pytest.mark.parametrize("text", ["", "a", "3-1", "1-", "-2", "1,,2", "²", "1" * 5000])
def test_invalid_seeds_are_refused(text: str) -> None:
    with pytest.raises(KstepError, match="seeds"):
        seeds(text)


@pytest.mark.parametrize(
    "text", ["1-999999999", "0-99999999999999999", "1-6000,7000-13000", f"0-{MOST_SEEDS}"]
)
def test_too_many_seeds_are_refused_without_listing_them(text: str, tmp_path: Path) -> None:
    with pytest.raises(KstepError, match="more than 10,000 seeds"):
        seeds(text)
    file = tmp_path / "mine.toml"
    file.write_text(
        f'tasks = ["toy_reach"]\n[[group]]\nmethods = ["ksl"]\nseeds = "{text}"\nenv_steps = 9\n'
    )
    with pytest.raises(KstepError, match=r"mine\.toml cannot be read: .* more than 10,000 seeds"):
        read(str(file))


def test_mistakes_in_experiments_are_named(tmp_path: Path) -> None:
    with pytest.raises(KstepError, match="Did you mean 'main'"):
        read("mian")  # codespell:ignore mian
    with pytest.raises(KstepError, match="unknown scale"):
        read("main", "huge")
    file = tmp_path / "mine.toml"
    file.write_text('tasks = ["toy_reach"]\nmethod = []\n')
    with pytest.raises(KstepError, match="unknown key 'method'"):
        read(str(file))
    file.write_text('tasks = ["toy_reach"]\n[[group]]\nmethods = ["ksk"]\nseeds = 1\nenv_steps=9\n')
    with pytest.raises(KstepError, match="Did you mean 'ksl'"):
        read(str(file))
    good = file.read_text().replace("ksk", "ksl")
    for line, complaint in (
        ('transfer = "sac_pixel"', "needs `save_encoders_every`"),
        ("save_encoders_every = 0", "save_encoders_every must be at least 1, not 0"),
        ("alone = 1", "alone must be true or false"),
        ('marks = "100"', "marks must be a list"),
        ("scale = 3", "scale must be a group of settings"),
        ("scale.cpu.seed = 3", "Did you mean 'seeds'"),
        ('scale.paper.preset = "papr"', "Did you mean 'paper'"),
    ):
        file.write_text(f"{line}\n{good}")
        with pytest.raises(KstepError, match=complaint):
            read(str(file))
    file.write_text(f"save_encoders_every = 5\n{good.replace('ksl', 'sac_state')}")
    with pytest.raises(KstepError, match="no encoder to save"):
        plan(read(str(file)))
    two = good.replace('"toy_reach"', '"toy_reach", "toy_glide"')
    file.write_text(f'save_encoders_every = 5\ntransfer = "curl"\n{two}')
    with pytest.raises(KstepError, match="nothing to shape"):  # before anything is trained
        plan(read(str(file)))
    for steps, complaint in (("9.5", "must be a whole number"), ("-1", "must be at least 1")):
        file.write_text(good.replace("env_steps=9", f"env_steps={steps}"))
        with pytest.raises(KstepError, match=complaint):
            read(str(file))
    file.write_text("tasks = []\n" + good.partition("\n")[2])
    with pytest.raises(KstepError, match="at least one task"):
        read(str(file))
    for steps, budget in (("9", 9), ("1e3", 1000), ("1_000", 1000)):
        file.write_text(good.replace("env_steps=9", f"env_steps={steps}"))
        (spec,) = plan(read(str(file)))
        assert (spec.seed, spec.env_steps, spec.preset) == (1, budget, "paper")


def pretend(spec: RunSpec, env_steps: int, *, saved: bool, decisions: int = 7) -> None:
    """Write what a run folder has after that many steps."""
    (spec.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    (spec.folder / "config.json").write_text(json.dumps({"format": FORMAT, "digest": spec.digest}))
    row = Evaluated(0, env_steps, decisions, 0, 0, (1.0,), (5,))
    (spec.folder / "evaluations.jsonl").write_text(json.dumps(asdict(row)) + "\n")
    if saved:
        (spec.folder / "checkpoints" / f"{decisions:09d}").mkdir(exist_ok=True)


def test_status_is_what_the_folder_says(tmp_path: Path) -> None:
    spec, *_ = plan(read("main", "debug"), tmp_path)
    assert status(spec).state == "missing"
    pretend(spec, 100, saved=True)
    assert (status(spec).state, status(spec).env_steps) == ("partly", 100)
    with (spec.folder / "lock").open("a+") as file:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
        assert status(spec).state == "running"
    failed = Attempt("then", 1.0, 1, "cpu", "", 0, "failed", 1, "Traceback\nValueError: no\n")
    spec.run.attempts_file.write_text(json.dumps(asdict(failed)) + "\n")
    assert status(spec) == planning.Status("failed", 100, "ValueError: no")
    pretend(spec, 200, saved=False, decisions=9)
    assert status(spec).state == "failed"  # evaluated, but its end was not saved
    pretend(spec, 200, saved=True, decisions=9)
    assert status(spec).state == "done"
    (spec.folder / "config.json").write_text(json.dumps({"format": FORMAT, "digest": "another"}))
    assert "another experiment" in status(spec).problem


def save_encoders(spec: RunSpec, *marks: int) -> None:
    """Write encoder files of which only the header is real."""
    import safetensors.torch
    import torch

    (spec.folder / "encoders").mkdir(parents=True, exist_ok=True)
    for mark in marks:
        method = spec.experiment().method
        about = saved_encoders.Description(
            format=saved_encoders.FORMAT,
            label=spec.method,
            task=spec.task,
            seed=spec.seed,
            mark=mark,
            config=method.encoder,
            augment=method.augment,
            stack=method.stack,
            frame_shape=(size := rendered_size(method), size, 3),
            angles={},
        )
        header = {saved_encoders.KEY: json.dumps(encode(about))}
        weights = {"w": torch.tensor([float(mark), float(spec.seed)])}
        path = spec.folder / "encoders" / f"{mark:09d}.safetensors"
        path.write_bytes(safetensors.torch.save(weights, header))


def test_runs_that_were_to_save_encoders_are_done_only_with_them(tmp_path: Path) -> None:
    spec, *_ = plan(read("representations", "debug"), tmp_path)
    words = spec.arguments()
    assert words[words.index("--save-encoders-every") + 1] == "50"
    pretend(spec, 200, saved=True)  # as `main` would have left it
    assert status(spec) == planning.Status("failed", 200, planning.NO_ENCODERS)
    save_encoders(spec, 0, 100, 150, 200)
    assert status(spec).problem == planning.NO_ENCODERS
    save_encoders(spec, 50)
    assert status(spec).state == "done"
    (spec.folder / "encoders" / "000000200.safetensors").unlink()
    assert status(spec).problem == planning.NO_ENCODERS
    # The last is of the end, wherever decisions put it; later ones are another budget's.
    save_encoders(spec, 204, 250)
    last = planning.last_encoder(spec)
    assert status(spec).state == "done"
    assert last is not None
    assert last.name == "000000204.safetensors"
    assert all("--save-encoders-every" not in s.arguments() for s in plan(read("main", "debug")))


def test_transfer_runs_are_ready_once_their_source_is_done(tmp_path: Path) -> None:
    from kstep.config import digest, resolve

    def planned() -> tuple[list[RunSpec], list[RunSpec]]:
        specs = plan(read("generalization", "debug"), tmp_path, methods=["ksl", "rad"])
        return (
            [spec for spec in specs if spec.frozen_encoder is None],
            [spec for spec in specs if spec.frozen_encoder is not None],
        )

    sources, transfers = planned()
    assert len(sources) == len(transfers) == 2 * 2 * 2  # the other of two tasks
    assert all(spec.ready for spec in sources)
    assert not any(spec.ready for spec in transfers)
    assert {status(spec).state for spec in transfers} == {"missing"}
    first = sources[0]
    assert (first.method, first.task, first.seed) == ("ksl", "toy_reach", 1)
    save_encoders(first, 0, 50, 100, 150, 200)
    assert not any(spec.ready for spec in planned()[1])  # its end is not saved yet
    pretend(first, 200, saved=True)
    (ready,) = (spec for spec in planned()[1] if spec.ready)
    assert ready.folder == tmp_path / "toy_glide" / "sac_pixel-on-ksl-debug-toy_reach" / "seed1"
    assert ready.folder in {spec.folder for spec in transfers}
    last = first.folder / "encoders" / "000000200.safetensors"
    assert ready.frozen_encoder == last
    words = ready.arguments()
    assert words[:3] == ["train", "sac_pixel", "toy_glide"]
    assert words[words.index("--frozen-encoder") + 1] == str(last)
    frozen = saved_encoders.frozen(last)
    assert digest(resolve("sac_pixel", "toy_glide", preset="debug", frozen_encoder=frozen)) == (
        ready.digest
    )
    # Gone on to a larger budget, it still gives the encoder of this one.
    pretend(first, 400, saved=True, decisions=400)
    save_encoders(first, 400)
    assert ready in planned()[1]
    # Another encoder is another run.
    save_encoders(replace(first, seed=7), 200)
    (other,) = (spec for spec in planned()[1] if spec.ready)
    assert other.digest != ready.digest


@pytest.mark.parametrize("preset", SCALES)
def test_encoders_fit_the_method_that_takes_them(preset: str) -> None:
    from kstep.config import resolve

    sweep = read("generalization", preset)
    taking = resolve(sweep.transfer, sweep.tasks[0], preset=preset).method
    for name in sweep.group[0].methods:
        giving = resolve(name, sweep.tasks[0], preset=preset).method
        assert (giving.encoder, giving.stack) == (taking.encoder, taking.stack)


def test_frozen_encoders_cost_less(tmp_path: Path) -> None:
    specs = plan(read("generalization", "cpu"), tmp_path, seeds=[1])
    frozen = replace(next(s for s in specs if s.frozen_encoder), frozen_encoder=None)
    taken = replace(frozen, frozen_encoder=tmp_path)
    hours = [estimate([s], [planning.Status("missing")]).core_hours for s in (taken, frozen)]
    assert 0 < hours[0] < hours[1]
    assert taken.kind != frozen.kind


def test_half_written_lines_are_passed_over(tmp_path: Path) -> None:
    spec, *_ = plan(read("main", "debug"), tmp_path)
    pretend(spec, 100, saved=True)
    with (spec.folder / "evaluations.jsonl").open("a") as file:
        file.write('{"env_steps": 99')
    assert status(spec).env_steps == 100


@pytest.mark.parametrize("preset", SCALES[:2])
def test_native_convolutions_are_assumed_to_take_half(preset: str, tmp_path: Path) -> None:
    """And where a run was measured, the assumption does not matter."""
    specs = plan(read("main", preset), tmp_path, tasks=["cartpole_swingup"], seeds=[1])
    missing = [planning.Status("missing")] * len(specs)
    native, torch = (estimate(specs, missing, backend=name) for name in ("native", "torch"))
    assert 0.4 < native.core_hours / torch.core_hours < 0.65
    assert native.memory_gb == torch.memory_gb
    speeds = dict.fromkeys((spec.kind for spec in specs), 0.1)
    measured = {estimate(specs, missing, speeds, name).core_hours for name in ("native", "torch")}
    assert len(measured) == 1


def test_a_method_that_learns_every_second_decision_costs_half_the_steps(tmp_path: Path) -> None:
    file = tmp_path / "pair.toml"
    file.write_text(
        'tasks = ["cartpole_swingup"]\n'
        + "".join(
            f'[[group]]\nmethods = ["drq_v2"]\nseeds = "1"\nenv_steps = 1000\n'
            f'set = ["method.learning.update_every={every}"]\n'
            for every in (1, 2, 4)
        )
    )
    one, two, four = (cost_of(spec).core_seconds for spec in plan(read(str(file)), tmp_path))
    assert one - two == pytest.approx(2 * (two - four))
    assert two - four > 0


def test_small_and_grey_images_cost_less(tmp_path: Path) -> None:
    file = tmp_path / "games.toml"
    file.write_text(
        'tasks = ["minatar:breakout", "atari:Pong", "toy_arrows"]\n'
        '[[group]]\nmethods = ["dqn", "ksl_dqn"]\nseeds = "1"\nenv_steps = 100000\npreset = "cpu"\n'
    )
    costs = {(s.task, s.method): cost_of(s) for s in plan(read(str(file)), tmp_path)}
    small, grey, coloured = (
        costs[task, "dqn"] for task in ("minatar:breakout", "atari:Pong", "toy_arrows")
    )
    assert small.core_seconds < grey.core_seconds / 10
    assert small.memory_gb < grey.memory_gb < coloured.memory_gb
    assert small.core_seconds < costs["minatar:breakout", "ksl_dqn"].core_seconds


def attempted(spec: RunSpec) -> None:
    """Record an attempt of 0.1 core-seconds per decision."""
    row = Attempt("then", 50.0, 2, "cpu", "here", 1000, "done", 0, "")
    spec.run.attempts_file.parent.mkdir(parents=True)
    spec.run.attempts_file.write_text(json.dumps(asdict(row)) + "\n")


def test_estimates_use_what_was_measured(tmp_path: Path) -> None:
    specs = plan(read("main", "cpu"), tmp_path, tasks=["cartpole_swingup"], methods=["ksl"])
    before = estimate(specs, [status(spec) for spec in specs])
    assert before.measured == 0
    assert 1 < before.core_hours < 100
    assert 1.3 < before.memory_gb < 1.7  # 12,500 decisions of 84 x 84 x 3
    attempted(specs[0])
    speeds = measured_speeds(specs)
    assert speeds == {("cartpole_swingup", ("ksl", "cpu")): 0.1}
    after = estimate(specs, [status(spec) for spec in specs], speeds)
    assert after.measured == 3
    assert after.core_hours == pytest.approx(3 * 12_500 * 0.1 / 3600)
    assert after.hours(cores=2) == pytest.approx(after.core_hours / 2)
    assert after.hours(cores=100) == pytest.approx(after.longest_core_hours)


def test_a_tables_times_count_where_nothing_was_measured_here(tmp_path: Path) -> None:
    specs = plan(read("main", "cpu"), tmp_path, tasks=["cartpole_swingup"], methods=["ksl", "drq"])
    ksl, drq = (next(s for s in specs if s.method == name) for name in ("ksl", "drq"))
    tabled = {ksl.setting: 0.5, drq.setting: 0.3}
    assert measured_speeds(specs, tabled) == {ksl.kind: 0.5, drq.kind: 0.3}
    attempted(drq)
    assert measured_speeds(specs, tabled) == {ksl.kind: 0.5, drq.kind: 0.1}


def test_a_task_of_the_suite_is_corrected_by_what_was_measured_on_others(tmp_path: Path) -> None:
    """In proportion to what was assumed: DrQ-v2's batch is twice as large on walker_walk."""
    file = tmp_path / "three.toml"
    file.write_text(
        'tasks = ["cartpole_swingup", "walker_walk", "toy_reach"]\n'
        '[[group]]\nmethods = ["drq_v2"]\nseeds = "1"\nenv_steps = 1000\npreset = "cpu"\n'
    )
    specs = plan(read(str(file)), tmp_path)
    missing = [planning.Status("missing")]
    cart_pole, *others = specs

    def hours(spec: RunSpec, speeds: dict[planning.Kind, float]) -> float:
        both = estimate([cart_pole, spec], [planning.Status("done"), *missing], speeds)
        assert both.measured == 0
        return both.core_hours

    assumed = cost_of(cart_pole).core_seconds
    walker, toy = (hours(spec, {cart_pole.kind: 3 * assumed}) / hours(spec, {}) for spec in others)
    assert walker == pytest.approx(3.0)
    assert toy == 1.0
    assert cost_of(others[0]).core_seconds > 1.5 * assumed


def test_changed_settings_are_another_kind(tmp_path: Path) -> None:
    spec = plan(read("main", "cpu"), tmp_path, tasks=["cartpole_swingup"], methods=["ksl"])[0]
    assert spec.kind != replace(spec, overrides=("method.learning.update_every=4",)).kind


def test_every_methods_step_was_measured_for_both_presets_and_backends() -> None:
    steps = assumptions()["step"]
    for backend in ("torch", "native"):
        for preset in ("paper", "cpu"):
            measured = steps[backend][preset]
            from_pixels = {w.name for w in METHODS if w.name != "sac_state"}
            assert measured.keys() == from_pixels
            # The decoder is counted, which passes through the encoder do not show.
            assert 1.8 < measured["sac_ae"] / measured["sac_pixel"] < 2.6
            assert 1.8 < measured["ksl"] / measured["sac_pixel"] < 2.2


def test_variants_follow_by_their_passes_and_frozen_encoders_have_no_backward(
    tmp_path: Path,
) -> None:
    grid = plan(read("k-l-grid", "paper"), tmp_path, seeds=[1])
    seconds = {spec.method: cost_of(spec, "native").core_seconds for spec in grid}
    other = float(assumptions()["decision"]["seconds"])
    own = float(assumptions()["step"]["native"]["paper"]["ksl"])
    assert seconds["ksl-k1-l0"] - other == pytest.approx(own * (5.5 + 4) / (7.5 + 4))
    frozen = replace(grid[0], method="ksl", frozen_encoder=tmp_path)
    assert cost_of(frozen, "native").core_seconds - other == pytest.approx(own * 7.5 / 11.5)


def test_assumed_passes_are_those_of_the_docs() -> None:
    table = (Path(__file__).parents[2] / "docs" / "methods" / "README.md").read_text()
    documented = {
        name: [float(forward), float(backward)]
        for name, forward, backward in re.findall(
            r"^\| `([\w-]+)` \|.*\| ([\d.]+) \+ ([\d.]+) \|", table, flags=re.MULTILINE
        )
    }
    for name, passes in assumptions()["passes"].items():
        assert documented[name] == passes


def many(folder: Path, runs: int) -> list[RunSpec]:
    """A plan of so many runs: ten cells, the rest are seeds."""
    file = folder / "many.toml"
    names = ", ".join(f'"{name}"' for name in ("ksl", "rad", "drq", "curl", "sac_ae"))
    file.write_text(
        'tasks = ["toy_reach", "cartpole_swingup"]\n'
        f'[[group]]\nmethods = [{names}]\nseeds = "1-{runs // 10}"\nenv_steps = 500\n'
    )
    return plan(read(str(file)), folder / str(runs))


def counted(monkeypatch: pytest.MonkeyPatch, **owners: object) -> Counter[str]:
    """Count the calls of functions that cost something: reading a file, making a configuration."""
    calls: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls[name] += 1
            return function(*arguments, **options)

        return call

    for name, owner in owners.items():
        monkeypatch.setattr(owner, name, counting(name, getattr(owner, name)))
    return calls


def test_ten_thousand_runs_are_planned_and_read_with_linear_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = {
        **dict.fromkeys(("json_lines", "last_json_line"), folder),
        "json_file": reading,
        **dict.fromkeys(("is_locked", "checkpointed"), RunFolder),
    }
    calls = counted(monkeypatch, resolve=planning, digest=planning, **reads)
    work = {}
    for runs in (1_000, 10_000):
        calls.clear()
        cost._cost.cache_clear()  # of other tests, or of the first round
        started = time.process_time()
        specs = many(tmp_path, runs)
        assert len(specs) == runs
        planned = time.process_time() - started
        for spec in specs[: runs // 2]:
            pretend(spec, 500 if spec.seed % 2 else 100, saved=True)
        started = time.process_time()
        statuses = [status(spec) for spec in specs]
        estimate(specs, statuses, measured_speeds(specs))
        print(f"{runs:,} runs: {planned + time.process_time() - started:.2f} seconds")
        work[runs] = Counter(calls)
    found = Counter(status.state for status in statuses)
    assert (found["done"], found["partly"], found["missing"]) == (2_500, 2_500, 5_000)
    few, most = work[1_000], work[10_000]
    # Configurations are made once per cell; a run costs one digest and at most six small reads.
    assert few["resolve"] == most["resolve"] <= 20
    assert most["digest"] - 10_000 == few["digest"] - 1_000 <= 20
    assert {name: most[name] for name in reads} == {name: 10 * few[name] for name in reads}
    assert sum(most[name] for name in reads) <= 6 * 10_000


def test_ten_thousand_runs_go_through_the_queue_with_linear_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local queue and its bookkeeping, with runs that take no time."""
    from kstep.sweep import conduct, engines

    calls = counted(monkeypatch, status=planning)
    monkeypatch.setattr(engines, "execute", lambda *_: engines.Outcome("done"))
    for runs in (1_000, 10_000):
        calls.clear()
        specs = many(tmp_path, runs)
        started = time.process_time()
        out = Console(file=StringIO(), soft_wrap=True)
        outcomes = conduct.conduct(engines.Local(16), specs, engines.Slot(), 1, out)
        print(f"{runs:,} runs: {time.process_time() - started:.2f} seconds")
        assert set(outcomes) == set(specs)
        assert {outcome.result for outcome in outcomes.values()} == {"done"}
        assert calls["status"] == runs
        assert f"({runs} of {runs})" in out.file.getvalue()  # type: ignore[attr-defined]
