"""One thread everywhere: tests must not fight for cores, nor bits depend on their number."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import torch

torch.set_num_threads(1)
