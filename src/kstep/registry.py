"""Methods, auxiliary tasks and encoders of your own, registered like ours.

What is registered in a process is known there. In a package, `kstep.plugins` (plugins.py) makes it
known everywhere: to the command line, and to every process of a sweep.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from kstep import methods
from kstep.auxiliary.base import AuxiliaryConfig
from kstep.errors import KstepError
from kstep.methods.base import Method
from kstep.nets.base import EncoderConfig
from kstep.nets.trunks import TrunkConfig
from kstep.values import decode, encode


def register_method(method: Method) -> Method:
    """Register a method under its name; returns it."""
    if not isinstance(method, Method):
        raise KstepError(f"register_method takes a Method, not {method!r}")
    methods.register(method)
    return method


def register_auxiliary(config: type[AuxiliaryConfig]) -> type[AuxiliaryConfig]:
    """Register the settings of an auxiliary task, a frozen dataclass with a `kind`; returns it."""
    checked: type[AuxiliaryConfig] = _checked(config, AuxiliaryConfig)
    return checked


def register_encoder(
    config: type[EncoderConfig] | str,
    make: Callable[[int, int, int], nn.Module] | None = None,
) -> type[EncoderConfig]:
    """Register an encoder; returns its settings.

    `register_encoder(name, make)`: `make(channels, height, width)` returns any module from images
    (B, channels, height, width) in [0, 1] to vectors (B, F), of which a linear layer, LayerNorm and
    tanh make the latent. `register_encoder(config)`: settings of your own, a frozen dataclass with
    a `kind`.
    """
    checked: type[EncoderConfig]
    if make is None:
        checked = _checked(config, EncoderConfig)
        return checked
    if not isinstance(config, str) or not callable(make):
        raise KstepError(
            f"register_encoder takes a name and a function, not {config!r} and {make!r}"
        )

    def trunk(self: TrunkConfig, channels: int, height: int, width: int) -> nn.Module:
        return make(channels, height, width)

    if re.fullmatch(r"[A-Za-z][\w.-]*", config) is None:
        raise KstepError(f"'{config}' cannot be an encoder's name: it must be one word")
    label, home = re.sub(r"\W", "_", config), getattr(make, "__module__", __name__)
    about = {
        "kind": config,
        "trunk": trunk,
        "__doc__": make.__doc__ or "An encoder.",
        "__module__": home,
    }
    checked = _checked(dataclass(frozen=True)(type(label, (TrunkConfig,), about)), EncoderConfig)
    return checked


def _checked(config: Any, family: Any) -> Any:
    """Return a class of settings that can be set, stored and read back; refuse any other."""
    if not (isinstance(config, type) and issubclass(config, family)):
        raise KstepError(f"a subclass of {family.__name__} is needed, not {config!r}")
    name = config.__qualname__
    if family.kinds.get(getattr(config, "kind", "")) is not config:
        raise KstepError(f"{name} needs a `kind`, a name of its own")
    if (
        "__dataclass_params__" not in vars(config)
        or not vars(config)["__dataclass_params__"].frozen
    ):
        raise KstepError(f"{name} must be a frozen dataclass: @dataclass(frozen=True) above it")
    try:
        value: Any = config()
    except TypeError as error:  # a field without a default, or an abstract method
        raise KstepError(f"{name}() cannot be made: {error}") from error
    if decode(config, encode(value), name) != value:
        raise KstepError(f"{name} is not what it was after it was stored and read back")
    return config
