"""Storage that is really full: a tiny file system where this user may mount one, and a limit on file sizes anywhere.

Both make the operating system refuse a write, in the middle of a file, as a full disk does. The tiny file system can
also become read-only, as one does whose disk is failing.
"""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

KINDS = ("mount", "limit")


@contextmanager
def small_disk(kind: str, folder: Path, size: int) -> Iterator[Path]:
    """A folder whose files cannot grow beyond ``size`` bytes: in all ("mount"), or each ("limit")."""
    folder.mkdir()
    with _mounted(folder, size) if kind == "mount" else limited(size):
        yield folder


@contextmanager
def _mounted(folder: Path, size: int) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(_mounts("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)))
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("this user may not mount file systems; the same test with a limit on file sizes has run")
        yield


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody can open a file for writing below the folder while this lasts, nor make, rename or remove one.

    A read-only view of it is mounted over it. `mount -o remount,ro` would be refused as long as any file is open for
    writing, which one of a sink always is; here it is written on, and cannot get its name.
    """
    view = folder.with_name(f"{folder.name}-view")
    view.mkdir()
    with _mounts("-o", "bind,ro", str(folder), str(view)), _mounts("--bind", str(view), str(folder)):
        yield


@contextmanager
def _mounts(*arguments: str) -> Iterator[None]:
    """The last argument is the place."""
    subprocess.run(["mount", *arguments], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", arguments[-1]], check=True)


@contextmanager
def limited(size: int) -> Iterator[None]:
    """No file of this process grows beyond ``size`` bytes while this lasts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Python ignores the signal that would come with it, so the write fails with EFBIG
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
