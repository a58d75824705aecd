"""Frames drawn without OpenGL: what they are, that they depend on the state alone, and refusals."""

from __future__ import annotations

import subprocess
import sys
import zlib
from collections.abc import Iterator
from typing import Any

import mujoco
import numpy as np
import pytest

from kstep.envs import EnvConfig, make
from kstep.envs.raytraced import RayTracer
from kstep.types import Array, KstepError

STATE = mujoco.mjtState.mjSTATE_INTEGRATION

SCENE = """
<mujoco>
  <worldbody>
    <light pos="0 0 3"/>
    <camera name="side" pos="0 -2 .5" xyaxes="1 0 0 0 0 1"/>
    <geom name="floor" type="plane" size="2 2 .1" rgba=".2 .3 .4 1"/>
    <body pos="0 0 .5">
      <joint name="slide" type="slide" axis="1 0 0"/>
      <geom name="ball" type="sphere" size=".2" rgba=".9 .1 .1 1" mass="1"/>
      <site name="hook" pos="0 0 .2" size=".02"/>
    </body>
    <site name="target" pos=".5 0 .5" size=".1" rgba=".1 .9 .1 1"/>
    <site name="nail" pos="0 0 1.1" size=".02"/>
  </worldbody>
  <tendon>
    <spatial width=".02" rgba=".9 .9 .1 1"><site site="hook"/><site site="nail"/></spatial>
  </tendon>
</mujoco>
"""


class Simulator:
    """A model and a state of its own, as each environment has them."""

    def __init__(self, slide: float = 0.0) -> None:
        self.model = mujoco.MjModel.from_xml_string(SCENE)
        self.data = mujoco.MjData(self.model)
        self.move(slide)

    def move(self, slide: float) -> None:
        self.data.qpos[0] = slide
        mujoco.mj_forward(self.model, self.data)

    def tracer(self, height: int = 48, width: int = 48, camera: int = 0) -> RayTracer:
        return RayTracer(self.model, height, width, camera)

    def drawn(self, tracer: RayTracer) -> Array:
        return tracer.draw(self.data, self.model)

    def contents(self) -> tuple[bytes, ...]:
        """Every array of the state and of the model, and the state as MuJoCo defines it."""
        state = np.empty(mujoco.mj_stateSize(self.model, STATE))
        mujoco.mj_getState(self.model, self.data, state, STATE)
        found = [state.tobytes()]
        for holder in (self.data, self.model):
            for name in dir(holder):
                value = None if name.startswith("_") else getattr(holder, name)
                if isinstance(value, np.ndarray):
                    found.append(value.tobytes())
        found.append(bytes(str(self.data.warning), "ascii"))
        return tuple(found)


@pytest.fixture(scope="module")
def tracer() -> RayTracer:
    pytest.importorskip("mujoco_warp")
    return Simulator().tracer()


def pixels_of(image: Array, color: int) -> int:
    """How many pixels are mostly of one colour."""
    others = np.delete(image, color, axis=2).max(2).astype(int)
    return int((image[:, :, color] > others + 60).sum())


def test_a_frame_is_a_new_array_of_the_asked_size(tracer: RayTracer) -> None:
    simulator = Simulator()
    wide = simulator.drawn(simulator.tracer(height=20, width=30))
    assert (wide.shape, wide.dtype) == ((20, 30, 3), np.dtype(np.uint8))
    first = simulator.drawn(tracer)
    kept = first.copy()
    simulator.move(0.5)
    second = simulator.drawn(tracer)
    assert first.flags.c_contiguous
    assert first.flags.writeable
    assert not np.shares_memory(first, second)
    np.testing.assert_array_equal(first, kept)


def test_frames_depend_on_the_state_alone(tracer: RayTracer) -> None:
    simulator = Simulator()
    first = simulator.drawn(tracer)
    np.testing.assert_array_equal(simulator.drawn(tracer), first)
    simulator.move(0.3)
    assert (simulator.drawn(tracer) != first).any()
    simulator.move(0.0)
    np.testing.assert_array_equal(simulator.drawn(tracer), first)


def test_drawing_changes_nothing(tracer: RayTracer) -> None:
    simulator = Simulator(0.2)
    before = simulator.contents()
    simulator.drawn(tracer)
    simulator.drawn(simulator.tracer(camera=-1))
    assert simulator.contents() == before


def test_one_tracer_serves_two_simulators(tracer: RayTracer) -> None:
    one, two = Simulator(-0.4), Simulator(0.4)
    two.model.site_size[two.model.site("target").id] = 0.2
    two.model.geom_rgba[two.model.geom("ball").id] = (0.1, 0.1, 0.9, 1.0)
    alone = one.drawn(one.tracer()), two.drawn(two.tracer())
    for _ in range(2):
        np.testing.assert_array_equal(one.drawn(tracer), alone[0])
        np.testing.assert_array_equal(two.drawn(tracer), alone[1])


def test_changes_of_the_model_are_seen(tracer: RayTracer) -> None:
    simulator = Simulator()
    first = simulator.drawn(tracer)
    assert pixels_of(first, 0) > 50
    simulator.model.geom_size[simulator.model.geom("ball").id, 0] = 0.1
    assert pixels_of(simulator.drawn(tracer), 0) < pixels_of(first, 0) / 2
    simulator.model.geom_rgba[simulator.model.geom("ball").id, 3] = 0.0
    assert pixels_of(simulator.drawn(tracer), 0) == 0


def test_sites_and_strings_are_drawn(tracer: RayTracer) -> None:
    simulator = Simulator()
    first = simulator.drawn(tracer)
    target = simulator.model.site("target").id
    assert pixels_of(first, 1) > 20
    simulator.model.site_rgba[target, 3] = 0.0
    assert pixels_of(simulator.drawn(tracer), 1) == 0
    simulator.model.site_rgba[target, 3] = 1.0
    simulator.model.tendon_rgba[0, 3] = 0.0
    changed = (simulator.drawn(tracer) != first).any(2)
    assert 5 < changed.sum() < 60
    simulator.model.tendon_rgba[0, 3] = 1.0
    np.testing.assert_array_equal(simulator.drawn(tracer), first)


def test_the_free_camera_sees_the_ball(tracer: RayTracer) -> None:
    simulator = Simulator()
    free = simulator.drawn(simulator.tracer(camera=-1))
    assert pixels_of(free, 0) > 20
    assert (free != simulator.drawn(tracer)).any()


def test_an_unknown_camera_is_refused() -> None:
    with pytest.raises(KstepError, match="cameras 0 to 1 and the free camera -1, not 2"):
        make(EnvConfig("cartpole_swingup", camera=2, renderer="raytraced"), seed=1)


def test_a_model_without_a_camera_is_refused(tracer: RayTracer) -> None:
    bare = mujoco.MjModel.from_xml_string("<mujoco><worldbody/></mujoco>")
    with pytest.raises(KstepError, match="camera"):
        RayTracer(bare, 8, 8, -1)


@pytest.fixture
def cartpole() -> Iterator[Any]:
    env = make(EnvConfig("cartpole_swingup"), seed=1)
    yield env
    env.close()


def test_pictures_resemble_those_of_opengl(tracer: RayTracer, cartpole: Any) -> None:
    physics = cartpole._physics
    model, data = physics.model.ptr, physics.data.ptr
    suite = RayTracer(model, 84, 84, 0)
    for seed in range(3):
        wanted = cartpole.reset(seed=seed)[0].astype(int)
        difference = np.abs(suite.draw(data, model) - wanted)
        assert difference.mean() < 15


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "warp", None)
    monkeypatch.setitem(sys.modules, "mujoco_warp", None)
    with pytest.raises(KstepError, match=r"pip install .*mujoco-warp"):
        Simulator().tracer()


def test_importing_the_module_imports_no_warp() -> None:
    code = "import sys, kstep.envs.raytraced; sys.exit('warp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_other_processes_draw_the_same_and_print_nothing(tracer: RayTracer) -> None:
    simulator = Simulator(0.1)
    code = (
        "import sys, zlib, mujoco; from kstep.envs.raytraced import RayTracer\n"
        "model = mujoco.MjModel.from_xml_string(sys.stdin.read())\n"
        "data = mujoco.MjData(model); data.qpos[0] = 0.1; mujoco.mj_forward(model, data)\n"
        "print(zlib.crc32(RayTracer(model, 48, 48, 0).draw(data, model).tobytes()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=SCENE, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{zlib.crc32(simulator.drawn(tracer).tobytes())}\n"
