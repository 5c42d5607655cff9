"""Storage that is really full: a tiny file system where this user may mount one, and a limit on file sizes anywhere.

Both make the operating system refuse a write, in the middle of a file, as a full disk does.
"""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
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
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not mount file systems; the same test with a limit on file sizes has run")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


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
