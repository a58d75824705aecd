"""Does this OpenGL setting render, how fast, and on which device?

Runs by itself in a short-lived process (`python -P _probe.py <library to preload or "">`), because
a wrong OpenGL library can abort the process that tries it. In: MUJOCO_GL and PYOPENGL_PLATFORM
from the environment. Out: one line, `PREFIX` followed by JSON. Imports nothing of kstep, so that a
test takes a second.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

PREFIX = "kstep-gl: "

# As costly as a control-suite scene: textures, a reflection, and shadows at the suite's 2048.
SCENE = """
<mujoco>
  <visual><quality shadowsize="2048"/></visual>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1=".4 .6 .8" rgb2="0 0 0"
             width="400" height="800"/>
    <texture name="grid" type="2d" builtin="checker" rgb1=".1 .2 .3" rgb2=".2 .3 .4"
             width="300" height="300"/>
    <material name="grid" texture="grid" texrepeat="4 4" reflectance=".2"/>
  </asset>
  <worldbody>
    <light pos="0 0 3" castshadow="true"/>
    <camera name="fixed" pos="0 -2.5 1.2" xyaxes="1 0 0 0 .4 1"/>
    <geom type="plane" size="4 4 .1" material="grid"/>
    <geom type="capsule" fromto="-.5 0 .3 .5 0 .7" size=".1" rgba=".7 .5 .3 1"/>
    <geom type="sphere" pos="0 .5 .4" size=".3" rgba=".3 .6 .3 1"/>
    <geom type="box" pos=".6 .4 .2" size=".2 .2 .2" rgba=".6 .3 .3 1"/>
  </worldbody>
</mujoco>
"""


def preload(library: str) -> None:
    """Make PyOpenGL use the OSMesa in the file `library` instead of searching for one by name.

    PyOpenGL asks the loader for `libOSMesa.so`; a wheel's copy has another name, in a folder that
    the loader does not search. So while PyOpenGL loads its platform, that name means our file.
    """
    _load_with_neighbours(library)

    class Redirect(ctypes.CDLL):
        def __init__(self, name: str, mode: int = ctypes.DEFAULT_MODE, **options: Any) -> None:
            is_osmesa = str(name).startswith("libOSMesa.so")
            super().__init__(library if is_osmesa else name, mode, **options)

    original = ctypes.cdll
    ctypes.cdll = ctypes.LibraryLoader(Redirect)
    try:
        import OpenGL.platform  # noqa: F401  (importing is what loads the library)
    finally:
        ctypes.cdll = original


def _load_with_neighbours(library: str) -> None:
    """Load `library` and, before it, the files beside it that it needs.

    They have no search path of their own, so each must be loaded before what needs it. Their order
    is found by trial: every round loads at least one more, or loading fails.
    """
    waiting = sorted(Path(library).parent.glob("*.so*"), key=lambda file: str(file) == library)
    while waiting:
        failed: list[Path] = []
        reason: OSError | None = None
        for file in waiting:
            try:
                # RTLD_GLOBAL: MuJoCo finds OpenGL among the symbols of the whole process.
                ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
            except OSError as error:
                failed.append(file)
                reason = error
        if Path(library) not in failed:
            return
        if len(failed) == len(waiting) and reason is not None:
            raise reason
        waiting = failed


def measure(frames: int = 9) -> dict[str, Any]:
    """Render `SCENE` through dm_control in this process; return device, library and speed."""
    from dm_control import _render
    from dm_control import mujoco as dm_mujoco

    physics = dm_mujoco.Physics.from_xml_string(SCENE)
    try:
        image = physics.render(84, 84, camera_id=0)
        if image.std() < 1:
            raise RuntimeError("the rendered frame is blank")
        from OpenGL import GL

        with physics.contexts.gl.make_current() as context:
            device = context.call(GL.glGetString, GL.GL_RENDERER)
        seconds = []
        for _ in range(frames):
            start = time.perf_counter()
            physics.render(84, 84, camera_id=0)
            seconds.append(time.perf_counter() - start)
    finally:
        physics.free()
    return {
        "gl": str(_render.BACKEND),
        "device": device.decode(errors="replace") if device else "",
        "library": loaded_library(str(_render.BACKEND)),
        "ms_per_frame": round(1000 * statistics.median(seconds), 2),
    }


def loaded_library(gl: str) -> str:
    """Return the file of the OpenGL library in this process; empty if unknown."""
    stem = {"osmesa": "libOSMesa", "egl": "libEGL", "glfw": "libglfw"}.get(gl, "libGL")
    try:
        with open("/proc/self/maps") as maps:
            files = sorted({line.split(maxsplit=5)[5].strip() for line in maps if stem in line})
    except (OSError, IndexError):
        return ""
    return files[0] if files else ""


def _find_library(gl: str) -> None:
    """Exit early, with a clear message, where the library is missing."""
    module = {"egl": "OpenGL.EGL", "osmesa": "OpenGL.GL"}.get(gl)
    try:
        if module is not None:
            importlib.import_module(module)
    except (ImportError, AttributeError):
        # PyOpenGL reads an attribute of None where it found no library.
        sys.exit(f"no {gl} library found")


def main(library: str) -> None:
    if library:
        preload(library)
    else:
        _find_library(os.environ.get("MUJOCO_GL", ""))
    print(PREFIX + json.dumps(measure()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
