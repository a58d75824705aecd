"""Numbers beside an image: packed into its frame, not augmented, normalized, encoded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kstep import packing
from kstep.agent import Agent
from kstep.config import Experiment, resolve
from kstep.data.augment import Shift
from kstep.data.beside import ImageOnly
from kstep.data.crop import Crop
from kstep.data.replay import Stacks
from kstep.methods import METHODS
from kstep.nets.base import Encoder
from kstep.nets.beside import WithVector
from kstep.rng import Streams
from kstep.run.folder import Run
from kstep.types import EnvSpec, KstepError
from tests.make import expect, filled_replay, spec_for, tiny
from tests.runs import assert_same, go, stop_after
from tests.unit.test_sight import IMPORTABLE

NUMBERS = 3


def with_numbers(spec: EnvSpec, numbers: int = NUMBERS) -> EnvSpec:
    height, width, channels = spec.frame_shape
    below = packing.rows(numbers, width, channels)
    return replace(spec, frame_shape=(height + below, width, channels), vector_dim=numbers)


@given(st.integers(1, 60), st.integers(1, 9), st.sampled_from([1, 3, 4]), st.booleans())
def test_packing_loses_nothing(numbers: int, width: int, channels: int, stacked: bool) -> None:
    rng = np.random.default_rng(numbers)
    lead = (2, 3) if stacked else ()
    image = rng.integers(0, 256, (*lead, 5, width, channels)).astype(np.uint8)
    vector = rng.normal(size=(*lead, numbers)).astype(np.float32)
    packed = packing.pack(image, vector)
    again, back = packing.unpack(packed, numbers)
    np.testing.assert_array_equal(again, image)
    np.testing.assert_array_equal(back, vector)
    spec = EnvSpec("pixels", packed.shape[-3:], 1, 1, 9, vector_dim=numbers)
    assert spec.image_shape == image.shape[-3:]
    encoder = WithVector(_Flat(), image.shape[-3:], 3, numbers)
    if stacked:
        np.testing.assert_array_equal(encoder.vector(torch.from_numpy(packed)), vector)


class _Flat(Encoder):
    """Stands for an encoder of images: the mean of every one."""

    feature_shape, map_shapes, latent_dim = (1,), (), 1

    def features(self, observation: torch.Tensor) -> torch.Tensor:
        return observation.flatten(1).float().mean(1, keepdim=True)

    def latent(self, features: torch.Tensor) -> torch.Tensor:
        return -features


@pytest.mark.parametrize("augment", [Shift(pad=2), Crop(pad=2)])
def test_augmentations_move_the_image_and_leave_the_numbers(augment: Shift | Crop) -> None:
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (6, 2, 12, 10, 3)).astype(np.uint8)
    vector = rng.normal(size=(6, 2, NUMBERS)).astype(np.float32)
    packed = packing.pack(image, vector)
    view = np.asarray(ImageOnly(augment, NUMBERS).train_view(packed, np.random.default_rng(5)))
    moved, kept = packing.unpack(view, NUMBERS)
    np.testing.assert_array_equal(moved, augment.train_view(image, np.random.default_rng(5)))
    np.testing.assert_array_equal(kept, vector)
    acting, kept = packing.unpack(ImageOnly(augment, NUMBERS).act_view(packed), NUMBERS)
    np.testing.assert_array_equal(acting, augment.act_view(image))
    np.testing.assert_array_equal(kept, vector)
    # The same from the frames of a replay.
    slots = np.arange(12).reshape(6, 2)
    stacks = Stacks(packed.reshape(12, *packed.shape[2:]), slots)
    again = ImageOnly(augment, NUMBERS).train_view(stacks, np.random.default_rng(5))
    np.testing.assert_array_equal(again, view)


def test_numbers_are_normalized_by_running_statistics() -> None:
    rng = np.random.default_rng(2)
    batches = [rng.normal([5, -2, 7], [3, 0.1, 0], (n, 2, NUMBERS)) for n in (4, 1, 16)]
    encoder = WithVector(_Flat(), (4, 6, 3), 2, NUMBERS)
    image = np.zeros((1, 2, 4, 6, 3), np.uint8)

    def observed(vector: np.ndarray) -> torch.Tensor:
        images = np.repeat(image, len(vector), axis=0)
        return torch.from_numpy(packing.pack(images, vector.astype(np.float32)))

    first = torch.from_numpy(batches[0].astype(np.float32))
    torch.testing.assert_close(encoder.normalized(first), first.clamp(-10, 10))  # nothing seen yet
    for batch in batches:
        encoder.adapt(observed(batch))
    every = np.concatenate(batches).reshape(-1, NUMBERS)
    expected = (every - every.mean(0)) / np.maximum(every.std(0), 1e-6)
    vector = torch.from_numpy(every.astype(np.float32))
    torch.testing.assert_close(
        encoder.normalized(vector)[:, :2], torch.from_numpy(expected.astype(np.float32))[:, :2]
    )
    assert encoder.normalized(vector)[:, 2].abs().max() < 1  # a constant stays near 0
    latent = encoder(observed(batches[0]))
    assert latent.shape == (4, 1 + 2 * NUMBERS)
    torch.testing.assert_close(latent[:, 1:], encoder.normalized(first).flatten(1))


def test_maps_have_no_numbers_beside_them() -> None:
    experiment = tiny("ksl-conv")
    with pytest.raises(KstepError, match=r"--set env\.vector=none"):
        Agent(experiment.method, with_numbers(spec_for(experiment)), Streams(3))


@pytest.mark.parametrize(
    "method",
    [name for name in METHODS if METHODS[name].observation == "pixels" and name != "ksl-conv"],
)
def test_every_method_learns_from_an_image_and_numbers(method: str) -> None:
    experiment = tiny(method)
    spec = with_numbers(spec_for(experiment))
    stack = experiment.method.stack
    agent = Agent(experiment.method, spec, Streams(3))
    replay = filled_replay(spec, stack)
    # Bytes at random would be anything as numbers.
    frames = expect(np.ndarray, replay._frames)
    image, _ = packing.unpack(frames, NUMBERS)
    vector = np.random.default_rng(3).normal(4, 2, (len(image), NUMBERS)).astype(np.float32)
    frames[:] = packing.pack(image, vector)
    if experiment.method.auxiliary is not None:
        agent.pretrain(replay)
    for _ in range(2):
        found = agent.update(replay, every_part=True).metrics
        assert all(torch.isfinite(value) for value in found.values())
    encoder, slow = (expect(WithVector, e) for e in (agent.encoder, agent.slow_encoder))
    assert encoder.count > 0
    assert (encoder.mean - 4).abs().max() < 2
    assert torch.equal(encoder.mean, slow.mean)
    # It acts on both, and a saved agent acts the same.
    stacks = np.stack([replay.newest_stack()] * 3)
    stacks[1, :, : spec.image_shape[0]] //= 2
    images, numbers = packing.unpack(stacks, NUMBERS)
    numbers[2] += 1
    stacks = packing.pack(images, numbers)
    actions = agent.act(stacks, explore=False)
    with torch.no_grad():  # different latents may have the same best choice
        latents = encoder(torch.from_numpy(agent.batches.augment.act_view(stacks))).numpy()
    looked = latents if spec.actions == "discrete" else actions
    assert (looked[0] != looked[1]).any()
    assert (looked[0] != looked[2]).any()
    other = Agent(experiment.method, spec, Streams(4))
    other.load_state(agent.state(), updates=2, phase=0)
    np.testing.assert_array_equal(other.act(stacks, explore=False), actions)


def robot(method: str, env_steps: int = 60) -> Experiment:
    small = ["method.learning.initial_decisions=30", "method.learning.batch_size=4"]
    small += ["evaluation.every=50"]
    return resolve(
        method, "gym:Seen/robot-v0", preset="debug", env_steps=env_steps, overrides=small
    )


def test_a_run_on_a_dictionary_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(IMPORTABLE))
    import kstep_seen  # type: ignore[import-not-found]  # noqa: F401

    through = go(tmp_path / "through", robot("ksl"), overlap="here")
    with monkeypatch.context() as patch:
        stop_after(patch, 43)
        with pytest.raises(BaseException, match="stopped at"):
            go(tmp_path / "stopped", robot("ksl"), overlap="here")
    resumed = go(tmp_path / "stopped", robot("ksl"), overlap="here")
    assert_same(through, Run.open(resumed.folder))
