"""Compiles engine/kernels/native.c and pages.c into the wheel (and into the checkout, for an editable install).

The compiler is ``$CC``, else the machine's, else Zig's from its wheel (``pip install ziglang``). Without any the
package is built all the same: everything works by the twins in numpy, only slower. ``PENSTOCK_WHEEL`` names the
platform of a wheel for another machine, which Zig then compiles for: ``make wheels``.

An editable install is a folder of links, because type checkers and IDEs look for files: the finder that setuptools
makes by default says nothing to them. ``--config-settings editable_mode=lenient`` asks for the finder, which sees new
files at once: ``make venv``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import ClassVar

from setuptools import Command, Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.editable_wheel import editable_wheel

ROOT = Path(__file__).parent
FOLDER = ROOT / "engine" / "kernels"
SOURCES = [FOLDER / "native.c", FOLDER / "pages.c"]
FLAGS = ["-O3", "-std=c11", "-shared", "-fPIC", "-fvisibility=hidden"]

# platform of a wheel: what Zig calls it, and how a shared library is named there
TARGETS = {
    "manylinux_2_17_x86_64": ("x86_64-linux-gnu.2.17", ".so"),
    "manylinux_2_17_aarch64": ("aarch64-linux-gnu.2.17", ".so"),
    "macosx_11_0_arm64": ("aarch64-macos.11.0", ".dylib"),
    "win_amd64": ("x86_64-windows-gnu", ".dll"),
}
HERE = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
WHEEL = os.environ.get("PENSTOCK_WHEEL", "")


def compile_kernels(folder: Path) -> Path | None:
    """The compiled library in ``folder``; None if there is no compiler, or it fails."""
    target, suffix = TARGETS[WHEEL] if WHEEL else ("", HERE)
    library = folder / f"_native{suffix}"
    folder.mkdir(parents=True, exist_ok=True)
    for compiler in _compilers(target):
        with tempfile.TemporaryDirectory(dir=folder) as aside:  # for Windows an import library comes along
            building = Path(aside, library.name)
            try:
                subprocess.run(
                    [*compiler, *FLAGS, *map(str, SOURCES), "-o", str(building)], check=True, capture_output=True
                )
            except (OSError, subprocess.CalledProcessError) as error:
                detail = getattr(error, "stderr", b"").decode(errors="replace")
                print(f"penstock: the kernels cannot be compiled: {error}\n{detail}", file=sys.stderr)
                continue
            building.replace(library)  # a process may have the old one open
            return library
    print("penstock: built without compiled kernels; install a C compiler or ziglang for them", file=sys.stderr)
    library.unlink(missing_ok=True)
    return None


def _compilers(target: str) -> list[list[str]]:
    zig = [sys.executable, "-m", "ziglang", "cc"]
    if target:
        return [[*zig, "-target", target, "-s"]]
    named = os.environ.get("CC", "").split()
    found = [[each] for each in ("cc", "gcc", "clang") if shutil.which(each)]
    return [named] if named else [*found[:1], zig]


class CompileKernels(Command):
    """``python setup.py compile_kernels``: for an editable install whose sources have changed."""

    user_options: ClassVar[list[tuple[str, str, str]]] = []

    def initialize_options(self) -> None:
        pass

    def finalize_options(self) -> None:
        pass

    def run(self) -> None:
        if compile_kernels(FOLDER) is None:
            raise SystemExit(1)


class BuildPy(build_py):
    """The package's modules, and the library beside them."""

    def run(self) -> None:
        super().run()
        built = Path(self.build_lib) / "penstock" / "engine" / "kernels"
        self._library = compile_kernels(FOLDER if self.editable_mode else built)

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        # the checkout's root is the package
        return [each for each in found if each[0] != "penstock" or each[1] not in ("noxfile", "setup")]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs = super().get_outputs(include_bytecode)
        library = getattr(self, "_library", None)
        return outputs if self.editable_mode or not library else [*outputs, str(library)]

    def get_output_mapping(self) -> dict[str, str]:
        """What an editable install links to: the library, too, which its next compilation replaces."""
        mapping = super().get_output_mapping()
        library = getattr(self, "_library", None)
        if library:
            mapping[str(Path(self.build_lib, "penstock", "engine", "kernels", library.name))] = str(library)
        return mapping


class EditableWheel(editable_wheel):
    """An editable install that type checkers see, unless another one is asked for."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.mode = self.mode or "strict"


class BdistWheel(bdist_wheel):
    """One wheel for a platform and every Python: the library knows nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        platform = WHEEL or sysconfig.get_platform().replace("-", "_").replace(".", "_")
        return "py3", "none", platform


class WithLibrary(Distribution):
    """A package that is not the same on every platform."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    distclass=WithLibrary,
    cmdclass={
        "compile_kernels": CompileKernels,
        "build_py": BuildPy,
        "bdist_wheel": BdistWheel,
        "editable_wheel": EditableWheel,
    },
)
