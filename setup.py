"""The one thing pyproject.toml cannot say: a C++ library that is built where a compiler is.

It is loaded with ctypes (kstep/native/library.py), so it needs no header of Python or PyTorch.
Where it cannot be built, the package is installed without it and everything runs through PyTorch.
"""

from setuptools import Extension, setup

FOLDER = "src/kstep/native"

setup(
    ext_modules=[
        Extension(
            "kstep.native._encoder",
            sources=[f"{FOLDER}/{name}.cpp" for name in ("encoder", "stacks", "avx2", "avx512")],
            depends=[f"{FOLDER}/{name}.h" for name in ("kernels", "winograd", "pool")],
            # Each source chooses its own instruction set, so the same library serves any x86-64.
            # The two warnings are wrong ones about GCC's own headers (GCC bug 105593).
            extra_compile_args=[
                "-O3",
                "-g0",
                "-std=c++17",
                "-ffp-contract=off",  # or the compiler would round as each instruction set likes
                "-Wall",
                "-Wno-uninitialized",
                "-Wno-maybe-uninitialized",
                "-pthread",
            ],
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
    ]
)
