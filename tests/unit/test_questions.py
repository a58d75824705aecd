"""Evaluation sets, saved encoders and every question, at the debug size."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from kstep.agent import Agent
from kstep.analysis.evaluation_set import EvaluationSet, collect_from
from kstep.analysis.questions import QUESTIONS, Answer, Subject, analyze, analyze_all, subjects
from kstep.analysis.tables import Row
from kstep.cli import main
from kstep.config import resolve
from kstep.envs import EnvConfig, make, spec_of
from kstep.report.analyze import beside_paper
from kstep.report.page import analyses
from kstep.rng import Streams
from kstep.run import saved_encoders as encoders
from kstep.run.folder import Run, RunFolder
from kstep.run.runtime import Runtime
from kstep.run.train import train
from kstep.types import Counts, KstepError

QUIET = Console(quiet=True)
METHODS = ("ksl", "sac_pixel", "rad")


def trained(folder: Path, method: str, env_steps: int = 130, every: int | None = 60) -> Path:
    experiment = resolve(method, "toy_reach", preset="debug", env_steps=env_steps)
    run = Run.prepare(folder, experiment)
    train(run, Runtime(threads=1, save_encoders_every=every), QUIET)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    return {method: trained(root / method, method) for method in METHODS}


@pytest.fixture(scope="module")
def on(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets") / "toy"
    options = ["--episodes", "4", "--sizes", "64"]
    main(["evaluation-set", str(runs["ksl"]), "--output", str(folder), *options])
    return folder


def legend(answer: Answer) -> list[str]:
    """What the legend of its first panel names."""
    found = answer.figure().axes[0].get_legend()
    assert found is not None
    return [text.get_text() for text in found.get_texts()]


def test_a_set_is_what_the_agent_went_through(runs: dict[str, Path], on: Path) -> None:
    states = EvaluationSet.load(on)
    assert states.frames[48].shape == (len(states), 48, 48, 3)
    assert states.frames[64].shape == (len(states), 64, 64, 3)
    large = make(EnvConfig("toy_reach", size=64), 0)
    assert states.quantities == ("dot x", "dot y", "target x", "target y")
    assert set(states.episode) == {0, 1, 2, 3}
    assert states.provenance["digest"] == Run.open(runs["ksl"]).digest
    # Replaying the stored actions gives the stored frames, rewards and states again.
    env = make(EnvConfig("toy_reach", size=48), 0)
    for number, seed in enumerate(states.provenance["episode_seeds"]):
        frame, _ = env.reset(seed=seed)
        drawn, _ = large.reset(seed=seed)
        for i in np.flatnonzero(states.episode == number):
            assert np.array_equal(frame, states.frames[48][i])
            assert list(env.quantities().values()) == pytest.approx(list(states.state[i]))
            assert np.array_equal(drawn, states.frames[64][i])
            drawn, *_ = large.step(states.action[i])
            frame, reward, *_ = env.step(states.action[i])
            assert reward == pytest.approx(states.reward[i])
    again = collect_from(runs["ksl"], episodes=4, sizes=[64])
    assert np.array_equal(again.frames[48], states.frames[48])


def test_stacks_repeat_the_first_frame_and_never_cross_episodes(on: Path) -> None:
    states = EvaluationSet.load(on)
    begin = int(np.flatnonzero(states.episode == 1)[0])
    frames = states.frames[48]
    stacks = states.stacks(np.array([begin, begin + 1, begin + 2]))
    for stack, indices in zip(stacks, ((0, 0, 0), (0, 0, 1), (0, 1, 2)), strict=True):
        assert np.array_equal(stack, frames[[begin + i for i in indices]])
    assert sum(len(batch) for batch in states.batches()) == len(states)
    assert set(states.first(2).episode) == {0, 1}


def test_a_damaged_set_is_refused(on: Path, tmp_path: Path) -> None:
    states = EvaluationSet.load(on)
    states.save(tmp_path / "copy")
    with pytest.raises(KstepError, match="exists"):
        states.save(tmp_path / "copy")
    with (tmp_path / "copy" / "states.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff" if file.read(1) != b"\xff" else b"\x00")
    with pytest.raises(KstepError, match="damaged"):
        EvaluationSet.load(tmp_path / "copy")
    with pytest.raises(KstepError, match="not an evaluation set"):
        EvaluationSet.load(tmp_path)


def test_encoders_are_saved_at_marks_and_load_as_functions(runs: dict[str, Path]) -> None:
    files = RunFolder(runs["ksl"]).saved_encoders()
    assert [int(file.stem) for file in files] == [0, 60, 120, 130]
    saved = encoders.load(files[-1])
    assert (saved.label, saved.task, saved.seed, saved.env_steps) == (
        "ksl-debug",
        "toy_reach",
        1,
        130,
    )
    (newest,) = subjects([runs["ksl"]], whole_runs=True)
    stacks = np.random.default_rng(0).integers(0, 256, (4, 3, 48, 48, 3)).astype(np.uint8)
    assert np.array_equal(saved(stacks), newest.encode(stacks))
    first = encoders.load(files[0])
    assert not first.angles
    assert not np.array_equal(first(stacks), saved(stacks))
    experiment = Run.open(runs["ksl"]).experiment
    env = make(experiment.env, 1)
    fresh = Agent(experiment.method, spec_of(env), Streams(experiment.seed))
    with torch.no_grad():
        assert np.array_equal(first(stacks), fresh.encoder(torch.from_numpy(stacks)).numpy())


def test_a_quick_encoder_is_the_same_up_to_rounding(tmp_path: Path) -> None:
    experiment = resolve("sac_pixel", "toy_reach", preset="cpu")
    run = Run.prepare(tmp_path / "run", experiment)
    agent = Agent(experiment.method, spec_of(make(experiment.env, 1)), Streams(1))
    with run.locked():
        run.begin()
        path = encoders.save(run, agent, Counts(), 0)
    stacks = np.random.default_rng(0).integers(0, 256, (3, 3, 84, 84, 3)).astype(np.uint8)
    plain, quick = encoders.load(path), encoders.load(path, quick=True)
    with torch.no_grad():
        assert np.array_equal(plain(stacks), agent.encoder(torch.from_numpy(stacks)).numpy())
    assert quick(stacks) == pytest.approx(plain(stacks), abs=1e-4)
    assert next(subjects([path])).encode(stacks) == pytest.approx(quick(stacks), abs=0.0)


def test_saving_encoders_changes_nothing_and_survives_interruption(tmp_path: Path) -> None:
    plain = trained(tmp_path / "plain", "ksl", 130, None)
    whole = trained(tmp_path / "whole", "ksl", 130, 60)
    assert not RunFolder(plain).saved_encoders()
    left, right = (
        (max((run / "checkpoints").iterdir()) / "agent.safetensors").read_bytes()
        for run in (plain, whole)
    )
    assert left == right
    parts = tmp_path / "parts"
    trained(parts, "ksl", 70, 60)
    trained(parts, "ksl", 130, 60)
    for mark in (0, 60, 120, 130):
        name = f"encoders/{mark:09d}.safetensors"
        assert (whole / name).read_bytes() == (parts / name).read_bytes()


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    experiment = resolve("sac_state", "toy_reach", preset="debug")
    with pytest.raises(KstepError, match="sees the state"):
        train(Run.prepare(tmp_path / "a", experiment), Runtime(save_encoders_every=5), QUIET)
    assert not (tmp_path / "a").exists()
    with pytest.raises(KstepError, match="at least 1"):
        train(Run.prepare(tmp_path / "b", experiment), Runtime(save_encoders_every=0), QUIET)


def test_cropping_methods_get_frames_of_their_size(runs: dict[str, Path], on: Path) -> None:
    states = EvaluationSet.load(on)
    (file, *_) = RunFolder(runs["rad"]).saved_encoders()
    assert encoders.load(file).size == 64
    answer = analyze("temporal", subjects([file]), states)
    assert answer.rows[0]["label"] == "rad-debug"
    only = EvaluationSet(**{**vars(states), "frames": {48: states.frames[48]}})
    with pytest.raises(KstepError, match="--sizes 48 64"):
        analyze("temporal", subjects([file]), only)


@pytest.mark.parametrize("question", QUESTIONS)
def test_every_question_by_one_command(
    question: str, runs: dict[str, Path], on: Path, tmp_path: Path
) -> None:
    asked = [runs["ksl"]] if question == "horizon" else list(runs.values())
    marks = ["--at", "60", "120"] if question == "reward-pca" else []
    paths = [str(path) for path in asked]
    main(["analyze", question, *paths, "--on", str(on), "--output", str(tmp_path), *marks])
    with (tmp_path / f"{question}.csv").open() as file:
        rows = list(csv.DictReader(file))
    labels = {row["label"] for row in rows}
    alone = question in ("gradients", "horizon")
    assert labels == ({"ksl-debug"} if alone else {"ksl-debug", "sac_pixel-debug", "rad-debug"})
    assert (tmp_path / f"{question}.png").stat().st_size > 5_000
    if question == "perturbation":
        with (tmp_path / "perturbation-changes.csv").open() as file:
            changes = {(r["label"], r["perturbation"]): r for r in csv.DictReader(file)}
        change = changes["ksl-debug", "translation"]
        assert (change["task"], change["every"], change["paper"]) == ("toy_reach", "60", "nan")
    if question == "reward-pca":
        found = analyses.section([tmp_path], pytest.fail, analyses.read_table)
        assert len(found.clouds) == 6
        assert len(found.clouds[0].points) == int(rows[0]["states"])
    if question == "saliency":
        assert len(list(tmp_path.glob("*.mp4"))) == 12
    if question == "gradients":
        assert {row["env_steps"] for row in rows} == {"60", "120", "130"}


def test_questions_of_latents_share_one_encoding(on: Path, tmp_path: Path) -> None:
    states = EvaluationSet.load(on)
    seen = []

    def encode(stacks: np.ndarray) -> np.ndarray:
        seen.append(len(stacks))
        return np.asarray(stacks.mean(axis=(2, 3)).reshape(len(stacks), -1))

    answers = analyze_all(["reward-mse", "temporal", "collapse"], [Subject("a", encode)], states)
    assert sum(seen) == len(states)
    assert [answer.rows[0]["label"] for answer in answers] == ["a"] * 3


def test_only_some_states_are_perturbed_and_the_table_says_how_many(on: Path) -> None:
    states = EvaluationSet.load(on)
    seen = []

    def encode(stacks: np.ndarray) -> np.ndarray:
        seen.append(len(stacks))
        return np.asarray(stacks[:, -1].mean(axis=1).reshape(len(stacks), -1))

    plain = Subject("a", encode)
    some = analyze("perturbation", [plain], states, perturbed=7).rows
    assert {row["states"] for row in some} == {7}
    assert sum(seen) == len(states) + 10 * 7  # three kinds thrice, the mirror image once
    every = analyze("perturbation", [plain], states, perturbed=10**6).rows
    assert {row["states"] for row in every} == {len(states)}
    for few, many in zip(some, every, strict=True):
        away = float(few["distance"]) - float(many["distance"])
        assert abs(away) < 6 * float(few["error"])
    assert list(states.spaced(3)) == [0, round((len(states) - 1) / 2), len(states) - 1]
    with pytest.raises(KstepError, match="--perturbed must be at least 1"):
        analyze("perturbation", [plain], states, perturbed=0)


def test_gradients_need_no_states_and_tasks_keep_their_lines(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    experiment = resolve("ksl", "toy_glide", preset="debug", env_steps=60)
    train(Run.prepare(other, experiment), Runtime(threads=1, save_encoders_every=60), QUIET)
    answer = analyze("gradients", subjects([runs["ksl"], other]), None)
    assert {row["task"] for row in answer.rows} == {"toy_reach", "toy_glide"}
    assert legend(answer) == ["ksl-debug, toy_reach", "ksl-debug, toy_glide"]
    with pytest.raises(KstepError, match="--on FOLDER"):
        analyze("temporal", subjects([other]), None)
    main(["analyze", "gradients", str(other), "--output", str(tmp_path / "out")])
    assert (tmp_path / "out" / "gradients.csv").exists()


def test_a_survey_is_one_command(runs: dict[str, Path], on: Path, tmp_path: Path) -> None:
    options = ["--on", str(on), "--output", str(tmp_path), "--at", "60", "--perturbed", "5"]
    main(["analyze", "survey", str(runs["ksl"]), *options])
    tables = {path.stem for path in tmp_path.glob("*.csv")}
    assert {"reward-pca", "reward-mse", "temporal", "collapse", "state-probe"} < tables
    with (tmp_path / "perturbation.csv").open() as file:
        assert [row["states"] for row in csv.DictReader(file)] == ["5"] * 4


def test_a_wrong_encoder_is_refused_with_the_reason(on: Path) -> None:
    states = EvaluationSet.load(on)
    for encode, complaint in (
        (lambda x: x.mean(), "one vector per state"),
        (lambda x: np.full((len(x), 2), np.nan), "non-finite"),
    ):
        with pytest.raises(KstepError, match=complaint):
            analyze("temporal", [Subject("bad", encode)], states)
    plain = Subject("plain", lambda x: x[:, -1, 0, 0])
    for question in ("gradients", "saliency", "horizon"):
        with pytest.raises(KstepError, match="needs"):
            analyze(question, [plain], states)
    with pytest.raises(KstepError, match="unknown question"):
        analyze("why", [plain], states)
    learning = torch.ones(1, requires_grad=True)
    bad = Subject("bad", lambda x: learning.expand(len(x), 1))  # type: ignore[arg-type,return-value]
    with pytest.raises(KstepError, match="array of numbers"):
        analyze("temporal", [bad], states)
    with pytest.raises(KstepError, match="plain with seed 0 at 0 env_steps is named twice"):
        analyze("temporal", [plain, plain], states)


def test_the_papers_changes_in_sensitivity_stand_beside_its_own_task_only() -> None:
    rows: list[Row] = [
        {
            "label": "ksl-results-cpu",
            "task": task,
            "seed": 1,
            "env_steps": at,
            "perturbation": kind,
            "distance": float(at),
            "normalized": 0.0,
        }
        for task in ("walker_walk", "cartpole_swingup")
        for kind in ("translation", "noise", "flipping")
        for at in (5, 10)
    ]
    asked = QUESTIONS["perturbation"]
    answer = beside_paper(Answer(asked, asked.summarize({"perturbation": rows}), {}))
    paper = {
        (row["task"], row["perturbation"]): float(row["paper"])
        for row in answer.tables["perturbation-changes"]
    }
    assert paper["walker_walk", "translation"] == 0.008
    assert paper["walker_walk", "noise"] == paper["walker_walk", "flipping"] > 0.0
    assert np.isnan(paper["cartpole_swingup", "translation"])


def test_marks_are_obeyed_or_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    (file,) = [
        f for f in RunFolder(runs["ksl"]).saved_encoders() if encoders.describe(f).mark == 120
    ]
    assert [s.env_steps for s in subjects([runs["ksl"], file], [120])] == [120, 120]
    without = trained(tmp_path / "without", "ksl", 60, None)
    for paths, at, whole, complaint in (
        ([runs["ksl"]], [60, 90], False, "no encoder for 90 env_steps, but for 0, 60, 120, 130"),
        ([file], [60], False, "is of 120 env_steps"),
        ([without], [60], False, "saved no encoders for --at: .*--save-encoders-every"),
        ([runs["ksl"]], [60], True, "takes no --at"),
    ):
        with pytest.raises(KstepError, match=complaint):
            next(subjects(paths, at, whole_runs=whole))


def test_runs_with_changed_settings_are_something_of_their_own() -> None:
    labels = []
    for seed, overrides in ((1, ()), (1, ["method.auxiliary.k=2"]), (2, ["method.auxiliary.k=2"])):
        changed = resolve("ksl", "toy_reach", preset="debug", seed=seed, overrides=overrides)
        labels.append(encoders.label_of(changed))
    assert labels[0] == "ksl-debug"
    assert re.fullmatch(r"ksl-debug-[0-9a-f]{6}", labels[1])
    assert labels[1] == labels[2]


def test_two_phases_are_in_the_label() -> None:
    for budget, more, label in (
        (100_000, [], "proto_rl 50k/50k"),
        (500_000, [], "proto_rl 250k/250k"),
        (500_000, ["method.exploration.env_steps=50000"], "proto_rl 50k/450k"),
        (201, [], "proto_rl 100/101"),
    ):
        experiment = resolve("proto_rl", "walker_walk", env_steps=budget, overrides=more)
        assert encoders.label_of(experiment) == label


def test_figures_keep_tasks_apart(runs: dict[str, Path], on: Path, tmp_path: Path) -> None:
    states = EvaluationSet.load(on)
    (file,) = [
        f for f in RunFolder(runs["ksl"]).saved_encoders() if encoders.describe(f).mark == 120
    ]
    (one,) = subjects([file])
    both = [one, replace(one, task="elsewhere")]
    drawn = analyze("reward-pca", both, states).figure()
    dots = [
        len(np.asarray(axes.collections[0].get_offsets()))
        for axes in drawn.axes
        if axes.get_title("left")
    ]
    assert dots == [len(states)] * 2
    assert "toy_reach, seed 1" in drawn.axes[0].get_title("left")
    assert legend(analyze("state-probe", both, states)) == [
        "ksl-debug, toy_reach at 120",
        "ksl-debug, elsewhere at 120",
    ]
    assert len(analyze("saliency", both, states.first(1)).videos) == 2


def test_a_constant_encoder_has_distance_0_and_rank_1(on: Path) -> None:
    states = EvaluationSet.load(on)
    constant = Subject("constant", lambda stacks: np.full((len(stacks), 5), 0.3))
    for row in analyze("perturbation", [constant], states).rows:
        assert row["distance"] == 0.0
    assert analyze("temporal", [constant], states).rows[0]["distance"] == 0.0
    assert analyze("collapse", [constant], states).rows[0]["effective_rank"] == 1.0


def test_joints_of_the_suite_have_names() -> None:
    pytest.importorskip("dm_control")
    env = make(EnvConfig("walker_walk", observation="state"), 0)
    env.reset(seed=1)
    found = env.quantities()
    assert {"right_hip", "right_hip velocity", "rootz"} <= set(found)
    cartpole = make(EnvConfig("cartpole_swingup", observation="state"), 0)
    cartpole.reset(seed=1)
    names = set(cartpole.quantities())
    assert {"slider", "sin hinge_1", "cos hinge_1", "hinge_1 velocity"} == names - {
        "slider velocity"
    }


def test_the_page_analyses_a_function_in_six_lines(
    on: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "analysis.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len([line for line in block.splitlines() if line and "import" not in line]) <= 6
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "walker_walk").symlink_to(on)
    exec(compile(block, "docs/analysis.md", "exec"), {})
    assert (tmp_path / "results" / "reward-mse.csv").exists()
    assert json.loads((on / "set.json").read_text())["format"] == 1


def test_the_example_notebook_runs(
    runs: dict[str, Path], on: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(__file__).parents[2] / "examples" / "representations.ipynb"
    cells = json.loads(path.read_text())["cells"]
    monkeypatch.chdir(tmp_path)
    for name, there in (("sets/toy_glide", on), ("runs/toy_glide/ksl-debug/seed1", runs["ksl"])):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).symlink_to(there)
    shown: list[object] = []
    names = {"display": shown.append}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(path), "exec"), names)
    assert len(shown) == 6
