"""Where a comparison reaches into a running agent: its sources of chance and its precision.

Nothing here knows the package. Indices and offsets come from a generator that answers from a list;
what PyTorch draws is answered where PyTorch is asked, whoever asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

Integers = npt.NDArray[np.int64]


class Script:
    """Stands in for `numpy.random.Generator`: integers from a list, in order.

    A list that does not fit what is asked, in shape or range, is an error, and so is what is left.
    """

    def __init__(self) -> None:
        self._answers: deque[Integers] = deque()

    def prescribe(self, *answers: npt.ArrayLike) -> None:
        self._answers.extend(np.asarray(answer, np.int64) for answer in answers)

    def integers(
        self,
        low: npt.ArrayLike,
        high: npt.ArrayLike | None = None,
        size: int | tuple[int, ...] | None = None,
        *,
        endpoint: bool = False,
    ) -> Integers:
        smallest = np.asarray(0 if high is None else low)
        largest = np.asarray(low if high is None else high) - (not endpoint)
        shape = largest.shape if size is None else tuple(np.atleast_1d(size))
        assert self._answers, f"nothing is prescribed for integers up to {largest}"
        answer = self._answers.popleft()
        assert answer.shape == shape, f"{answer.shape} is prescribed, {shape} is asked for"
        assert (answer >= smallest).all(), f"{answer} is below {smallest}"
        assert (answer <= largest).all(), f"{answer} is above {largest}"
        return answer.copy()

    def finish(self) -> None:
        assert not self._answers, f"nobody asked for {len(self._answers)} prescribed answers"


class Noise(TorchFunctionMode):
    """Within it, PyTorch's draws from a generator of its own are taken from lists."""

    def __init__(self) -> None:
        super().__init__()
        self.normal: deque[Tensor] = deque()
        self.uniform: deque[Tensor] = deque()
        self.choices: deque[Tensor] = deque()
        self.probabilities: list[Tensor] = []
        """Of what was chosen, for every choice."""
        self._times: Tensor | None = None

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("generator") is not None:
            if func is torch.randn:
                return self._next(self.normal, args[0])
            if func is torch.rand:
                return self._next(self.uniform, args[0])
            if func is torch.Tensor.exponential_:
                # Waiting times, of which the shortest, weighted, is the choice: that of no other.
                self._times = torch.full_like(args[0], torch.inf)
                chosen = self._next(self.choices, (len(args[0]), 1))
                return self._times.scatter_(1, chosen, 1.0)
            raise AssertionError(f"{func} draws, and nothing is prescribed for it")
        if self._times is not None and len(args) == 2 and args[1] is self._times:
            self.probabilities.append(args[0].clone())
        return func(*args, **kwargs)

    @staticmethod
    def _next(answers: deque[Tensor], shape: Sequence[int]) -> Tensor:
        assert answers, f"nothing is prescribed for a draw of {tuple(shape)}"
        answer = answers.popleft()
        assert answer.shape == tuple(shape), f"{answer.shape} is prescribed, {shape} is asked for"
        return answer.clone()

    def finish(self) -> None:
        left = len(self.normal) + len(self.uniform) + len(self.choices)
        assert not left, f"nobody asked for {left} prescribed draws"


@contextmanager
def double_precision() -> Iterator[None]:
    """Within it, networks are made in double precision, and compute in it whatever they are given.

    Numbers in single precision, as a replay holds them, are promoted where they meet weights.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def returned(owner: object, name: str) -> Iterator[list[Tensor]]:
    """Collect what the method `name` of one object returns meanwhile."""
    method, results = getattr(owner, name), []

    def listening(*args: Any, **kwargs: Any) -> Tensor:
        result: Tensor = method(*args, **kwargs)
        results.append(result.clone())
        return result

    setattr(owner, name, listening)
    try:
        yield results
    finally:
        delattr(owner, name)
