"""Films of any moment, side by side, with what the policy sees, does and gets; saved policies."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import imageio.v2 as imageio
import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import nn

from kstep.auxiliary.ksl import KSL
from kstep.cli import main
from kstep.report.film import _Actor, film
from kstep.report.options import Overlay
from kstep.run import policies
from kstep.run.evaluate import evaluate, evaluation_seeds
from kstep.run.folder import Run
from kstep.run.load import opened
from kstep.run.policies import only_policy
from kstep.types import KstepError
from tests.make import expect
from tests.runs import experiment, go


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    for method in ("ksl", "sac_pixel"):
        go(root / method, experiment(method, env_steps=60), save_policies_every=40)
    return {path.name: path for path in root.iterdir() if path.is_dir()}


def frames(path: Path) -> np.ndarray:
    return np.stack(imageio.mimread(path))


def test_a_saved_policy_acts_as_its_checkpoint_does(runs: dict[str, Path]) -> None:
    run = Run.open(runs["ksl"])
    assert [int(path.stem) for path in run.saved_policies()] == [0, 40, 60]
    newest = run.checkpoint_folders()[-1] / "agent.safetensors"
    assert 3 * run.saved_policies()[-1].stat().st_size < newest.stat().st_size
    seeds = evaluation_seeds(0, -1, 2)
    with opened(run.folder, lanes=2) as (agent, lanes, counts):
        whole = evaluate(agent, lanes, seeds)
        assert only_policy(run) is None
    with opened(run.folder, lanes=2, at=60) as (agent, lanes, again):
        assert evaluate(agent, lanes, seeds) == whole
        assert again == counts
    with opened(run.folder, lanes=2, at=0) as (agent, lanes, first):
        assert first.env_steps == 0
        assert evaluate(agent, lanes, seeds) != whole


def test_moments_that_are_not_kept_and_policies_of_others_are_refused(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    with (
        pytest.raises(KstepError, match="no policy at 7 env steps; it has: 0, 40, 60"),
        opened(runs["ksl"], at=7),
    ):
        pass
    run = Run.open(runs["ksl"])
    with opened(run.folder) as (agent, _, counts):
        weights = {name: tensor.contiguous() for name, tensor in policies.acting(agent).items()}
        other = Run(tmp_path, experiment("sac_pixel"))
        wrong = {
            "belongs to another experiment": policies.packed(other, agent, counts),
            "not a policy": safetensors.torch.save(weights),
        }
        expect(nn.Module, agent.core.actor).register_buffer("more", torch.zeros(1))
        wrong["does not fit its experiment: 'core/actor.more'"] = policies.packed(
            run, agent, counts
        )
    for sentence, data in wrong.items():
        path = tmp_path / "policy.safetensors"
        path.write_bytes(data)
        with opened(run.folder) as (agent, _, _), pytest.raises(KstepError) as error:
            policies.load(run, agent, path)
        assert sentence in str(error.value)


def test_a_grid_of_methods_and_moments(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "grid.mp4"
    words = ["film", str(runs["ksl"]), str(runs["sac_pixel"]), "--at", "0", "40", "60"]
    main([*words, "--height", "80", "--width", "112", "--output", str(target)])
    assert frames(target).shape[1:] == (160, 336, 3)
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 7
    main(["eval", str(runs["ksl"]), "--at", "40", "--episodes", "1"])
    mean = capsys.readouterr().out.splitlines()[-1].split()[1].rstrip(",")
    (filmed,) = (line for line in said if "ksl" in line and "40 env steps" in line)
    assert ": ksl-debug" in filmed
    assert float(filmed.split()[1].rstrip(":")) == pytest.approx(float(mean), abs=0.06)


def test_overlays_are_drawn_over_the_same_episode(runs: dict[str, Path], tmp_path: Path) -> None:
    plain = film([runs["ksl"]], tmp_path / "plain.mkv", label=False, height=96, width=128)
    before = frames(tmp_path / "plain.mkv")
    for overlay in get_args(Overlay):
        path = tmp_path / f"{overlay}.mkv"
        same = film([runs["ksl"]], path, overlay=[overlay], label=False, height=96, width=128)
        assert same == plain
        after = frames(path)
        assert after.shape == before.shape
        changed = np.abs(after.astype(int) - before).max(axis=(0, 3)) > 40
        # looks: upper right; the others: below
        assert changed[:48].any() == (overlay == "looks")
        assert changed.any(), overlay
    film([runs["ksl"]], tmp_path / "label.mkv", height=96, width=128)
    assert (np.abs(frames(tmp_path / "label.mkv").astype(int) - before)[:, :10] > 40).any()


def test_predictions_are_those_of_the_loss(runs: dict[str, Path]) -> None:
    with opened(runs["ksl"]) as (agent, [env], _):
        actor = _Actor(agent, env, evaluation_seeds(0, -1, 1), ["predictions"])
        seen = []
        while actor.advance():
            seen.append(agent.method.augment.act_view(actor.episode.observation[None])[0])
        task = agent.auxiliary
        assert isinstance(task, KSL)
        assert actor.predictions is not None
        k, start = task.config.k, 2
        observation = torch.from_numpy(np.stack(seen[start : start + k + 1])[None])
        action = torch.from_numpy(np.stack(actor.actions[start : start + k])[None])
        with torch.no_grad():
            distances = task.distances(agent.encoder, agent.slow_encoder, observation, action)
        cosines = [actor.predictions.cosines[start + j][j] for j in range(k)]
    assert [1 - float(d) / 2 for d in distances] == pytest.approx(cosines, abs=1e-5)


@pytest.mark.parametrize("kind", ["gif", "webp"])
def test_animations_for_pages(kind: str, runs: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / f"film.{kind}"
    result = film([runs["sac_pixel"]], path, height=64, width=64, fps=20)
    with Image.open(path) as image:
        assert image.size == (64, 64)
        assert image.format == kind.upper()
        (only,) = result.values()
        count = int(getattr(image, "n_frames"))  # noqa: B009
        assert 1 < count <= only.lengths[0] + 1  # equal frames are one that lasts
        image.seek(1)
        image.load()
        assert image.info["duration"] % 50 == 0
        assert image.info["loop"] == 0


def test_what_cannot_be_shown_is_refused(runs: dict[str, Path], tmp_path: Path) -> None:
    state = go(tmp_path / "state", experiment("sac_state", env_steps=35)).folder
    cases: list[tuple[Path, tuple[int, ...], Overlay, str]] = [
        (state, (), "looks", "has no convolutions"),
        (runs["sac_pixel"], (), "predictions", "does not have KSL's transition model"),
        (runs["ksl"], (40,), "predictions", "has only a policy at this moment"),
    ]
    for folder, at, overlay, sentence in cases:
        with pytest.raises(KstepError, match=sentence):
            film([folder], tmp_path / "x.mp4", at=at, overlay=[overlay])
    with pytest.raises(KstepError, match="for each of 30"):
        film([state] * 30, tmp_path / "x.mp4")
    assert not (tmp_path / "x.mp4").exists()
