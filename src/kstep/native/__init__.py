"""The encoder's convolutions in C++: optional, checked before use, never silently wrong.

PyTorch computes 3x3 convolutions directly. Winograd's algorithm needs a quarter of the
multiplications, and at 32 channels those are most of a learning step on a CPU; see README.md in
this folder. The library is built when the package is installed, if GCC is available, and loaded
with ctypes: it depends on neither Python nor PyTorch.

`choose` decides between `torch` and `native` for one shape of encoder: the library must exist,
support the processor, agree with PyTorch on a random batch, and be faster. `encoder.py` is the
function that PyTorch differentiates.
"""

from __future__ import annotations

from kstep.native.choice import NOTHING_TO_DO as NOTHING_TO_DO
from kstep.native.choice import BackendChoice as BackendChoice
from kstep.native.choice import choose as choose
from kstep.native.choice import expected as expected
from kstep.native.encoder import features as features
from kstep.native.encoder import usable as usable
from kstep.native.layers import decode as decode
from kstep.native.layers import decodes as decodes
from kstep.native.layers import linear as linear
from kstep.native.layers import reconstruction as reconstruction
from kstep.native.library import Decoding as Decoding
from kstep.native.library import Shape as Shape
from kstep.native.library import Unavailable as Unavailable
from kstep.native.library import kernels as kernels
from kstep.native.library import library_is_there as library_is_there
from kstep.native.library import load as load
from kstep.native.library import threads as threads
from kstep.native.library import use_threads as use_threads
from kstep.native.optimizers import Adam as Adam
from kstep.native.optimizers import lerp_ as lerp_
from kstep.types import Backend as Backend
