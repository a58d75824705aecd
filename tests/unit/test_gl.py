"""Choosing how to render: order, memory, respect for the user, and words when nothing works."""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kstep.envs import _probe, gl
from kstep.envs.gl import GLBackend
from kstep.types import KstepError

SOFTWARE = "llvmpipe (LLVM 15.0.6, 256 bits)"
WHEEL = "/site-packages/libOSMesa.so"


class Machine:
    """A machine on which only given backends draw, and the processes that run there.

    A process is a copy of the module `gl` that has just been imported. What it is given are other
    programs: the answers of the tests that it starts, files of devices, an installed wheel.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.tested: list[str] = []
        """What was tested, as MUJOCO_GL has it, or osmesa-wheel."""
        self.draw("osmesa")
        monkeypatch.setattr(subprocess, "run", self._probe)
        monkeypatch.setattr(_probe, "preload", lambda library: None)
        # Another test may have imported it; these tests are about a process that has not.
        monkeypatch.delitem(sys.modules, "dm_control._render", raising=False)
        monkeypatch.delitem(sys.modules, "OpenGL.platform", raising=False)
        monkeypatch.setenv("DISABLE_RENDER_THREAD_OFFLOADING", "1")  # which choosing sets as well
        for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
            monkeypatch.delenv(variable, raising=False)

    def draw(self, *works: str, device: str = SOFTWARE, gpu: bool = False) -> None:
        """From now on these backends draw, and there is a GPU or none."""
        self._works, self._device, self._gpu = works, device, gpu

    def process(self, **environment: str) -> Any:
        """Start a process whose rendering variables are only those given."""
        for variable in ("MUJOCO_GL", "KSTEP_GL", "PYOPENGL_PLATFORM"):
            self._monkeypatch.setenv(variable, environment.get(variable, ""))
            if variable not in environment:
                self._monkeypatch.delenv(variable)
        spec = importlib.util.find_spec("kstep.envs.gl")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        nodes = ["/dev/dri/card0"] if self._gpu else []
        found = glob.glob
        self._monkeypatch.setattr(
            module, "glob", SimpleNamespace(glob=lambda p: nodes if "/dev/dri" in p else found(p))
        )
        self._monkeypatch.setattr(module, "wheel_library", lambda: Path(WHEEL))
        return module

    def _probe(
        self, command: list[str], *, env: dict[str, str], **_: object
    ) -> subprocess.CompletedProcess[str]:
        name = "osmesa-wheel" if command[-1] == WHEEL else env["MUJOCO_GL"]
        self.tested.append(name)
        if name not in self._works:
            return subprocess.CompletedProcess(command, 1, "", "no such library\n")
        seen = {"library": f"/lib/{name}.so", "device": self._device, "ms_per_frame": 21.0}
        return subprocess.CompletedProcess(command, 0, _probe.PREFIX + json.dumps(seen), "")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return Machine(monkeypatch)


def cache(tmp_path: Path) -> Path:
    """Where results of tests are stored."""
    return tmp_path / "kstep" / "gl.json"


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter whose rendering variables are only those given."""
    kept = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "KSTEP_GL")}
    kept.pop("PYOPENGL_PLATFORM", None)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**kept, **environment}
    )


def test_the_first_that_draws_is_taken_and_remembered(machine: Machine) -> None:
    machine.draw("egl", "osmesa-wheel")
    backend = machine.process().choose()
    assert (backend.name, backend.gl, backend.ms_per_frame) == ("egl", "egl", 21.0)
    assert os.environ["MUJOCO_GL"] == os.environ["KSTEP_GL"] == "egl"
    assert machine.tested == ["osmesa", "egl"]
    # The next process tests nothing.
    assert asdict(machine.process().choose()) == asdict(backend)
    # A child is given the name by its parent and finds it in the same file.
    child = machine.process(KSTEP_GL="egl", MUJOCO_GL="egl")
    assert asdict(child.choose()) == asdict(backend)
    assert machine.tested == ["osmesa", "egl"]
    # What was remembered can be dropped.
    child.forget()
    assert machine.process(KSTEP_GL="egl", MUJOCO_GL="egl").choose().name == "egl"
    assert machine.tested == ["osmesa", "egl", "egl"]


def test_a_changed_machine_is_tested_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.process().choose()
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere/else")
    machine.process().choose()
    assert machine.tested == ["osmesa", "osmesa"]
    machine.draw("osmesa", gpu=True)
    machine.process().choose()
    assert machine.tested == ["osmesa", "osmesa", "egl", "osmesa"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"%s": 3}', '{"%s": {"auto": {"old": 1}}}'])
def test_a_damaged_file_is_ignored_and_replaced(
    machine: Machine, tmp_path: Path, content: str
) -> None:
    machine.process().choose()
    (key,) = json.loads(cache(tmp_path).read_text())
    cache(tmp_path).write_text(content.replace("%s", key))
    backend = machine.process().choose()
    assert backend.name == "osmesa"
    assert machine.tested == ["osmesa", "osmesa"]
    stored = json.loads(cache(tmp_path).read_text())[key]
    assert stored["auto"] == stored["osmesa"] == asdict(backend)


def test_a_folder_that_cannot_be_written_only_costs_time(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    assert machine.process().choose().name == "osmesa"
    assert machine.tested == ["osmesa"]


def test_the_file_keeps_other_machines_but_not_for_ever(machine: Machine, tmp_path: Path) -> None:
    cache(tmp_path).parent.mkdir()
    others: dict[str, Any] = {f"machine{i}": {"auto": {}} for i in range(1000)}
    cache(tmp_path).write_text(json.dumps(others))
    machine.process().choose()
    stored = list(json.loads(cache(tmp_path).read_text()))
    assert 10 < len(stored) < 100
    assert stored[-2] == "machine999"
    assert stored[-1] not in others


def test_a_gpu_goes_first(machine: Machine) -> None:
    machine.draw("osmesa", "egl", device="NVIDIA L4/PCIe/SSE2", gpu=True)
    assert machine.process().choose().name == "egl-gpu"
    assert machine.tested == ["egl"]


def test_a_gpu_that_draws_in_software_is_not_one(machine: Machine) -> None:
    machine.draw("egl", "osmesa", gpu=True)
    assert machine.process().choose().name == "osmesa"


def test_software_behind_a_gpu_node_is_not_tested_twice(machine: Machine) -> None:
    machine.draw("egl", gpu=True)
    assert machine.process().choose().name == "egl"
    assert machine.tested == ["egl", "osmesa"]


def test_forcing_the_gpu_does_not_accept_software(machine: Machine) -> None:
    machine.draw("egl")
    with pytest.raises(KstepError, match=r"egl-gpu(.|\n)*rendered by llvmpipe"):
        machine.process().choose("egl-gpu")


def test_only_what_can_be_here_is_tried(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def tried() -> list[str]:
        machine.draw(gpu=bool(os.environ.get("DISPLAY")))
        machine.tested.clear()
        with pytest.raises(KstepError, match="Tried:"):
            machine.process().choose()
        return machine.tested

    monkeypatch.setattr(sys, "platform", "linux")
    assert tried() == ["osmesa", "egl", "osmesa-wheel"]
    monkeypatch.setenv("DISPLAY", ":0")  # and a GPU
    assert tried() == ["egl", "osmesa", "egl", "osmesa-wheel", "glfw"]
    monkeypatch.setattr(sys, "platform", "darwin")
    assert tried() == ["glfw"]


def test_the_users_choice_is_respected(machine: Machine) -> None:
    machine.draw("egl", "osmesa-wheel")
    backend = machine.process(MUJOCO_GL="osmesa").choose()
    assert (backend.name, backend.note) == ("osmesa-wheel", "MUJOCO_GL")
    assert machine.tested == ["osmesa", "osmesa-wheel"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            "osmesa",
            r"MUJOCO_GL=osmesa is set but does not render.*unset MUJOCO_GL(.|\n)*no such lib",
        ),
        ("off", "switches rendering off.*unset MUJOCO_GL"),
        ("vulkan", "not something dm_control knows.*unset MUJOCO_GL"),
    ],
)
def test_a_users_choice_that_fails_is_not_replaced_in_silence(
    machine: Machine, value: str, message: str
) -> None:
    machine.draw("egl")
    with pytest.raises(KstepError, match=message):
        machine.process(MUJOCO_GL=value).choose()


@pytest.mark.parametrize("root", [True, False])
def test_where_nothing_draws_the_message_has_the_command(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, root: bool
) -> None:
    machine.draw()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/apt-get")
    with pytest.raises(KstepError) as caught:
        machine.process().choose()
    message = str(caught.value)
    apt, pip = message.index("apt-get install libosmesa6"), message.index("pip install")
    assert (apt < pip) is root
    assert "osmesa: no such library" in message


def test_one_process_draws_one_way(machine: Machine) -> None:
    machine.draw("egl", "osmesa")
    process = machine.process()
    process.choose("egl")
    assert process.choose().name == "egl"
    with pytest.raises(KstepError, match="already renders with egl"):
        process.choose("osmesa")
    with pytest.raises(KstepError, match="unknown rendering backend 'opengl'"):
        process.choose("opengl")


def test_describes_itself_in_a_line() -> None:
    backend = GLBackend("osmesa", "osmesa", "", SOFTWARE, 21.4, "found")
    assert gl.describe(backend) == "rendering: OSMesa (software), 21 ms per frame"
    gpu = replace(backend, name="egl-gpu", device="NVIDIA L4", ms_per_frame=1.2)
    assert gl.describe(gpu) == "rendering: EGL on NVIDIA L4, 1 ms per frame"
    for name in ("egl-gpu", "egl", "osmesa-wheel", "glfw"):
        assert gl.describe(replace(backend, name=name)).startswith("rendering: ")


# The real thing, in processes of its own.


def test_importing_is_light_and_toys_never_load_mujoco() -> None:
    done = run(
        "import sys, kstep.envs, kstep.envs.gl\n"
        "from kstep.envs import EnvConfig, make\n"
        "make(EnvConfig('toy_reach'), 0).reset(seed=0)\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('mujoco', 'dm_control', 'OpenGL')])"
    )
    assert done.stdout.strip() == "[]", done.stderr


@pytest.fixture(scope="module")
def check() -> subprocess.CompletedProcess[str]:
    return run("import sys; from kstep.envs import gl; sys.exit(gl.main(['--check']))")


@pytest.fixture
def _rendering(check: subprocess.CompletedProcess[str]) -> None:
    assert check.returncode == 0, check.stderr  # set-up sees to it that something can draw


def test_check_says_in_one_line_and_the_exit_code_whether_frames_draw(
    check: subprocess.CompletedProcess[str],
) -> None:
    stream = check.stderr if check.returncode else check.stdout
    assert stream.startswith("rendering: ")
    assert stream.count("\n") == 1
    off = subprocess.run(
        [sys.executable, "-m", "kstep.envs.gl", "--check"],
        capture_output=True,
        text=True,
        env={**os.environ, "MUJOCO_GL": "off"},
    )
    assert off.returncode == 1
    assert off.stderr.startswith("rendering: none; MUJOCO_GL=off")
    assert off.stderr.count("\n") == 1


@pytest.mark.usefixtures("_rendering")
def test_a_dm_control_that_already_draws_is_accepted(tmp_path: Path) -> None:
    first = run("from kstep.envs import gl; b = gl.choose(); print(b.name, b.gl)")
    name, mujoco_gl = first.stdout.split()
    if name == "osmesa-wheel":
        pytest.skip("that wheel's library is only loaded by kstep")
    done = run(
        "import dm_control.mujoco\n"
        "from kstep.envs import gl\n"
        "b = gl.choose(); print(b.name, b.note, b.ms_per_frame > 0)",
        MUJOCO_GL=mujoco_gl,
        XDG_CACHE_HOME=str(tmp_path),
    )
    assert done.stdout.strip() == f"{name} dm_control was imported before True", done.stderr


def test_states_need_no_rendering_and_pixels_say_so() -> None:
    done = run(
        "import os\n"
        "from kstep.envs import EnvConfig, make\n"
        "from kstep.types import KstepError\n"
        "env = make(EnvConfig('cartpole_swingup', 'state'), 0)\n"
        "print(env.reset(seed=0)[0].shape, os.environ['MUJOCO_GL'])\n"
        "for attempt in (env.film_frame, lambda: make(EnvConfig('cartpole_swingup'), 0)):\n"
        "    try:\n"
        "        attempt()\n"
        "    except KstepError as error:\n"
        "        print(error)\n",
        MUJOCO_GL="off",
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "(5,) off", done.stderr
    assert "cannot be rendered" in lines[1]
    # Not that dm_control came too early, which was kstep's own doing.
    assert "switches rendering off" in lines[2]


FRAMES = """
import hashlib, numpy as np
from kstep.envs import EnvConfig, gl, make
backend = gl.choose({force!r})
env = make(EnvConfig('walker_walk'), 0)
digest = hashlib.sha256(env.reset(seed=3)[0])
for _ in range(3):
    digest.update(env.step(np.full(6, 0.5))[0])
maps = open('/proc/self/maps').read()
print(backend.name, digest.hexdigest(), '/libOSMesa.so' in maps or '/libEGL.so' in maps)
"""


@pytest.mark.skipif(gl.wheel_library() is None, reason="the wheel lavavu-osmesa is not installed")
@pytest.mark.usefixtures("_rendering")
def test_the_wheel_draws_the_same_pixels_with_no_library_of_the_system() -> None:
    wheel = run(FRAMES.format(force="osmesa-wheel"))
    name, digest, system = wheel.stdout.split()
    assert (name, system) == ("osmesa-wheel", "False"), wheel.stderr
    for other in ("egl", "osmesa"):
        compared = run(FRAMES.format(force=other))
        if compared.returncode == 0:
            device_name, other_digest, _ = compared.stdout.split()
            if device_name in ("egl", "osmesa"):  # A GPU rounds differently.
                assert other_digest == digest
