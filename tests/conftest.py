"""One thread everywhere: tests must not fight for cores, nor bits depend on their number."""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import torch

from tests.authors.report import pytest_terminal_summary as pytest_terminal_summary

torch.set_num_threads(1)
