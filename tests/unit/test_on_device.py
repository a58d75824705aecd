"""Frames on the learning device: the bytes of NumPy's views, written and read like an array."""

from __future__ import annotations

from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kstep import native, packing
from kstep.data.augment import Augment, NoAugment, Shift, cut
from kstep.data.beside import ImageOnly
from kstep.data.blocks import Padding
from kstep.data.crop import Crop
from kstep.data.on_device import DeviceFrames
from kstep.data.replay import Replay, Stacks
from kstep.data.ring import ReplayConfig
from kstep.types import Array, EnvSpec, KstepError
from tests.make import expect

NUMBERS = 4
EVERY: list[Augment] = [
    NoAugment(),
    *(Shift(pad, padding) for pad in (0, 3, 14) for padding in get_args(Padding)),
    Crop(2),
    Crop(3, last_offset=False),
    Crop(0),
]


def ring_of(*shape: int) -> Array:
    return np.random.default_rng(0).integers(1, 256, shape, dtype=np.uint8)


def both(ring: Array, slots: Array) -> tuple[Stacks, Stacks]:
    """The same stacks on the host and on the device."""
    return Stacks(ring, slots), Stacks(DeviceFrames(torch.from_numpy(ring.copy())), slots)


def test_every_kind_of_augmentation_is_tried() -> None:
    assert {type(augment) for augment in EVERY} == set(Augment.kinds.values())


@pytest.mark.parametrize("by", ["native", "NumPy"])
@pytest.mark.parametrize("lead", [(6,), (4, 3)], ids=str)
@pytest.mark.parametrize("augment", EVERY, ids=str)
def test_every_view_has_the_same_bytes(
    augment: Augment, lead: tuple[int, ...], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "NumPy":
        monkeypatch.setattr(native, "library_is_there", lambda: False)
    ring = ring_of(9, 12, 11, 3)
    host, device = both(ring, np.random.default_rng(1).integers(0, 9, (*lead, 2)))
    rngs = np.random.default_rng(2), np.random.default_rng(2)
    expected = augment.train_view(host, rngs[0])
    found = expect(torch.Tensor, augment.train_view(device, rngs[1]))
    assert found.dtype == torch.uint8
    assert np.array_equal(found.numpy(), expected)
    assert rngs[0].bit_generator.state == rngs[1].bit_generator.state
    if by == "native" and getattr(augment, "padding", "") != "mirror":
        assert found.stride() == torch.as_tensor(expected).stride()  # and lies in memory likewise


@pytest.mark.parametrize("augment", EVERY, ids=str)
def test_numbers_beside_the_image_stay_as_they_are(augment: Augment) -> None:
    image = ring_of(9, 12, 11, 3)
    vector = np.random.default_rng(3).normal(size=(9, NUMBERS)).astype(np.float32)
    host, device = both(packing.pack(image, vector), np.arange(8).reshape(2, 2, 2))
    beside = ImageOnly(augment, NUMBERS)
    expected = beside.train_view(host, np.random.default_rng(4))
    found = expect(torch.Tensor, beside.train_view(device, np.random.default_rng(4)))
    assert np.array_equal(found.numpy(), expected)


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    pad=st.integers(0, 12),
    padding=st.sampled_from(get_args(Padding)),
    smaller=st.tuples(st.integers(0, 8), st.integers(0, 8)),
    seed=st.integers(0, 1000),
)
def test_any_cut_has_the_same_bytes(
    size: tuple[int, int], pad: int, padding: Padding, smaller: tuple[int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    height, width = (max(1, side - less) for side, less in zip(size, smaller, strict=True))
    last = [side + 2 * pad - cut for side, cut in zip(size, (height, width), strict=True)]
    host, device = both(ring_of(5, *size, 3), rng.integers(0, 5, (4, 2)))
    offsets = rng.integers(0, last, (4, 2), endpoint=True)
    expected = cut(host, offsets, height, width, pad=pad, padding=padding)
    found = expect(torch.Tensor, cut(device, offsets, height, width, pad=pad, padding=padding))
    assert np.array_equal(found.numpy(), expected)


def test_offsets_outside_of_the_frames_are_refused() -> None:
    _, device = both(ring_of(3, 6, 6, 3), np.zeros((2, 1), np.int64))
    for offsets in ([[0, 0], [0, 3]], [[-1, 0], [0, 0]]):
        with pytest.raises(ValueError, match=r"0\.\.2 \(top\) and 0\.\.2 \(left\)"):
            cut(device, np.array(offsets), 4, 4)
    with pytest.raises(ValueError, match="one per stack"):
        cut(device, np.zeros((3, 2), np.int64), 4, 4)


def spec(kind: str) -> EnvSpec:
    return (
        EnvSpec("pixels", (4, 5, 3), 2, 1, 6)
        if kind == "pixels"
        else EnvSpec("state", (5,), 2, 1, 6)
    )


def lived(replay: Replay, episodes: int) -> Replay:
    """With some episodes more, of frames as environments may hand them out."""
    rng = np.random.default_rng(replay.total)
    shape, pixels = replay.spec.frame_shape, replay.spec.observation == "pixels"

    def frame() -> Array:
        drawn = rng.integers(0, 256, shape).astype(np.uint8) if pixels else rng.normal(size=shape)
        backwards = drawn.astype(replay.spec.frame_dtype)[::-1]
        backwards.flags.writeable = False
        return backwards

    for _ in range(episodes):
        replay.begin(frame())
        for t in range(6):
            action = rng.uniform(-1, 1, 2).astype(np.float32)
            replay.add(action, float(rng.normal()), t == 5, False, frame())
    return replay


@pytest.mark.parametrize("kind", ["pixels", "state"])
def test_a_replay_on_the_device_remembers_forgets_and_saves_as_in_memory(kind: str) -> None:
    stack = 3 if kind == "pixels" else 1
    replays = [
        lived(Replay(ReplayConfig(20, storage), spec(kind), stack), 5)
        for storage in ("memory", "device")
    ]
    memory, device = replays
    saved = memory.export(0), device.export(0)
    assert saved[0].keys() == saved[1].keys()
    for name, array in saved[0].items():
        assert saved[1][name].dtype == array.dtype
        assert np.array_equal(saved[1][name], array), name
    assert memory.counters() == device.counters()
    newest = device.newest_stack()
    assert type(newest) is np.ndarray
    assert np.array_equal(newest, memory.newest_stack())
    drawn = [replay.sequences(16, 2, np.random.default_rng(5)) for replay in replays]
    assert np.array_equal(
        expect(Tensor, drawn[1].observation.together()), drawn[0].observation.together()
    )
    # Either continues from what the other saved, in parts.
    for storage in ("memory", "device"):
        other = Replay(ReplayConfig(20, storage), spec(kind), stack)
        middle = memory.oldest_frame + 9
        first = {name: array[:9] if name != "start" else array for name, array in saved[1].items()}
        other.restore([first, device.export(middle)], device.counters())
        whole = other.export(0)
        assert all(np.array_equal(whole[name], array) for name, array in saved[0].items())
        again = lived(other, 2).export(0)
        expected = lived(Replay(ReplayConfig(20), spec(kind), stack), 5)
        assert np.array_equal(again["frames"], lived(expected, 2).export(0)["frames"])


def test_what_does_not_fit_on_the_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = EnvSpec("pixels", (84, 84, 3), 6, 8, 125)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (10**9, 4 * 10**9))
    with pytest.raises(
        KstepError, match=r"2\.14 GB.*1\.00 GB of memory of cuda:1.*--replay memory"
    ):
        Replay.refuse_too_large(ReplayConfig(storage="device", device="cuda:1"), frames)
    memory = SimpleNamespace(available=10**9)
    monkeypatch.setattr("kstep.data.ring.psutil.virtual_memory", lambda: memory)
    with pytest.raises(KstepError, match=r"1\.00 GB of memory are available"):
        Replay(ReplayConfig(storage="device"), frames)


def test_the_log_says_where_it_is() -> None:
    replay = Replay(ReplayConfig(20, "device"), spec("pixels"))
    assert replay.describe().startswith("replay: 20 decisions, ")
    assert replay.describe().endswith(" on cpu")
