"""Augmentations against plain per-image NumPy, and the statistics of their offsets."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kstep.data.augment import Augment, NoAugment, Padding, Shift, cut
from kstep.data.crop import Crop
from kstep.types import Array, KstepError
from kstep.values import decode

PAD_MODES = {"replicate": "edge", "zero": "constant", "mirror": "symmetric"}
ALL: list[Augment] = [
    NoAugment(),
    Shift(2),
    Shift(2, "zero"),
    Shift(2, "mirror"),
    Crop(2),
]
MOVING = ALL[1:]


def images(*shape: int, seed: int = 0) -> Array:
    # From 1: black then only comes from padding.
    return np.random.default_rng(seed).integers(1, 256, shape, dtype=np.uint8)


def naive_shift(frame: Array, top: int, left: int, pad: int, padding: str) -> Array:
    padded = np.pad(frame, ((pad, pad), (pad, pad), (0, 0)), mode=PAD_MODES[padding])  # type: ignore[call-overload]
    height, width, _ = frame.shape
    result: Array = padded[top : top + height, left : left + width]
    return result


def shift(observation: Array, offsets: Array, pad: int, padding: Padding) -> Array:
    """What `Shift` does once its offsets are drawn."""
    height, width = observation.shape[-3:-1]
    return np.asarray(cut(observation, offsets, height, width, pad=pad, padding=padding))


@settings(max_examples=60, deadline=None)
@given(
    lead=st.lists(st.integers(1, 5), max_size=2),
    stacked=st.integers(1, 3),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    channels=st.sampled_from([1, 3]),
    pad=st.integers(0, 4),
    padding=st.sampled_from(["replicate", "zero", "mirror"]),
    seed=st.integers(0, 1000),
)
def test_shift_equals_padding_and_cropping_each_image(
    lead: list[int],
    stacked: int,
    height: int,
    width: int,
    channels: int,
    pad: int,
    padding: Padding,
    seed: int,
) -> None:
    observation = images(*lead, stacked, height, width, channels)
    before = observation.copy()
    offsets = np.random.default_rng(seed).integers(0, 2 * pad + 1, (*lead, 2))
    shifted = shift(observation, offsets, pad, padding)
    assert shifted.shape == observation.shape
    assert shifted.dtype == np.uint8
    assert shifted.flags.c_contiguous
    assert np.array_equal(observation, before)
    for index in np.ndindex(*lead):
        top, left = offsets[index]
        for s in range(stacked):
            naive = naive_shift(observation[index][s], top, left, pad, padding)
            assert np.array_equal(shifted[index][s], naive)


@pytest.mark.parametrize("padding", ["replicate", "zero", "mirror"])
def test_shift_at_every_offset(padding: Padding) -> None:
    frame = images(84, 84, 3)
    offsets = np.array([(top, left) for top in range(9) for left in range(9)])
    stacks = np.broadcast_to(frame, (81, 3, 84, 84, 3))
    shifted = shift(stacks, offsets, 4, padding)
    for number, (top, left) in enumerate(offsets):
        naive = naive_shift(frame, top, left, 4, padding)
        assert all(np.array_equal(shifted[number, s], naive) for s in range(3))
    assert np.array_equal(shifted[40], stacks[40])


def test_crop_at_every_offset() -> None:
    stacks = np.broadcast_to(images(2, 10, 12, 3), (12, 2, 10, 12, 3))
    offsets = np.array([(top, left) for top in range(3) for left in range(4)])
    for view, (top, left) in zip(cut(stacks, offsets, 8, 9), offsets, strict=True):
        assert np.array_equal(view, stacks[0][:, top : top + 8, left : left + 9])


def test_constant_image_is_unchanged_under_replication() -> None:
    observation = np.full((64, 3, 20, 20, 3), 77, np.uint8)
    assert np.array_equal(Shift(4).train_view(observation, rng()), observation)


def test_zero_padding_shows_a_black_border_up_to_pad() -> None:
    observation = np.full((500, 2, 20, 20, 3), 77, np.uint8)
    view = np.asarray(Shift(4, "zero").train_view(observation, rng()))
    assert (view[..., 4:-4, 4:-4, :] == 77).all()
    black_rows = (view == 0).all(axis=(1, 3, 4)).sum(axis=1)
    black_columns = (view == 0).all(axis=(1, 2, 4)).sum(axis=1)
    assert set(black_rows.tolist()) == set(black_columns.tolist()) == {0, 1, 2, 3, 4}
    rest = (20 - black_rows) * (20 - black_columns) * 2 * 3
    assert np.array_equal((view == 77).sum(axis=(1, 2, 3, 4)), rest)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def coordinates(size: int) -> Array:
    """One frame whose pixels hold their own row and column, from 1."""
    row, column = np.meshgrid(np.arange(size), np.arange(size), indexing="ij")
    return np.stack([row + 1, column + 1], axis=-1).astype(np.uint8)


def found_offsets(augment: Augment, lead: tuple[int, ...], stacked: int = 2) -> Array:
    """Where each frame of each stack was moved: (*lead, stacked, 2)."""
    observation = np.broadcast_to(coordinates(20), (*lead, stacked, 20, 20, 2))
    view = np.asarray(augment.train_view(observation, rng()))
    middle: Array = view[..., view.shape[-3] // 2, view.shape[-2] // 2, :].astype(int)
    return middle


@pytest.mark.parametrize("augment", MOVING)
def test_one_uniform_independent_offset_per_stack(augment: Augment) -> None:
    offsets = found_offsets(augment, (3000, 2))
    assert (offsets == offsets[:, :, :1]).all()  # shared within a stack
    # Both coordinates of both time steps: four columns, each uniform, pairwise independent.
    columns = offsets[:, :, 0].reshape(3000, 4)
    columns = columns - columns.min(axis=0)
    assert columns.max() == 4
    for column in columns.T:
        assert fits(np.bincount(column, minlength=5), 3000 / 5)
    for a in range(4):
        for b in range(a):
            joint = np.bincount(5 * columns[:, a] + columns[:, b], minlength=25)
            assert fits(joint, 3000 / 25)


def fits(counts: Array, expected: float) -> bool:
    """Chi-square; five standard deviations of the statistic are allowed."""
    free = counts.size - 1
    return float(((counts - expected) ** 2 / expected).sum()) < free + 5 * math.sqrt(2 * free)


@pytest.mark.parametrize("augment", ALL)
def test_generator_decides_and_input_is_unchanged(augment: Augment) -> None:
    observation = images(20, 2, 16, 16, 3)
    before = observation.copy()
    generator = rng(1)
    one, two, again = (
        np.asarray(augment.train_view(observation, g)) for g in (rng(1), generator, generator)
    )
    assert np.array_equal(one, two)
    if not isinstance(augment, NoAugment):
        assert not np.array_equal(two, again)
        assert not np.shares_memory(two, observation)
    acting = augment.act_view(observation)
    assert np.array_equal(acting, augment.act_view(observation))
    assert acting.shape == one.shape
    assert acting.dtype == one.dtype == np.uint8
    assert acting.flags.c_contiguous
    assert one.flags.c_contiguous
    assert np.array_equal(observation, before)
    # A single observation, as when acting, gives the same as within a batch.
    assert np.array_equal(augment.act_view(observation[3]), acting[3])


def test_no_augmentation_accepts_state_vectors() -> None:
    state = np.ones((5, 1, 7), np.float32)
    assert NoAugment().train_view(state, rng()) is state
    assert NoAugment().act_view(state) is state
    for augment in MOVING:
        with pytest.raises(ValueError, match=r"image stacks|cannot cut"):
            augment.train_view(state, rng())


def test_crop_renders_more_and_acts_on_the_centre() -> None:
    augment = Crop()
    assert augment.render_size(84) == 100
    observation = images(6, 3, 100, 100, 3)
    assert augment.train_view(observation, rng()).shape == (6, 3, 84, 84, 3)
    assert np.array_equal(augment.act_view(observation), observation[:, :, 8:92, 8:92])
    # Offsets 0..16 inclusive, all of them.
    found = augment.train_view(np.broadcast_to(coordinates(100), (999, 1, 100, 100, 2)), rng())
    assert set((found[:, 0, 0, 0, 0] - 1).tolist()) == set(range(17))


def test_shift_leaves_rendering_and_acting_alone() -> None:
    observation = images(2, 3, 12, 12, 3)
    assert Shift().render_size(84) == 84
    assert Shift().act_view(observation) is observation


def test_curls_crops_never_lie_at_the_far_edge() -> None:
    stacks = np.broadcast_to(coordinates(20), (999, 1, 20, 20, 2))
    for last_offset, tops in ((True, {0, 1, 2, 3, 4}), (False, {0, 1, 2, 3})):
        view = Crop(2, last_offset).train_view(stacks, rng())
        assert set((view[:, 0, 0, 0, 0] - 1).tolist()) == tops


def test_augmentations_are_read_by_their_kind() -> None:
    assert decode(Augment, {"kind": "none"}) == NoAugment()
    assert decode(Augment, {"kind": "shift"}) == Shift(4, "replicate")
    assert decode(Augment, {"kind": "shift", "pad": 2, "padding": "zero"}) == Shift(2, "zero")
    assert decode(Augment, {"kind": "crop", "pad": 3}).render_size(84) == 90


def test_wrong_values_are_refused_with_what_is_allowed() -> None:
    for data, message in (
        ({"kind": "jitter"}, "kind must be one of none, shift, crop, not 'jitter'"),
        (
            {"kind": "shift", "padding": "circular"},
            "padding must be one of replicate, zero, mirror",
        ),
        ({"kind": "crop", "pad": -1}, "pad must be at least 0, not -1"),
        ({"kind": "crop", "padding": "zero"}, "has no 'padding'"),
    ):
        with pytest.raises(KstepError, match=message):
            decode(Augment, data, "method.augment")
    with pytest.raises(ValueError, match="cannot cut 8 pixels"):
        Crop(8).act_view(images(1, 3, 16, 16, 3))
    with pytest.raises(ValueError, match="one per stack"):
        shift(images(2, 3, 8, 8, 3), np.zeros((3, 2), int), 1, "zero")
    with pytest.raises(ValueError, match=r"0\.\.2"):
        shift(images(1, 3, 8, 8, 3), np.array([[3, 0]]), 1, "zero")
    with pytest.raises(ValueError, match=r"0\.\.2"):
        shift(images(1, 3, 8, 8, 3), np.array([[0, -1]]), 1, "zero")
    with pytest.raises(ValueError, match="larger than the frames by 1"):
        cut(images(1, 3, 8, 8, 3), np.zeros((1, 2), int), 9, 8)
