"""Three principal components to rotate with the mouse: one self-contained HTML file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from kstep.analysis.tables import Row, grouped

PAGE = """<!doctype html>
<meta charset="utf-8"><title>reward-pca</title>
<style>
 body { font: 14px sans-serif; margin: 1em; background: #fff; color: #222 }
 canvas { border: 1px solid #ccc; cursor: grab; touch-action: none }
</style>
<h3>reward-pca</h3>
<label>encoder <select id="which"></select></label>
<span>colour is the reward, from %(low)s (dark) to %(high)s (bright); drag to rotate</span><br>
<canvas id="view" width="720" height="560"></canvas>
<script>
const clouds = %(clouds)s;
const canvas = document.getElementById("view"), pen = canvas.getContext("2d");
const which = document.getElementById("which");
clouds.forEach((cloud, i) => which.add(new Option(cloud.name, i)));
let turn = 0.6, tilt = 0.4, held = null;
function colour(level) { return `hsl(${270 - 220 * level} 80%% ${30 + 35 * level}%%)`; }
function draw() {
  const cloud = clouds[which.value || 0], scale = 0.42 * canvas.height;
  pen.clearRect(0, 0, canvas.width, canvas.height);
  const dots = cloud.points.map(([x, y, z, level]) => {
    const across = x * Math.cos(turn) + z * Math.sin(turn);
    const deep = z * Math.cos(turn) - x * Math.sin(turn);
    return [across, y * Math.cos(tilt) - deep * Math.sin(tilt),
            y * Math.sin(tilt) + deep * Math.cos(tilt), level];
  }).sort((a, b) => a[2] - b[2]);
  for (const [x, y, z, level] of dots) {
    pen.fillStyle = colour(level);
    pen.beginPath();
    pen.arc(canvas.width / 2 + scale * x, canvas.height / 2 - scale * y, 2.2 + z, 0, 7);
    pen.fill();
  }
}
canvas.onpointerdown = e => {
  held = [e.clientX, e.clientY]; canvas.setPointerCapture(e.pointerId);
};
canvas.onpointerup = () => { held = null; };
canvas.onpointermove = e => {
  if (!held) return;
  turn += (e.clientX - held[0]) / 120; tilt += (e.clientY - held[1]) / 120;
  held = [e.clientX, e.clientY]; draw();
};
which.onchange = draw;
draw();
</script>
"""


def page(points: Sequence[Row]) -> str:
    """Return the page for the rows of the table `reward-pca-points`."""
    rewards = np.array([float(point["reward"]) for point in points])
    low, high = float(rewards.min()), float(rewards.max())
    clouds = []
    encoders = grouped(points, "label", "task", "seed", "env_steps")
    for (label, task, seed, mark), own in encoders.items():
        name = f"{label} {task} seed {seed} at {mark:,} env_steps"
        level = (np.array([float(p["reward"]) for p in own]) - low) / ((high - low) or 1.0)
        positions = np.array([[float(p[axis]) for axis in ("pc1", "pc2", "pc3")] for p in own])
        positions /= np.linalg.norm(positions, axis=1).max() or 1.0  # into the unit ball
        spots = np.column_stack((positions, level))
        clouds.append({"name": name, "points": spots.round(3).tolist()})
    return PAGE % {"low": f"{low:.3g}", "high": f"{high:.3g}", "clouds": in_script(clouds)}


def in_script(value: Any) -> str:
    """Return a value for the inside of a <script>: no text in it can end the script, begin another
    or begin a comment, after which a browser would not see the script's end."""
    text = json.dumps(value, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
