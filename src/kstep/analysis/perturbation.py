"""How far do latents move when the image changes but the state does not?

The paper's perturbation figures: three versions of every state under random translation, random
erasing and Gaussian noise, and the mean l2 distance between their latents; and its appendix table
of how much that changes from one saved encoder to the next. The table's third column is titled
"Flipping" where text and figures have noise, so both are computed (D21).

What the paper leaves open, decided here: translation by up to 4 pixels each way, the border pixel
repeated; one erased rectangle of 2 % to 33 % of the image, black (Zhong et al. 2017,
arXiv:1708.04896, the defaults of image libraries); noise of standard deviation 0.15 where white is
1, clipped to black and white and rounded to bytes; a mirror image, left to right, against the
original. All frames of a stack change alike, except that noise is independent for every pixel.

Ten more images per state make this by far the most expensive question, so by default only `STATES`
states, evenly spaced over the set, are perturbed; the table has their number and the resulting
standard error.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from scipy.special import ndtri

from kstep.analysis.curves import Figure, canvas, lines
from kstep.analysis.distances import share
from kstep.analysis.tables import Row, Value, grouped
from kstep.data.augment import cut
from kstep.types import Array

VERSIONS = 3
STATES = 250
TRANSLATE = 4
ERASE_AREA = (0.02, 0.33)
ERASE_ASPECT = (0.3, 3.3)
NOISE = 0.15

NOISE_LEVELS = np.rint(255 * NOISE * ndtri((np.arange(2**16) + 0.5) / 2**16)).astype(np.int16)
"""Quantiles of the normal distribution in units of a byte. Choosing one of them at random is many
times faster than sampling a normal number and, after rounding, equivalent."""

Perturb = Callable[[Array, np.random.Generator], Array]
"""Stacks (B, S, H, W, C) uint8 to one version of them."""


@dataclass(frozen=True)
class Perturbation:
    """Mean distance between latents of several versions of one state."""

    distance: float
    normalized: float
    """As a share of the typical distance between two unperturbed states."""
    error: float
    """Standard error of the distance, as if states were independent; nan for a single one."""
    states: int


def translated(stacks: Array, rng: np.random.Generator) -> Array:
    offsets = rng.integers(0, 2 * TRANSLATE + 1, (len(stacks), 2))
    height, width = stacks.shape[-3:-1]
    return np.asarray(cut(stacks, offsets, height, width, pad=TRANSLATE))


def erased(stacks: Array, rng: np.random.Generator) -> Array:
    height, width = stacks.shape[2:4]
    changed = stacks.copy()
    area = rng.uniform(*ERASE_AREA, len(stacks)) * height * width
    aspect = np.exp(rng.uniform(math.log(ERASE_ASPECT[0]), math.log(ERASE_ASPECT[1]), len(stacks)))
    tall = np.clip(np.rint(np.sqrt(area * aspect)), 1, height).astype(int)
    wide = np.clip(np.rint(np.sqrt(area / aspect)), 1, width).astype(int)
    top = rng.integers(0, height - tall + 1)
    left = rng.integers(0, width - wide + 1)
    for i, stack in enumerate(changed):
        stack[:, top[i] : top[i] + tall[i], left[i] : left[i] + wide[i]] = 0
    return changed


def noisy(stacks: Array, rng: np.random.Generator) -> Array:
    noise: Array = NOISE_LEVELS[rng.integers(0, len(NOISE_LEVELS), stacks.shape, np.uint16)]
    noise += stacks
    np.clip(noise, 0, 255, out=noise)
    return noise.astype(np.uint8)


def mirrored(stacks: Array, rng: np.random.Generator) -> Array:
    return np.ascontiguousarray(stacks[:, :, :, ::-1])


PERTURBATIONS: dict[str, Perturb] = {
    "translation": translated,
    "erasing": erased,
    "noise": noisy,
    "flipping": mirrored,
}
AGAINST_ORIGINAL = "flipping"
"""There is only one mirror image: it is compared with the state itself."""


def perturbation(versions: Array, unperturbed: Array) -> Perturbation:
    """Measure latents (V, N, D) of V versions of N states; `unperturbed` (M, D) are latents of
    unchanged states, not necessarily the same ones."""
    versions = np.asarray(versions, np.float64)
    pairs = [
        np.linalg.norm(versions[i] - versions[j], axis=1)
        for i, j in combinations(range(len(versions)), 2)
    ]
    per_state = np.mean(pairs, axis=0)
    distance, count = float(per_state.mean()), len(per_state)
    error = float(per_state.std(ddof=1)) / math.sqrt(count) if count > 1 else float("nan")
    return Perturbation(distance, share(distance, unperturbed), error, count)


def changes_in_sensitivity(rows: Sequence[Row]) -> list[dict[str, Value]]:
    """Return per label, task and perturbation the mean absolute difference from one saved encoder
    to the next, over marks and then over seeds: the paper's appendix table.

    Like the paper's, it begins with the first mark after 0, and only equally spaced marks count: a
    run also saves its last encoder, at whatever step that is.
    """
    changes = []
    for (label, task, kind), own in grouped(rows, "label", "task", "perturbation").items():
        trained = [row for row in own if int(row["env_steps"]) > 0]
        gaps = {seed: _gaps(of_run) for (seed,), of_run in grouped(trained, "seed").items()}
        apart = Counter(far for found in gaps.values() for far, _, _ in found)
        usual = max(apart, key=lambda far: (apart[far], far), default=0)
        kept = {
            seed: [(before, after) for far, before, after in found if far == usual]
            for seed, found in gaps.items()
        }
        change: dict[str, Value] = {
            "label": label,
            "task": task,
            "perturbation": kind,
            "seeds": sum(bool(pairs) for pairs in kept.values()),
            "every": usual,
        }
        for column in ("distance", "normalized"):
            per_seed = [
                np.mean([abs(float(after[column]) - float(before[column])) for before, after in p])
                for p in kept.values()
                if p
            ]
            change[column] = float(np.mean(per_seed)) if per_seed else float("nan")
        changes.append(change)
    return changes


def _gaps(rows: Sequence[Row]) -> list[tuple[int, Row, Row]]:
    """Return one run's successive rows and the env_steps between them."""
    ordered = sorted(rows, key=lambda row: int(row["env_steps"]))
    return [
        (int(after["env_steps"]) - int(before["env_steps"]), before, after)
        for before, after in pairwise(ordered)
    ]


def figure(rows: Sequence[Row]) -> Figure:
    """Draw a column per perturbation: distances, once more on the others' scale where SAC from
    pixels dwarfs them, as the paper does, and shares of the typical distance."""
    kinds = list(dict.fromkeys(str(row["perturbation"]) for row in rows))
    others = [row for row in rows if not str(row["label"]).startswith("sac_pixel")]
    parts = [
        ("distance", "l2 distance", False),
        ("normalized", "share of the typical distance", False),
    ]
    if others and len(others) < len(rows):
        parts.insert(0, ("distance", "l2 distance, the others' scale", True))
    shown = canvas(3.6 * len(kinds), 2.8 * len(parts))
    grid = shown.subplots(len(parts), len(kinds), squeeze=False)
    for line, (column, title, scaled) in zip(grid, parts, strict=True):
        for axes, kind in zip(line, kinds, strict=True):
            lines(axes, [row for row in rows if row["perturbation"] == kind], column)
            axes.set(title=f"{kind}: {title}", xlabel="env_steps")
            axes.title.set_fontsize(9)
            if scaled:
                most = max(float(row[column]) for row in others if row["perturbation"] == kind)
                axes.set_ylim(0.0, 1.1 * most or 1.0)
    grid[0][0].legend()
    return shown
