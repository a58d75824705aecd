"""Named random streams, all derived from one seed and saved with a run.

Every source of chance has its own stream, so that evaluating more often, acting differently or
augmenting more does not change what any other stream yields. Nothing uses a global generator.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch


def derive(seed: int, name: str, index: int = 0) -> int:
    """Return a 63-bit seed for the index-th thing called `name`."""
    sequence = np.random.SeedSequence([seed, zlib.crc32(name.encode()), index])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def episode_seed(seed: int, name: str, index: int) -> int:
    """Return the seed that starts an episode; 31 bits, because simulators take no more.

    A function of its arguments alone: an episode can be replayed without its predecessors.
    """
    return derive(seed, name, index) & 0x7FFF_FFFF


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
        self.act = torch.Generator(device=device).manual_seed(derive(seed, "act"))
        self.learn = torch.Generator(device=device).manual_seed(derive(seed, "learn"))

    def state(self) -> dict[str, Any]:
        """Return the position of every stream as plain JSON-able values."""
        return {
            "replay": self.replay.bit_generator.state,
            "augment": self.augment.bit_generator.state,
            "act": self.act.get_state().numpy().tobytes().hex(),
            "learn": self.learn.get_state().numpy().tobytes().hex(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.replay.bit_generator.state = state["replay"]
        self.augment.bit_generator.state = state["augment"]
        for name in ("act", "learn"):
            raw = np.frombuffer(bytes.fromhex(state[name]), dtype=np.uint8).copy()
            getattr(self, name).set_state(torch.from_numpy(raw))
