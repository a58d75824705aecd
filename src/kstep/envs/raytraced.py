"""Frames without OpenGL: MuJoCo models rendered on the CPU by mujoco_warp's ray tracer.

In: a model, and per frame the state to render. Out: a frame `(H, W, 3)` uint8. Several times as
fast as OpenGL on a CPU, but different images: edges are not smoothed, floors do not reflect, skins
are not rendered and transparent objects are solid. So never mix the two in one comparison.

Warp, which compiles the tracer for each kind of model and caches the result on disk, is imported
with the first `RayTracer`; only this renderer needs the extra `fast-render`.
"""

from __future__ import annotations

import copy
import math
import types
from typing import Any

import mujoco
import numpy as np
from scipy.ndimage import uniform_filter

from kstep import extras
from kstep.errors import KstepError
from kstep.types import Array

OF_MODEL = ("geom_matid", "geom_size", "geom_rgba", "mat_rgba")
OF_DATA = ("geom_xpos", "geom_xmat", "light_xpos", "light_xdir")
"""Fields of the model and of the state that are read for each frame."""

# Segments of a slack string in MuJoCo, which hangs in a curve, and some to spare.
_STRING_PIECES = 64


class RayTracer:
    """Renders a MuJoCo model on the CPU without OpenGL.

    One tracer serves any number of simulators of the same model. Read for each frame: positions and
    orientations, sizes and colours of geoms and sites, materials' colours, strings and height
    fields. Read once: meshes, textures, the camera's lens and the lights' colours.
    """

    def __init__(self, model: mujoco.MjModel, height: int, width: int, camera: int) -> None:
        self._warp, self._tracer, self._bvh = _import_tracer()
        if model.ncam == 0:
            raise KstepError("the ray tracer needs a model with a camera of its own")
        self._height = height
        self._width = width
        self._camera = camera
        # Otherwise the first GPU would be used, if there is one, and views would be copies.
        with self._warp.ScopedDevice("cpu"):
            self._build(model)

    def draw(self, data: mujoco.MjData, model: mujoco.MjModel) -> Array:
        """Return the state in `data` as an image (H, W, 3) uint8, a new array.

        `model` must be the one the tracer was made with, or a copy that differs only in the fields
        that are read for each frame; tasks move and resize their targets in the model.
        """
        with self._warp.ScopedDevice("cpu"):
            if model.nhfield and not np.array_equal(model.hfield_data, self._terrain):
                self._build(model)
            self._update(data, model)
            self._tracer.refit_bvh(self._model, self._data, self._context)
            self._tracer.render(self._model, self._data, self._context)
        # A pixel is four bytes: blue, green, red, opacity.
        frame: Array = self._pixels[:, :, 2::-1].copy()
        return frame

    def _build(self, model: mujoco.MjModel) -> None:
        """Make the tracer's own copies of model and state, and views through which to fill them."""
        model = copy.copy(model)
        slot = max(self._camera, 0)
        if self._camera == -1:
            # The tracer supports only a model's own cameras: the free one replaces the first.
            model.cam_fovy[slot] = model.vis.global_.fovy
            model.cam_sensorsize[slot] = 0.0
            model.cam_projection[slot] = mujoco.mjtProjection.mjPROJ_PERSPECTIVE
        _smooth_sky(model, self._height, float(model.cam_fovy[slot]))
        try:
            self._model = self._tracer.put_model(model)
            self._data = self._tracer.make_data(model)
            self._context = self._tracer.create_render_context(
                model,
                cam_res=(self._width, self._height),
                cam_active=[slot],
                render_rgb=True,
                render_depth=False,
                render_seg=False,
                use_shadows=True,
                shadow_light_fraction=0.0,  # as dark as OpenGL makes them
                render_skybox=True,
                use_fast_math=False,  # whose rounding may differ between CPUs
            )
        except NotImplementedError as error:
            raise KstepError(f"the ray tracer cannot render this model: {error}") from error
        self._terrain = model.hfield_data.copy()
        self._geoms = int(model.ngeom)
        self._add_spare_geoms(model)

        self._geom_type = self._model.geom_type.numpy()
        self._of_model = {name: getattr(self._model, name).numpy()[0] for name in OF_MODEL}
        self._of_data = {name: getattr(self._data, name).numpy()[0] for name in OF_DATA}
        self._of_data["geom_xmat"] = self._of_data["geom_xmat"].reshape(-1, 9)
        self._cam_xpos = self._data.cam_xpos.numpy()[0, slot]
        self._cam_xmat = self._data.cam_xmat.numpy()[0, slot].reshape(9)
        packed = self._context.rgb_data.numpy()[0]
        self._pixels = packed.view(np.uint8).reshape(self._height, self._width, 4)
        if self._camera == -1:
            self._cam_xpos[:], self._cam_xmat[:] = _free_camera(model)

    def _update(self, data: mujoco.MjData, model: mujoco.MjModel) -> None:
        # Spare geoms, if any, are behind those of the model.
        for views, source in ((self._of_model, model), (self._of_data, data)):
            for name, view in views.items():
                values = getattr(source, name)
                view[: len(values)] = values
        if self._camera >= 0:
            self._cam_xpos[:] = data.cam_xpos[self._camera]
            self._cam_xmat[:] = data.cam_xmat[self._camera]
        if self._scene is not None:
            self._update_spare_geoms(data, model)

    # The tracer supports geoms only, but targets may be sites (finger_turn) and strings tendons
    # (ball_in_cup). MuJoCo turns both into simple shapes for OpenGL; spare geoms hold these.

    def _add_spare_geoms(self, model: mujoco.MjModel) -> None:
        self._option = mujoco.MjvOption()
        self._option.geomgroup[:] = 0  # the tracer has these already
        self._option.flags[mujoco.mjtVisFlag.mjVIS_RANGEFINDER] = 0  # as in dm_control
        self._option.flags[mujoco.mjtVisFlag.mjVIS_SKIN] = 0
        self._nobody = mujoco.MjvPerturb()
        self._viewer = mujoco.MjvCamera()
        self._scene: mujoco.MjvScene | None = None
        sites = model.site_type[self._option.sitegroup[model.site_group] > 0]
        # Tendons of joints have no shape.
        joint = mujoco.mjtWrap.mjWRAP_JOINT
        strings = int((model.wrap_type[model.tendon_adr] != joint).sum())
        spare = len(sites) + strings * _STRING_PIECES + 2 * int(model.nwrap) * (strings > 0)
        if spare == 0:
            return
        # Large enough for everything: otherwise MuJoCo records a warning in the state.
        self._scene = mujoco.MjvScene(model, spare + 1000)

        def longer(array: Any, value: float) -> Any:
            old = array.numpy()
            axis = old.ndim - 1 - len(getattr(array.dtype, "_shape_", ()))
            shape = (*old.shape[:axis], spare, *old.shape[axis + 1 :])
            new = np.concatenate([old, np.full(shape, value, old.dtype)], axis)
            return self._warp.array(new, dtype=array.dtype)

        shapes = self._model
        shapes.geom_type = longer(shapes.geom_type, mujoco.mjtGeom.mjGEOM_SPHERE)
        shapes.geom_dataid = longer(shapes.geom_dataid, -1)
        shapes.geom_matid = longer(shapes.geom_matid, -1)
        shapes.geom_size = longer(shapes.geom_size, 0)
        shapes.geom_rgba = longer(shapes.geom_rgba, 0)
        self._data.geom_xpos = longer(self._data.geom_xpos, 0)
        self._data.geom_xmat = longer(self._data.geom_xmat, 0)
        context = self._context
        enabled = context.enabled_geom_ids.numpy()
        enabled = np.append(enabled, model.ngeom + np.arange(spare, dtype=enabled.dtype))
        kinds = {*context.geom_ray_types, *(int(kind) for kind in sites)}
        if strings:
            kinds |= {int(mujoco.mjtGeom.mjGEOM_CAPSULE), int(mujoco.mjtGeom.mjGEOM_CYLINDER)}
        context.geom_ray_types = tuple(sorted(kinds))
        context.enabled_geom_ids = self._warp.array(enabled, dtype=int)
        context.bvh_ngeom = len(enabled)
        count = len(enabled) + context.bvh_nflexgeom
        context.lower = self._warp.zeros(count, dtype=self._warp.vec3)
        context.upper = self._warp.zeros(count, dtype=self._warp.vec3)
        context.group = self._warp.zeros(count, dtype=int)
        start = mujoco.MjData(model)
        mujoco.mj_forward(model, start)
        more = np.zeros((spare, 3)), np.zeros((spare, 9))
        self._bvh.build_scene_bvh(
            types.SimpleNamespace(
                ngeom=model.ngeom + spare,
                geom_type=shapes.geom_type.numpy(),
                geom_dataid=shapes.geom_dataid.numpy()[0],
                geom_size=shapes.geom_size.numpy()[0],
                flex_vertadr=model.flex_vertadr,
                flex_vertnum=model.flex_vertnum,
                flex_edge=model.flex_edge,
                flex_radius=model.flex_radius,
            ),
            types.SimpleNamespace(
                geom_xpos=np.concatenate([start.geom_xpos, more[0]]),
                geom_xmat=np.concatenate([start.geom_xmat, more[1]]),
                flexvert_xpos=start.flexvert_xpos,
            ),
            context,
            1,
        )

    def _update_spare_geoms(self, data: mujoco.MjData, model: mujoco.MjModel) -> None:
        scene = self._scene
        assert scene is not None
        every = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(model, data, self._option, self._nobody, self._viewer, every, scene)
        at = self._geoms
        shapes, places = self._of_model, self._of_data
        shapes["geom_rgba"][at:] = 0.0  # unused ones are invisible
        for geom in scene.geoms[: min(scene.ngeom, len(self._geom_type) - at)]:
            kind, size = geom.type, geom.size
            # Scenes have three half sizes; models have a radius and half a length.
            long = kind in (mujoco.mjtGeom.mjGEOM_CAPSULE, mujoco.mjtGeom.mjGEOM_CYLINDER)
            self._geom_type[at] = kind
            shapes["geom_matid"][at] = geom.matid
            shapes["geom_size"][at] = (size[0], size[2], 0.0) if long else size
            shapes["geom_rgba"][at] = geom.rgba
            places["geom_xpos"][at] = geom.pos
            places["geom_xmat"][at] = geom.mat.reshape(9)
            at += 1


def _import_tracer() -> tuple[Any, Any, Any]:
    try:
        import warp

        # Warp prints a greeting and each compilation to standard output.
        warp.config.log_level = max(warp.config.log_level, warp.LOG_WARNING)
        import mujoco_warp
        from mujoco_warp._src import bvh
    except ImportError as error:
        raise KstepError(
            f"ray-traced frames need mujoco_warp ({error}): {extras.command('fast-render')}"
        ) from error
    return warp, mujoco_warp, bvh


def _smooth_sky(model: mujoco.MjModel, height: int, fovy: float) -> None:
    """Average the sky over the width of a pixel: its stars are smaller and would flicker."""
    for texture in np.flatnonzero(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX):
        side, channels = int(model.tex_width[texture]), int(model.tex_nchannel[texture])
        start, size = int(model.tex_adr[texture]), 6 * side * side * channels
        # Each of the six faces spans 90 degrees.
        width = round(side * math.tan(math.radians(fovy) / 2) / height)
        if width > 1 and start >= 0:
            faces = model.tex_data[start : start + size].reshape(6, side, side, channels)
            faces[:] = uniform_filter(faces, (0, width, width, 0), mode="nearest")


def _free_camera(model: mujoco.MjModel) -> tuple[Array, Array]:
    """Return position (3,) and orientation (9,) of the camera that looks at the whole model."""
    camera = mujoco.MjvCamera()
    mujoco.mjv_defaultFreeCamera(model, camera)
    azimuth, elevation = math.radians(camera.azimuth), math.radians(camera.elevation)
    level, steep = math.cos(elevation), math.sin(elevation)
    east, north = math.cos(azimuth), math.sin(azimuth)
    forward = np.array([level * east, level * north, steep])
    up = np.array([-steep * east, -steep * north, level])
    axes = np.stack([np.cross(forward, up), up, -forward], axis=1)
    return camera.lookat - camera.distance * forward, axes.ravel()
