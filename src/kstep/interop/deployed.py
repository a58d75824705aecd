"""An exported policy by NumPy and ONNX Runtime alone; this one file can be copied anywhere.

policy = Policy("policy.onnx")      # written by: kstep export RUN -o policy.onnx
policy.reset()                      # at the start of every episode
action = policy.act(observation)    # as the environment gives it, and as it takes it
"""

import functools
import json
from collections import deque
from typing import Any

import numpy as np
import onnxruntime


class Policy:
    """Sees to the byte what its agent saw, and refuses anything else; `about` describes it."""

    def __init__(self, path: Any, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
        found = self.session.get_modelmeta().custom_metadata_map
        self.about = json.loads(found.get("kstep", "{}"))
        if self.about.get("format") != 1:
            raise ValueError(f"{path} is not what this version of kstep export writes")
        self._seen: deque[dict[str, Any]] = deque(maxlen=self.about["stack"])

    def reset(self) -> None:
        """Begin an episode: forget what was seen before."""
        self._seen.clear()

    def act(self, observation: Any) -> Any:
        """Return the action for an observation; the latent (D,), if an encoder was exported."""
        seen = self.see(observation)
        self._seen.extend([seen] * (1 if self._seen else self.about["stack"]))
        return self.run(**{k: np.stack([each[k] for each in self._seen])[None] for k in seen})[0]

    def run(self, **stacks: Any) -> Any:
        """The same for stacks: `image` (B, S, H, W, C) uint8, `vector` (B, S, D) float32."""
        return self.session.run(None, stacks)[0]

    def see(self, observation: Any) -> dict[str, Any]:
        """Return what it sees of an observation: `image` (H, W, C), `vector` (D,)."""
        sight, seen = self.about["sight"], {}
        if images := [_image(observation, each, sight) for each in sight["pictures"]]:
            seen["image"] = np.concatenate(images, axis=2)
        if parts := [_part(observation, *part) for part in sight["numbers"].items()]:
            seen["vector"] = np.concatenate([part.ravel().astype(np.float32) for part in parts])
        return seen


def _part(observation: Any, key: str, shape: Any = None) -> Any:
    if key and (not isinstance(observation, dict) or key not in observation):
        raise ValueError(f"an observation without {key!r}; needed is a dictionary with it")
    found = np.asarray(observation[key] if key else observation)
    fits = found.dtype.kind in "biuf" and np.isfinite(found.astype(np.float32)).all()
    if not fits or (shape is not None and found.shape != tuple(shape)):
        raise ValueError(f"observation {key} {found.shape} {found.dtype}; needed: {shape}, finite")
    return found


def _image(observation: Any, picture: Any, sight: Any) -> Any:
    """Return an image of an observation as the bytes (H, W, C) that the agent saw."""
    image, shape, white = _part(observation, picture["key"]), picture["shape"], picture["white"]
    drawn = sight["source"] == "render" and image.ndim == 3 and image.dtype == np.uint8
    if drawn and image.shape[0] / shape[0] == image.shape[1] / shape[1] > 1:
        image = resize(image, *shape[:2])  # a larger one of the same proportions
    if image.shape != tuple(shape) or (image.dtype.kind == "f") != picture["floats"]:
        needed = f"{shape} of {'floats' if picture['floats'] else 'whole numbers'}"
        raise ValueError(f"an image {image.shape} {image.dtype}; needed is {needed}")
    if image.dtype != np.uint8 or white != 255:
        if not (image.min() >= 0 and image.max() <= white * 1.001):  # so that NaN fails
            raise ValueError(f"an image from {image.min()} to {image.max()}, not 0 to {white}")
        image = np.rint(np.minimum(image * (255 / white), 255))
    ordered = image.transpose(picture["axes"]).astype(np.uint8)
    return resize(ordered.reshape(*ordered.shape[:2], -1), sight["height"], sight["width"])


def resize(image: Any, height: int, width: int) -> Any:
    """Average (H, W, C) uint8 over areas: first the width, as Pillow's BOX filter does it."""
    for axis, size in ((1, width), (0, height)):
        if image.shape[axis] != size:
            sums = np.moveaxis(image, axis, -1) @ _weights(image.shape[axis], size)
            image = np.moveaxis((sums.astype(np.int64) + (1 << 21)) >> 22, -1, axis)
    return image.astype(np.uint8)


@functools.lru_cache
def _weights(before: int, after: int) -> Any:
    """Return (before, after) whole numbers, 2^22 for 1; sums with them are exact."""
    reach = max(before / after, 1.0) / 2
    place, centre = np.arange(before)[:, None], (np.arange(after) + 0.5) * (before / after)
    weights = (place >= np.floor(centre - reach + 0.5)) & (place < np.floor(centre + reach + 0.5))
    at = (place - centre + 0.5) * (1.0 / (2 * reach))
    weights &= (at > -0.5) & (at <= 0.5)
    return np.floor(weights / weights.sum(0) * (1 << 22) + 0.5)
