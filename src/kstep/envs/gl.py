"""Headless rendering without set-up by the user.

`choose()` finds a way to render MuJoCo scenes without a screen, tests it in a process of its own,
and only then sets MUJOCO_GL and PYOPENGL_PLATFORM in this one. It must run before dm_control is
first imported, because dm_control chooses at import, once. What worked is cached in a small file,
so that the next start need not test. `python -m kstep.envs.gl --check` prints one line and exits 0
where something renders, else 1.

In order: a GPU through EGL, the system's OSMesa, the system's software EGL, the OSMesa inside the
wheel `lavavu-osmesa` (no root needed), GLFW (first on macOS and Windows). All software renderers
here are Mesa's llvmpipe and produce the same pixels.

MUJOCO_GL set by the user is respected; KSTEP_GL names the one `GLBackend` to use, and also passes
the parent's choice to child processes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import glob
import hashlib
import importlib.metadata
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kstep import reading, values
from kstep.envs import _probe
from kstep.terminal import Terminal, say
from kstep.types import KstepError

WHEEL = "lavavu-osmesa"
WITH_ROOT = "apt-get install libosmesa6"
# Its dependencies are for a viewer; only the library inside is used here.
WITHOUT_ROOT = "pip install --no-deps lavavu-osmesa==1.9.10"

_GL = {"egl-gpu": "egl", "osmesa": "osmesa", "egl": "egl", "osmesa-wheel": "osmesa", "glfw": "glfw"}
"""Every backend and its MUJOCO_GL, in the order they are tried on Linux."""

_OFF = ("off", "disable", "disabled", "false", "0")
_GLFW_SYNONYMS = ("on", "enable", "enabled", "true", "1", "")
_SOFTWARE = ("llvmpipe", "softpipe", "swrast", "software rasterizer")
_PROBE_SECONDS = 120  # A loaded machine needs seconds for the first frame.
_CACHED_MACHINES = 32  # A home folder may be shared by a cluster.
_CACHE_FORMAT = 1


@dataclass(frozen=True)
class GLBackend:
    """A way to render that passed its test."""

    name: str
    """egl-gpu, egl, osmesa, osmesa-wheel or glfw"""
    gl: str
    """The value for MUJOCO_GL."""
    library: str
    """The file of the OpenGL library; empty if unknown."""
    device: str
    """OpenGL's name of the renderer: GL_RENDERER."""
    ms_per_frame: float
    """84x84, a small scene with shadows, under the machine's load during the test."""
    note: str
    """Where the choice came from."""


_chosen: GLBackend | None = None
_failure: KstepError | None = None


def choose(force: str | None = None) -> GLBackend:
    """Return a working backend and make this process use it; `force` names the only one to try."""
    global _chosen, _failure
    if force is not None and force not in _GL:
        raise KstepError(f"unknown rendering backend {force!r}; known are {', '.join(_GL)}")
    if _chosen is not None:
        if not _satisfies(_chosen, force):
            raise KstepError(
                f"this process already renders with {_chosen.name}; start another for {force}"
            )
        return _chosen
    if "dm_control._render" in sys.modules:
        backend = _accept_loaded(force)
    else:
        try:
            backend = _find(force)
        except KstepError as error:
            _failure = error
            raise
        _use(backend)
    _chosen = backend
    return backend


def prepare(*, required: bool) -> bool:
    """Choose a backend before MuJoCo is imported; return whether there is one, or raise if it is
    `required`."""
    try:
        choose()
    except KstepError:
        if required:
            raise
        return False
    return True


def describe(backend: GLBackend) -> str:
    """Return the one line to print about a backend."""
    how = {
        "egl-gpu": f"EGL on {backend.device}",
        "egl": "EGL (software)",
        "osmesa": "OSMesa (software)",
        "osmesa-wheel": f"OSMesa of the {WHEEL} wheel (software)",
        "glfw": f"GLFW on {backend.device or 'the screen'}",
    }[backend.name]
    return f"rendering: {how}, {backend.ms_per_frame:.0f} ms per frame"


def forget() -> None:
    """Delete the cache; for when a cached backend fails after all."""
    # Where this fails, nothing could have been written either.
    with contextlib.suppress(OSError):
        _cache_file().unlink(missing_ok=True)


# --- the choice -----------------------------------------------------------------------------------


def _find(force: str | None) -> GLBackend:
    """Return the first backend that passes its test, or the cached one of an earlier test."""
    request, names, why = _request(force)
    key = _machine_key()
    with contextlib.suppress(KeyError, KstepError):  # not tested yet, or by another version
        cached: GLBackend = values.decode(GLBackend, _read_cache()[key][request])
        if cached.name in _GL:
            return cached

    failures: list[str] = []
    software_egl: GLBackend | None = None
    for name in names:
        if name == "egl" and software_egl is not None:
            found: GLBackend | str = software_egl
        else:
            found = _test(name, why)
        if isinstance(found, str):
            failures.append(f"{name}: {found}")
        elif found.name == "egl" and name == "egl-gpu" and "egl" in names:
            # There is a device node but Mesa renders in software: OSMesa goes first then.
            software_egl = found
        elif not _satisfies(found, force):
            failures.append(f"{name}: no GPU, rendered by {found.device}")
        else:
            _remember(key, request, found)
            return found
    raise KstepError(_nothing_works(request, failures))


def _request(force: str | None) -> tuple[str, tuple[str, ...], str]:
    """Return a name for the request, the backends that satisfy it, and its origin."""
    user = os.environ.get("MUJOCO_GL")
    inherited = os.environ.get("KSTEP_GL")
    if force is None and inherited and (user is None or user == _GL.get(inherited)):
        if inherited not in _GL:
            raise KstepError(f"KSTEP_GL={inherited} names no backend; known are {', '.join(_GL)}")
        return inherited, (inherited,), "KSTEP_GL"
    if force is not None:
        return force, (force,), "requested"
    if user is None:
        return "auto", tuple(_candidates()), "found"
    wanted = user.strip().lower()
    if wanted in _OFF:
        raise KstepError(
            f"MUJOCO_GL={user} switches rendering off; run `unset MUJOCO_GL` to learn from pixels"
        )
    if wanted in _GLFW_SYNONYMS:
        wanted = "glfw"
    names = tuple(name for name, gl in _GL.items() if gl == wanted)
    if not names:
        raise KstepError(
            f"MUJOCO_GL={user} is not something dm_control knows (egl, osmesa, glfw); "
            "run `unset MUJOCO_GL` to have one chosen"
        )
    return f"MUJOCO_GL={wanted}", names, "MUJOCO_GL"


def _candidates() -> Iterator[str]:
    """Yield backend names in the order to try, without those that cannot exist here."""
    if sys.platform in ("darwin", "win32"):
        yield "glfw"
        return
    possible = {
        "egl-gpu": bool(_gpu_nodes()),
        "osmesa-wheel": wheel_library() is not None,
        "glfw": bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")),
    }
    yield from (name for name in _GL if possible.get(name, True))


def _test(name: str, why: str) -> GLBackend | str:
    """Render with one backend in a process of its own; return it, or one line on what failed."""
    library = ""
    if name == "osmesa-wheel":
        wheel = wheel_library()
        if wheel is None:
            return f"the wheel is not installed ({WITHOUT_ROOT})"
        library = str(wheel)
    environment = {**os.environ, **_settings(name)}
    if _GL[name] == "glfw":
        environment.pop("PYOPENGL_PLATFORM", None)
    # -P: the script's folder has modules named like the packages that they wrap.
    command = [sys.executable, "-P", str(Path(_probe.__file__)), library]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_PROBE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"no frame within {_PROBE_SECONDS} s"
    except OSError as error:
        return str(error)
    marked = [line for line in done.stdout.splitlines() if line.startswith(_probe.PREFIX)]
    if not marked:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else f"exit code {done.returncode}"
    return _backend(name, json.loads(marked[-1].removeprefix(_probe.PREFIX)), why)


def _backend(name: str, seen: dict[str, Any], note: str) -> GLBackend:
    software = any(word in seen["device"].lower() for word in _SOFTWARE)
    if _GL[name] == "egl":
        name = "egl" if software else "egl-gpu"
    return GLBackend(
        name, _GL[name], seen["library"], seen["device"], float(seen["ms_per_frame"]), note
    )


def _satisfies(backend: GLBackend, force: str | None) -> bool:
    # A request for EGL accepts one on a GPU; a request for the GPU does not accept software.
    return force in (None, backend.name) or (force == "egl" and backend.name == "egl-gpu")


def _settings(name: str) -> dict[str, str]:
    """Return the environment variables of a backend."""
    gl = _GL[name]
    settings = {"MUJOCO_GL": gl}
    if gl != "glfw":
        settings["PYOPENGL_PLATFORM"] = gl
    # dm_control renders OSMesa on a thread that has ended when the interpreter frees contexts at
    # exit, which prints a traceback. EGL renders on the caller's thread; do the same here.
    settings["DISABLE_RENDER_THREAD_OFFLOADING"] = "1"
    return settings


def _use(backend: GLBackend) -> None:
    """Make this process and its children render with `backend`."""
    platform = sys.modules.get("OpenGL.platform")
    loaded = type(getattr(platform, "PLATFORM", None)).__name__.lower() if platform else ""
    if loaded and backend.gl != "glfw" and not loaded.startswith(backend.gl):
        raise KstepError(
            f"PyOpenGL was imported before kstep and is set to {loaded}, but {backend.name} is "
            "what works here; call kstep.envs.gl.choose() before importing PyOpenGL"
        )
    if backend.gl == "glfw":
        os.environ.pop("PYOPENGL_PLATFORM", None)
    os.environ.update(_settings(backend.name), KSTEP_GL=backend.name)
    if backend.name == "osmesa-wheel" and not loaded:
        library = wheel_library()
        if library is None:
            raise KstepError(f"the wheel {WHEEL} is gone; {WITHOUT_ROOT}")
        _probe.preload(str(library))


def _accept_loaded(force: str | None) -> GLBackend:
    """Return the backend of a dm_control that was imported before, after rendering one frame."""
    gl = sys.modules["dm_control._render"].BACKEND
    if gl not in _GL.values():
        if _failure is not None:
            # dm_control was imported without rendering before, for states.
            raise _failure
        raise KstepError(
            "dm_control was imported with rendering off, which cannot be undone; call "
            "kstep.envs.gl.choose() before importing dm_control, or start a new process"
        )
    try:
        seen = _probe.measure()
    except Exception as error:  # whatever a driver raises
        raise KstepError(
            f"dm_control was imported with MUJOCO_GL={gl}, which does not render ({error}); call "
            "kstep.envs.gl.choose() before importing dm_control"
        ) from error
    name = "osmesa-wheel" if "lavavu" in seen["library"] else str(gl)
    backend = _backend(name, seen, "dm_control was imported before")
    if not _satisfies(backend, force):
        raise KstepError(
            f"dm_control was imported before and renders with {backend.name}; "
            f"start a new process for {force}"
        )
    return backend


def _nothing_works(request: str, failures: list[str]) -> str:
    tried = "".join(f"\n  {failure}" for failure in failures) or "\n  nothing to try"
    if request.startswith("MUJOCO_GL="):
        return (
            f"{request} is set but does not render; run `unset MUJOCO_GL` to have a working one "
            f"chosen. Tried:{tried}"
        )
    if request != "auto":
        return f"the rendering backend {request} does not render. Tried:{tried}"
    if sys.platform != "linux":
        return f"no way to render was found. Tried:{tried}"
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get") is not None
    first, second = (
        (WITH_ROOT, f"without root: {WITHOUT_ROOT}")
        if is_root
        else (WITHOUT_ROOT, f"with root: {WITH_ROOT}")
    )
    return (
        f"nothing here can render without a screen. Fix it with\n  {first}\n({second}). "
        f"Tried:{tried}"
    )


# --- this machine ---------------------------------------------------------------------------------


def wheel_library() -> Path | None:
    """Return the OSMesa inside the wheel `lavavu-osmesa`, without importing the wheel."""
    try:
        folder = importlib.metadata.distribution(WHEEL).locate_file("lavavu_osmesa.libs")
    except importlib.metadata.PackageNotFoundError:
        return None
    return min(Path(str(folder)).glob("libOSMesa*.so*"), default=None)


def _gpu_nodes() -> list[str]:
    return sorted(glob.glob("/dev/dri/*") + glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/dxg"))


def _machine_key() -> str:
    """Return a digest of everything that a cached test result depends on."""
    versions = {}
    for package in ("mujoco", "dm_control", "PyOpenGL", "glfw", WHEEL):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = ""
    prefixes = ("LIBGL_", "MESA_", "GALLIUM_", "LP_", "EGL_", "__EGL", "__GL", "LD_")
    names = ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_EGL_DEVICE_ID", "CUDA_VISIBLE_DEVICES")
    variables = {k: v for k, v in os.environ.items() if k in names or k.startswith(prefixes)}
    folders = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), f"{sys.prefix}/lib"]
    folders += ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib"]
    folders += ["/lib/*-linux-gnu", "/usr/lib/*-linux-gnu"]
    libraries = sorted(
        file
        for folder in folders
        if folder
        for stem in ("libOSMesa", "libEGL", "libOpenGL", "libGL")
        for file in glob.glob(f"{folder}/{stem}.so*")
    )
    facts: list[object] = [_CACHE_FORMAT, socket.gethostname(), sys.executable]
    facts += [versions, variables, libraries, _gpu_nodes(), str(wheel_library())]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]


# --- the cache ------------------------------------------------------------------------------------


def _cache_file() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "kstep" / "gl.json"


def _read_cache() -> dict[str, dict[str, Any]]:
    """Return machine -> request -> backend; empty if the file is missing or damaged."""
    try:
        content = reading.json_file(_cache_file())
    except KstepError:
        return {}
    return {key: value for key, value in content.items() if isinstance(value, dict)}


def _remember(key: str, request: str, backend: GLBackend) -> None:
    """Cache a result; failing to only costs time."""
    content = _read_cache()
    machine = content.pop(key, {})
    fields = dataclasses.asdict(backend)
    # Under its own name too: child processes request what their parent chose.
    content[key] = {**machine, request: fields, backend.name: fields}
    content = dict(list(content.items())[-_CACHED_MACHINES:])
    file = _cache_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as temporary:
            json.dump(content, temporary, indent=1)
        os.replace(temporary.name, file)
    except OSError:
        pass


def main(arguments: list[str] | None = None) -> int:
    """Report, in one line and the exit code, whether frames can be rendered here."""
    parser = argparse.ArgumentParser(prog="python -m kstep.envs.gl", description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="test, print one line, exit 0 or 1")
    parser.add_argument("--force", choices=tuple(_GL), help="test only this backend")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results first")
    options = parser.parse_args(arguments)
    if options.fresh:
        forget()
    try:
        backend = choose(options.force)
    except KstepError as error:
        # One line: the Makefile prints it beside its remedy.
        say(Terminal(stderr=True), "rendering: none; " + " ".join(str(error).split()))
        return 1
    say(Terminal(), describe(backend))
    return 0


if __name__ == "__main__":
    sys.exit(main())
