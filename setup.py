"""The one thing pyproject.toml cannot say: a C++ library that is built where GCC is.

It is loaded with ctypes (kstep/native/library.py), so it needs no header of Python or PyTorch.
Where it cannot be built, the package is installed without it and everything runs through PyTorch.
"""

import runpy
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

FOLDER = "src/kstep/native"
SOURCES = runpy.run_path(f"{FOLDER}/sources.py")["digest"](Path(FOLDER))


class Build(build_ext):
    """A build that may fail, and then leaves nothing."""

    def run(self) -> None:
        # What an earlier build left would stand in for one that failed, or for one that was skipped
        # because the files' times say nothing is new.
        self.force = True
        for extension in self.extensions:
            name = self.get_ext_filename(extension.name)
            (Path(self.build_lib) / name).unlink(missing_ok=True)
            if self.inplace:
                (Path("src") / name).unlink(missing_ok=True)
        super().run()


setup(
    cmdclass={"build_ext": Build},
    ext_modules=[
        Extension(
            "kstep.native._encoder",
            sources=sorted(glob(f"{FOLDER}/*.cpp")),
            depends=sorted(glob(f"{FOLDER}/*.h")),
            define_macros=[("KSTEP_SOURCES", f'"{SOURCES}"')],
            # Each source chooses its own instruction set, so the same library serves any x86-64.
            # The two warnings are wrong ones about GCC's own headers (GCC bug 105593).
            extra_compile_args=[
                "-O3",
                "-g0",
                "-std=c++17",
                "-ffp-contract=off",  # or the compiler would round as each instruction set likes
                "-fvisibility=hidden",  # see interface.h
                "-Wall",
                "-Wno-uninitialized",
                "-Wno-maybe-uninitialized",
                "-pthread",
            ],
            extra_link_args=["-pthread"],
            language="c++",
            optional=True,
        )
    ],
)
