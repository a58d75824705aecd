"""One thread everywhere: tests must not fight for cores, nor bits depend on their number."""

import os
import signal

os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import torch

from tests.authors.report import pytest_terminal_summary as pytest_terminal_summary

torch.set_num_threads(1)
# What a shell starts in the background ignores Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)
