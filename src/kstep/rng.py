"""Named random streams, all derived from one seed and saved with a run.

Every source of chance has its own stream, so that evaluating more often, acting differently or
augmenting more does not change what any other stream yields. Nothing uses a global generator.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Annotated, Literal

import annotated_types as at
import numpy as np
import torch

from kstep.errors import KstepError
from kstep.values import decode, encode


def derive(seed: int, name: str, index: int = 0) -> int:
    """Return a 63-bit seed for the index-th thing called `name`."""
    sequence = np.random.SeedSequence([seed, zlib.crc32(name.encode()), index])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def episode_seed(seed: int, name: str, index: int) -> int:
    """Return the seed that starts an episode; 31 bits, because simulators take no more.

    A function of its arguments alone: an episode can be replayed without its predecessors.
    """
    return derive(seed, name, index) & 0x7FFF_FFFF


def generator(seed: int, device: torch.device | str) -> torch.Generator:
    """Return a generator on `device`; on the host for `meta`, where nothing has values."""
    meta = torch.device(device).type == "meta"
    return torch.Generator("cpu" if meta else device).manual_seed(seed)


_Bits128 = Annotated[int, at.Ge(0), at.Lt(2**128)]


@dataclass(frozen=True)
class _Pcg64:
    state: _Bits128
    inc: _Bits128


@dataclass(frozen=True)
class BitGenerator:
    """The position of one of NumPy's generators, as NumPy describes it."""

    bit_generator: Literal["PCG64"]
    state: _Pcg64
    has_uint32: Annotated[int, at.Ge(0), at.Le(1)]
    uinteger: Annotated[int, at.Ge(0), at.Lt(2**32)]


@dataclass(frozen=True)
class StreamPositions:
    """The position of every stream of a run, as plain values."""

    replay: BitGenerator
    augment: BitGenerator
    act: str
    """PyTorch's generators: bytes as hexadecimal."""
    learn: str


class Streams:
    """The random streams of one run.

    replay: which samples. augment: offsets. act: exploration. learn: actions sampled inside losses.
    `init` is a seed, used once, for the weights.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.seed = seed
        self.init = derive(seed, "init")
        self.replay = np.random.Generator(np.random.PCG64(derive(seed, "replay")))
        self.augment = np.random.Generator(np.random.PCG64(derive(seed, "augment")))
        self.act = generator(derive(seed, "act"), device)
        self.learn = generator(derive(seed, "learn"), device)

    def state(self) -> StreamPositions:
        """Return the position of every stream."""
        return StreamPositions(
            replay=decode(BitGenerator, self.replay.bit_generator.state),
            augment=decode(BitGenerator, self.augment.bit_generator.state),
            act=self.act.get_state().numpy().tobytes().hex(),
            learn=self.learn.get_state().numpy().tobytes().hex(),
        )

    def load_state(self, state: StreamPositions) -> None:
        """Continue every stream from a saved position."""
        self.replay.bit_generator.state = encode(state.replay)
        self.augment.bit_generator.state = encode(state.augment)
        for name in ("act", "learn"):
            try:
                raw = np.frombuffer(bytes.fromhex(getattr(state, name)), dtype=np.uint8).copy()
                getattr(self, name).set_state(torch.from_numpy(raw))
            except (ValueError, RuntimeError) as error:
                raise KstepError(
                    f"the saved random stream '{name}' cannot be continued here: {error}"
                ) from error
