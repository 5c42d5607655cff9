"""Whether a file is read without waiting for a disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.engine.files import cached
from penstock.engine.files.cached import is_cached

SIZE = 4 * 1024 * 1024


def test_file_that_was_read_is_at_hand_and_one_that_was_dropped_is_not(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_bytes(os.urandom(SIZE))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        file.read()
        assert is_cached(str(path), SIZE)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if path_is_on_a_disk(tmp_path):
        assert not is_cached(str(path), SIZE)


def path_is_on_a_disk(path: Path) -> bool:
    """What a file system in memory holds cannot be dropped."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines()]
    inside = [(len(place), kind) for _, place, kind, *_ in mounts if path.is_relative_to(place)]
    return max(inside)[1] not in ("tmpfs", "ramfs", "overlay")


def test_missing_file_an_empty_one_and_one_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    assert not is_cached(str(path), 10)
    path.write_bytes(b"")
    assert is_cached(str(path), 0)
    assert not is_cached(str(path), 10)  # whoever reads it says that it is shorter
    path.write_bytes(b"x")
    assert is_cached(str(path), 1)


def test_system_that_cannot_tell_may_have_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows"
    path.write_bytes(b"rows")
    monkeypatch.setattr(cached, "_NOW", None)
    assert not is_cached(str(path), 4)
