"""How fast a learning step is, what it spends its time on, and whether that keeps our promises.

In: sections to measure and a size. Out: tables, a JSON file and a figure. Everything is timed in
turns, round after round, so that other load on the machine affects all of it alike; medians and
ratios of medians are reported. See docs/speed.md.

options.py     what to measure, how long; sizes.py: how large
timing.py      work in turns, medians
steps.py       learning steps: agents, filled replays, the plain reference of benchmarks/plain.py
parts.py       what one learning step spends its time on; how much it convolves
encoder.py     the encoder alone, by PyTorch and by our kernels; matrix products
memory.py      a full replay and a complete training process, in a process of their own
renderers.py   stepping and rendering an environment
results.py     medians to results, results to promises
report.py      results as tables; figure.py: as a picture
measure.py     all of it in one run
doctor.py      whether this machine can train at all
"""
