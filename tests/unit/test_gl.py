"""Choosing how to render: order, memory, respect for the user, and words when nothing works."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kstep.envs import gl
from kstep.envs.gl import GLBackend
from kstep.types import KstepError

SOFTWARE = "llvmpipe (LLVM 15.0.6, 256 bits)"

Fake = Callable[..., list[str]]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fake:
    """A machine on which only given backends draw; returns the list of those that get tested."""

    def machine(*works: str, device: str = SOFTWARE, candidates: tuple[str, ...] = ()) -> list[str]:
        tested: list[str] = []

        def test(name: str, why: str) -> GLBackend | str:
            tested.append(name)
            if name not in works:
                return "no such library"
            seen = {"library": f"/lib/{name}.so", "device": device, "ms_per_frame": 21.0}
            return gl._backend(name, seen, why)

        monkeypatch.setattr(gl, "_test", test)
        order = candidates or ("osmesa", "egl", "osmesa-wheel")
        monkeypatch.setattr(gl, "_candidates", lambda: iter(order))
        return tested

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(gl, "_chosen", None)
    monkeypatch.setattr(gl, "_failure", None)
    monkeypatch.setattr(gl, "_use", lambda backend: None)
    # Another test may have imported it; these tests are about a process that has not.
    monkeypatch.delitem(sys.modules, "dm_control._render", raising=False)
    for variable in ("MUJOCO_GL", "KSTEP_GL", "PYOPENGL_PLATFORM"):
        monkeypatch.delenv(variable, raising=False)
    return machine


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter whose rendering variables are only those given."""
    kept = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "KSTEP_GL")}
    kept.pop("PYOPENGL_PLATFORM", None)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**kept, **environment}
    )


def test_the_first_that_draws_is_taken_and_remembered(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = fake("egl", "osmesa-wheel")
    backend = gl.choose()
    assert (backend.name, backend.gl, backend.ms_per_frame) == ("egl", "egl", 21.0)
    assert tested == ["osmesa", "egl"]
    # The next process tests nothing.
    monkeypatch.setattr(gl, "_chosen", None)
    assert gl.choose() == backend
    assert tested == ["osmesa", "egl"]
    # A child is told the name by its parent and finds it in the same file.
    monkeypatch.setattr(gl, "_chosen", None)
    monkeypatch.setenv("KSTEP_GL", "egl")
    monkeypatch.setenv("MUJOCO_GL", "egl")
    assert gl.choose() == backend
    assert tested == ["osmesa", "egl"]
    # What was remembered can be dropped.
    monkeypatch.setattr(gl, "_chosen", None)
    gl.forget()
    assert gl.choose().name == "egl"
    assert tested == ["osmesa", "egl", "egl"]


def test_a_changed_machine_is_tested_again(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    tested = fake("osmesa")
    gl.choose()
    monkeypatch.setattr(gl, "_chosen", None)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere/else")
    gl.choose()
    assert tested == ["osmesa", "osmesa"]
    monkeypatch.setattr(gl, "_chosen", None)
    monkeypatch.setattr(gl, "_gpu_nodes", lambda: ["/dev/dri/card0"])
    gl.choose()
    assert tested == ["osmesa", "osmesa", "osmesa"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"%s": 3}', '{"%s": {"auto": {"old": 1}}}'])
def test_a_damaged_file_is_ignored_and_replaced(fake: Fake, content: str) -> None:
    tested = fake("osmesa")
    file = gl._cache_file()
    file.parent.mkdir()
    file.write_text(content.replace("%s", gl._machine_key()))
    assert gl.choose().name == "osmesa"
    assert tested == ["osmesa"]
    stored = json.loads(file.read_text())[gl._machine_key()]
    assert stored["auto"] == stored["osmesa"] == dataclasses.asdict(gl.choose())


def test_a_folder_that_cannot_be_written_only_costs_time(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = fake("osmesa")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/nowhere")
    assert gl.choose().name == "osmesa"
    assert tested == ["osmesa"]


def test_the_file_keeps_other_machines_but_not_for_ever(fake: Fake) -> None:
    fake("osmesa")
    file = gl._cache_file()
    file.parent.mkdir()
    file.write_text(json.dumps({f"machine{i}": {"auto": {}} for i in range(40)}))
    gl.choose()
    stored = json.loads(file.read_text())
    assert len(stored) == gl._CACHED_MACHINES
    assert {"machine39", gl._machine_key()} < set(stored)


def test_a_gpu_goes_first(fake: Fake) -> None:
    order = ("egl-gpu", "osmesa", "egl")
    tested = fake("egl-gpu", "osmesa", "egl", device="NVIDIA L4/PCIe/SSE2", candidates=order)
    assert gl.choose().name == "egl-gpu"
    assert tested == ["egl-gpu"]


def test_a_gpu_that_draws_in_software_is_not_one(fake: Fake) -> None:
    order = ("egl-gpu", "osmesa", "egl")
    fake("egl-gpu", "osmesa", candidates=order)
    assert gl.choose().name == "osmesa"


def test_software_behind_a_gpu_node_is_not_tested_twice(fake: Fake) -> None:
    tested = fake("egl-gpu", candidates=("egl-gpu", "osmesa", "egl"))
    assert gl.choose().name == "egl"
    assert tested == ["egl-gpu", "osmesa"]


def test_forcing_the_gpu_does_not_accept_software(fake: Fake) -> None:
    fake("egl-gpu", "egl")
    with pytest.raises(KstepError, match=r"egl-gpu(.|\n)*rendered by llvmpipe"):
        gl.choose("egl-gpu")


def test_candidates_are_only_those_that_can_be_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(gl, "_gpu_nodes", lambda: [])
    monkeypatch.setattr(gl, "wheel_library", lambda: None)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert list(gl._candidates()) == ["osmesa", "egl"]
    monkeypatch.setattr(gl, "_gpu_nodes", lambda: ["/dev/nvidia0"])
    monkeypatch.setattr(gl, "wheel_library", lambda: Path("/wheel.so"))
    monkeypatch.setenv("DISPLAY", ":0")
    assert list(gl._candidates()) == ["egl-gpu", "osmesa", "egl", "osmesa-wheel", "glfw"]
    monkeypatch.setattr(sys, "platform", "darwin")
    assert next(gl._candidates()) == "glfw"


def test_the_users_choice_is_respected(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    tested = fake("egl", "osmesa-wheel")
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    backend = gl.choose()
    assert (backend.name, backend.note) == ("osmesa-wheel", "MUJOCO_GL")
    assert tested == ["osmesa", "osmesa-wheel"]


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
    fake: Fake, monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    fake("egl")
    monkeypatch.setenv("MUJOCO_GL", value)
    with pytest.raises(KstepError, match=message):
        gl.choose()


@pytest.mark.parametrize("root", [True, False])
def test_where_nothing_draws_the_message_has_the_command(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, root: bool
) -> None:
    fake()
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/apt-get")
    with pytest.raises(KstepError) as caught:
        gl.choose()
    message = str(caught.value)
    apt, pip = message.index("apt-get install libosmesa6"), message.index("pip install")
    assert (apt < pip) is root
    assert "osmesa: no such library" in message


def test_one_process_draws_one_way(fake: Fake) -> None:
    fake("egl", "osmesa")
    gl.choose("egl")
    assert gl.choose().name == "egl"
    with pytest.raises(KstepError, match="already renders with egl"):
        gl.choose("osmesa")
    with pytest.raises(KstepError, match="unknown rendering backend 'opengl'"):
        gl.choose("opengl")


def test_describes_itself_in_a_line() -> None:
    backend = GLBackend("osmesa", "osmesa", "", SOFTWARE, 21.4, "found")
    assert gl.describe(backend) == "rendering: OSMesa (software), 21 ms per frame"
    gpu = dataclasses.replace(backend, name="egl-gpu", device="NVIDIA L4", ms_per_frame=1.2)
    assert gl.describe(gpu) == "rendering: EGL on NVIDIA L4, 1 ms per frame"
    for name in gl._GL:
        assert gl.describe(dataclasses.replace(backend, name=name)).startswith("rendering: ")


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
