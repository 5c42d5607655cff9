"""What is said to be stored is there after a power cut, and nothing is synced more often than it needs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from pyarrow import fs

from penstock.actors.claims.place import temporary_place
from penstock.actors.storage.stores import open_store
from penstock.engine.files.durable import LOCAL, make_durable, make_folder, put_file
from support.forgetful_disk import ForgetfulDisk, Moment

SEEDS = range(16)


def moments_of(root: Path, work: Callable[[], None]) -> list[Moment]:
    disk = ForgetfulDisk(root)
    with disk.watched():
        work()
    return disk.moments


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


def test_folder_is_there_with_all_above_it(root: Path, tmp_path: Path) -> None:
    moments = moments_of(root, lambda: make_folder(LOCAL, str(root / "a" / "b" / "c")))
    assert (moments[-1].survivors(tmp_path / "left") / "a" / "b" / "c").is_dir()


def test_folder_that_somebody_else_made_a_moment_ago_is_synced_too(root: Path, tmp_path: Path) -> None:
    def work() -> None:
        (root / "a" / "b").mkdir(parents=True)
        make_folder(LOCAL, str(root / "a" / "b"))

    assert (moments_of(root, work)[-1].survivors(tmp_path / "left") / "a" / "b").is_dir()


def test_store_that_is_only_read_syncs_nothing_and_what_it_creates_is_there_with_all_above_it(
    root: Path, tmp_path: Path
) -> None:
    assert moments_of(root, lambda: open_store(root / "a" / "state").list("")) == []
    moments = moments_of(root, lambda: open_store(root / "a" / "state").create("log/1", b"x") or None)
    assert (moments[-1].survivors(tmp_path / "left") / "a" / "state" / "log" / "1").read_bytes() == b"x"


def test_what_a_job_keeps_for_itself_alone_is_not_synced(monkeypatch: pytest.MonkeyPatch) -> None:
    place = temporary_place()
    monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("a sync"))
    try:
        assert open_store(place.folder).create("log/1", b"x")
        make_folder(LOCAL, f"{place.folder}/state")
        put_file(LOCAL, f"{place.folder}/state/x", b"x")
    finally:
        place.release()


def test_folder_behind_a_link_is_synced_where_it_is(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    moments = moments_of(root, lambda: make_folder(LOCAL, str(tmp_path / "link" / "a" / "b")))
    assert (moments[-1].survivors(tmp_path / "left") / "a" / "b").is_dir()


def test_file_in_the_place_of_a_folder_is_an_error(root: Path) -> None:
    (root / "a").write_text("")
    with pytest.raises(OSError, match=r"Not a directory|File exists"):
        make_folder(LOCAL, str(root / "a" / "b"))


def test_files_of_one_folder_are_synced_and_the_folder_once(root: Path, tmp_path: Path) -> None:
    paths = [root / name for name in "abc"]

    def work() -> None:
        for path in paths:
            path.write_text(path.name)
        make_durable(LOCAL, *map(str, paths))

    moments = moments_of(root, work)
    assert len(moments) == 2 * (len(paths) + 1)
    left = moments[-1].survivors(tmp_path / "left")
    assert [(left / path.name).read_text() for path in paths] == ["a", "b", "c"]


def test_file_is_replaced_whole_whenever_the_power_is_cut(root: Path, tmp_path: Path) -> None:
    (root / "x").write_text("old")
    moments = moments_of(root, lambda: put_file(LOCAL, str(root / "x"), b"new"))
    for number, moment in enumerate(moments):
        for seed in SEEDS:
            left = moment.survivors(tmp_path / f"{number}-{seed}", Random(seed))
            assert (left / "x").read_text() in {"old", "new"}
    assert (moments[-1].survivors(tmp_path / "left") / "x").read_text() == "new"


def test_file_that_cannot_be_written_leaves_nothing_beside_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        put_file(LOCAL, str(root / "x"), b"new")
    assert list(root.iterdir()) == []


def test_file_system_that_does_not_sync_folders_is_as_good_as_it_can_be(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.fsync

    def only_files(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(22, "Invalid argument")
        really(descriptor)

    monkeypatch.setattr(os, "fsync", only_files)
    make_folder(LOCAL, str(root / "a"))
    put_file(LOCAL, str(root / "a" / "x"), b"new")
    assert (root / "a" / "x").read_bytes() == b"new"


def test_other_file_systems_store_by_themselves(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("a sync"))
    other = fs.SubTreeFileSystem(str(root), LOCAL)
    make_folder(other, "a/b")
    put_file(other, "a/b/x", b"new")
    assert (root / "a" / "b" / "x").read_bytes() == b"new"
