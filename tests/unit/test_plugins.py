"""Methods, tasks and encoders that are not ours: registered in a process, found in packages."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import kstep
from kstep import KstepError, methods, names, plugins
from kstep.agent import Agent
from kstep.auxiliary.base import AuxiliaryConfig, AuxiliaryTask, Shapes
from kstep.auxiliary.curl import CURL
from kstep.config import digest, resolve
from kstep.methods import METHODS
from kstep.methods.ksl import KSL
from kstep.nets.base import EncoderConfig
from kstep.nets.trunks import ImpalaConfig, TrunkEncoder
from kstep.rng import Streams
from kstep.values import decode, encode
from tests.make import expect, filled_replay, moved, snapshot, spec_for, tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    """What a test registers is gone after it."""
    registries: list[dict[str, Any]] = [METHODS, AuxiliaryConfig.kinds, EncoderConfig.kinds]
    before = [dict(registry) for registry in registries]
    yield
    for registry, kept in zip(registries, before, strict=True):
        registry.clear()
        registry.update(kept)


def make_small(channels: int, height: int, width: int) -> nn.Module:
    """One convolution."""
    return nn.Sequential(nn.Conv2d(channels, 4, 5, stride=4), nn.ReLU(), nn.Flatten())


# Encoders.


def agent_with(encoder: str, method: str = "ksl") -> Agent:
    experiment = tiny(method, f"method.encoder.kind={encoder}")
    return Agent(experiment.method, spec_for(experiment), Streams(3))


def test_any_module_from_images_to_vectors_is_an_encoder() -> None:
    kstep.register_encoder("small", make_small)
    agent = agent_with("small")
    encoder = expect(TrunkEncoder, agent.encoder)
    assert encoder.feature_shape == (4 * 11 * 11,)
    images = torch.randint(256, (2, 3, 48, 48, 3), dtype=torch.uint8)
    stacked = torch.cat(images.unbind(1), -1).permute(0, 3, 1, 2) / 255
    assert torch.equal(encoder.features(images), encoder.trunk(stacked))
    assert encoder(images).shape == (2, 16)
    assert encoder(images).abs().max() <= 1  # tanh
    replay = filled_replay(agent.spec, 3)
    before = snapshot(agent.state())
    agent.update(replay)
    changed = moved(before, agent.state())
    assert {"encoder/trunk.0.weight", "encoder/head.0.weight"} <= changed


@pytest.mark.parametrize("method", ["ksl", "ksl-results", "drq", "curl", "pi_sac", "proto_rl"])
def test_the_residual_network_works_in_methods_that_share_it_in_all_ways(method: str) -> None:
    agent = agent_with("impala", method)
    assert agent.encoder.feature_shape == (12, 12, 8)
    replay = filled_replay(agent.spec, agent.method.stack)
    before = snapshot(agent.state())
    for _ in range(2):
        agent.update(replay)
    changed = moved(before, agent.state())
    assert any(name.startswith("encoder/trunk.2.first") for name in changed)


def test_the_residual_network_is_that_of_the_paper() -> None:
    """Figure 3 (right) of arXiv:1802.01561: fifteen convolutions in three sections."""
    trunk = ImpalaConfig().trunk(9, 84, 84)
    convolutions = [part for part in trunk.modules() if isinstance(part, nn.Conv2d)]
    assert [part.out_channels for part in convolutions] == [16] * 5 + [32] * 10
    assert trunk(torch.zeros(1, 9, 84, 84)).shape == (1, 32, 11, 11)
    block = trunk[2]  # type: ignore[index]
    x = torch.randn(1, 16, 5, 5)
    inner = block.second(torch.relu(block.first(torch.relu(x))))
    assert torch.equal(block(x), x + inner)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda c, h, w: nn.Conv2d(3, 1, 1), r"raised RuntimeError for images \(9, 48, 48\): .*"),
        (lambda c, h, w: nn.Linear(1 // 0, 1), r"'odd' raised ZeroDivisionError for images"),
        (lambda c, h, w: nn.Flatten(0), r"made \(\d+,\) of images \(1, 9, 48, 48\)"),
        (lambda c, h, w: nn.Sequential(nn.BatchNorm2d(c), nn.Flatten()), "batch normalization"),
        (lambda c, h, w: nn.Sequential(nn.Dropout(), nn.Flatten()), "dropout"),
    ],
)
def test_modules_that_cannot_be_encoders_are_refused(make: Any, message: str) -> None:
    kstep.register_encoder("odd", make)
    with pytest.raises(KstepError, match=message):
        agent_with("odd")


def test_presets_make_another_encoder_small_too() -> None:
    other = ["method.encoder.kind=impala"]
    assert resolve("ksl", "toy", overrides=other).method.encoder == ImpalaConfig()
    small = resolve("ksl", "toy", preset="cpu", overrides=other).method.encoder
    assert small == ImpalaConfig(channels=(8, 16, 16))
    wide = resolve(
        "ksl", "toy", preset="cpu", overrides=["method.encoder.channels=[4]", *other]
    ).method.encoder
    assert wide == ImpalaConfig(channels=(4,))


def test_the_compact_encoder_has_a_name_and_is_what_the_preset_has() -> None:
    named = resolve("ksl", "toy", overrides=["method.encoder.kind=compact"])
    preset = resolve("ksl", "toy", preset="cpu")
    assert digest(replace(named, preset="cpu")) == digest(preset)
    assert encode(named.method.encoder)["kind"] == "convolutional"


def test_every_kind_of_encoder_is_listed() -> None:
    assert set(names.encoders()) == {*EncoderConfig.kinds, *EncoderConfig.named}
    kstep.register_encoder("small", make_small)
    assert names.encoders()["small"] == "One convolution. (tests.unit.test_plugins)"


# Auxiliary tasks.


def test_an_auxiliary_task_is_checked_when_it_is_registered() -> None:
    @dataclass(frozen=True)
    class Fine(AuxiliaryConfig):
        kind: ClassVar[str] = "fine"

        def build(self, shapes: Shapes) -> AuxiliaryTask:
            return CURL(shapes.latent_dim)

        def shrunk(self) -> AuxiliaryConfig:
            return self

    assert kstep.register_auxiliary(Fine) is Fine
    assert decode(AuxiliaryConfig, {"kind": "fine", "every": 2}) == Fine(every=2)

    class NotFrozen(Fine):
        kind: ClassVar[str] = "not frozen"

    @dataclass(frozen=True)
    class Unfinished(AuxiliaryConfig):
        kind: ClassVar[str] = "unfinished"

    @dataclass(frozen=True)
    class Unnamed(Fine):
        width: int = 3

    wrong: list[tuple[Any, str]] = [
        (NotFrozen, "must be a frozen dataclass"),
        (Unfinished, r"Unfinished\(\) cannot be made: .* '?build"),
        (Unnamed, "needs a `kind`, a name of its own"),
        (ImpalaConfig, "a subclass of AuxiliaryConfig is needed"),
        (Fine(), "a subclass of AuxiliaryConfig is needed"),
    ]
    for config, message in wrong:
        with pytest.raises(KstepError, match=message):
            kstep.register_auxiliary(config)


# Methods.


def test_a_method_is_registered_once_and_known_by_its_name() -> None:
    mine = replace(KSL, base="mine", summary="Mine")
    assert kstep.register_method(mine) is mine
    kstep.register_method(mine)
    assert methods.find("mine") is mine
    assert names.methods()["mine"] == "Mine (registered in this process)"
    for method, message in [
        (replace(mine, stack=2), "there is another method called 'mine'"),
        (replace(KSL, stack=2), "there is another method called 'ksl'"),
        (replace(mine, base="my/own"), "'my/own' cannot be a method's name"),
        (replace(mine, base="low", stack=0), "stack must be at least 1, not 0"),
        ("mine", "register_method takes a Method, not 'mine'"),
    ]:
        with pytest.raises(KstepError, match=message):
            kstep.register_method(method)  # type: ignore[arg-type]


# Packages.


@dataclass
class Package:
    """Where a package is installed, and what happens there."""

    folder: Path

    def install(self, name: str, points: dict[str, str], **modules: str) -> None:
        """Do what an installer leaves behind: modules, and metadata with entry points."""
        about = self.folder / f"{name.replace('-', '_')}-1.5.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        lines = "".join(f"{key} = {value}\n" for key, value in points.items())
        (about / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{lines}")
        for module, text in modules.items():
            (self.folder / f"{module}.py").write_text(text)

    def run(self, code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(self.folder)},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path)


METHOD = """
from dataclasses import replace
from kstep.methods.ksl import KSL
THEIRS = replace(KSL, base="theirs", summary="Their own")
"""

LISTED = """
import sys
from kstep import cli
cli.main(["list", "methods"])
print(sorted(name for name in ("torch", "theirs") if name in sys.modules))
"""


def test_a_package_that_names_its_method_is_listed_without_importing_it(package: Package) -> None:
    package.install("their-package", {"theirs": "theirs:THEIRS"}, theirs=METHOD)
    *_, line, imported = package.run(LISTED).splitlines()
    assert line.split(maxsplit=1) == ["theirs", "from their-package 1.5"]
    assert imported == "[]"


def test_a_package_may_register_when_it_is_imported(package: Package) -> None:
    more = METHOD + "import kstep\nkstep.register_method(THEIRS)\n"
    package.install("their-package", {"anything": "theirs"}, theirs=more)
    *_, line, imported = package.run(LISTED).splitlines()
    assert line == f"{'theirs':20} Their own (registered in this process)"
    assert imported == "['theirs', 'torch']"


def test_methods_and_kinds_of_packages_are_found(package: Package) -> None:
    encoder = """
import kstep
from torch import nn
kstep.register_encoder("flat", lambda channels, height, width: nn.Flatten())
"""
    package.install(
        "their-package", {"theirs": "theirs:THEIRS", "more": "m"}, theirs=METHOD, m=encoder
    )
    code = """
from kstep.config import resolve
from kstep import plugins
found = resolve("theirs", "toy", overrides=["method.encoder.kind=flat"])
print(found.method.name, found.method.encoder.kind, plugins.versions(found.method))
"""
    assert package.run(code).split(maxsplit=2) == ["theirs", "flat", "{'their-package': '1.5'}\n"]


def test_a_run_folder_decides_nothing_about_what_is_imported(package: Package) -> None:
    """A kind that nobody has is looked for in what is installed, and nowhere else."""
    package.install("their-package", {"theirs": "theirs:THEIRS"}, theirs=METHOD, evil="print('!')")
    code = """
import sys
from kstep.errors import KstepError
from kstep.nets.base import EncoderConfig
from kstep.values import decode
try:
    decode(EncoderConfig, {"kind": "evil"}, "encoder")
except KstepError as error:
    print(error)
print("theirs" in sys.modules, "evil" in sys.modules)
"""
    refused, imported = package.run(code).splitlines()
    assert refused.startswith("encoder.kind must be one of")
    assert imported == "True False"


@pytest.mark.parametrize(
    ("points", "text", "message"),
    [
        (
            {"theirs": "theirs:THEIRS"},
            "import nothing_of_that_name",
            "the plug-in theirs = theirs:THEIRS of their-package 1.5 cannot be imported: "
            "ModuleNotFoundError at ",
        ),
        ({"theirs": "theirs:OTHER"}, METHOD, "cannot be imported: AttributeError at "),
        ({"theirs": "theirs:KSL"}, METHOD, "cannot be used: it is the method 'ksl'"),
        ({"theirs": "theirs:replace"}, METHOD, "cannot be used: it is <function replace"),
        (
            {"ksl-fast": "theirs:FAST"},
            METHOD + 'FAST = replace(KSL, base="ksl-fast", stack=0)',
            "the method 'ksl-fast' of their-package 1.5 cannot be used: stack must be at least 1",
        ),
    ],
)
def test_a_broken_package_is_named_and_hurts_nobody_else(
    points: dict[str, str], text: str, message: str, package: Package
) -> None:
    package.install("their-package", points, theirs=text)
    (name,) = points
    code = f"""
from kstep import cli
from kstep.config import resolve
resolve("ksl", "toy")
try:
    cli.main(["show", "{name}"])
except SystemExit as stopped:
    print(stopped.code)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(package.folder)},
        check=False,
    )
    assert done.stdout.strip() == "2"
    assert message in done.stderr
    assert "Traceback" not in done.stderr
