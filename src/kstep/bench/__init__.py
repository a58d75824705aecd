"""How fast a learning step is, what it spends its time on, and whether that keeps our promises.

In: sections to measure and a size. Out: tables, a JSON file and a figure. Everything that is timed
is timed in turns, round after round, so that whatever else the machine does happens to all of it
alike; what is reported are medians and ratios of medians. See docs/speed.md.

sizes.py       how large, how often; the sections
timing.py      work in turns, medians
steps.py       learning steps: agents, filled replays, the plain reference of benchmarks/plain.py
parts.py       what one learning step spends its time on; how much it convolves
encoder.py     the encoder alone, by PyTorch and by our kernels; matrix products
memory.py      a full replay and a whole training process, in a process of their own
renderers.py   stepping and drawing an environment
results.py     medians to results, results to promises
report.py      results as tables; figure.py: as a picture
measure.py     all of it in one run
"""

from __future__ import annotations

from kstep.bench.measure import Options as Options
from kstep.bench.measure import bench as bench
