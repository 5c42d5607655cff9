"""The store on a file system: what every store promises, races, crashes, and disks that are full."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from threading import Barrier

import pytest

from penstock.actors.storage.stores import FileStore, open_store
from penstock.engine.core.errors import ConfigurationError
from support.forgetful_disk import ForgetfulDisk
from support.small_disk import KINDS, small_disk


def refuse_links(source: str, target: str) -> None:
    """What a file system without hard links answers."""
    raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP), source)


LINKS: dict[str, Callable[[str, str], None]] = {"links": os.link, "no links": refuse_links}


@pytest.fixture(params=LINKS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "state", LINKS[request.param])


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob(".*") if not path.name.startswith(".claim"))


def test_created_key_can_be_read(store: FileStore) -> None:
    assert store.create("job/log/1", b"one")
    assert store.read("job/log/1") == b"one"
    assert store.read("job/log/2") is None
    assert store.read("job/log") is None


def test_key_is_created_once_and_keeps_its_first_bytes(store: FileStore) -> None:
    assert store.create("log/1", b"one")
    assert not store.create("log/1", b"two")
    assert not store.create("log/1", b"one")
    assert store.read("log/1") == b"one"


def test_no_bytes_at_all_are_bytes_too(store: FileStore) -> None:
    assert store.create("empty", b"")
    assert store.read("empty") == b""
    assert not store.create("empty", b"x")


def test_list_gives_the_keys_of_a_prefix_sorted(store: FileStore) -> None:
    for key in ["a/log/2", "a/log/1", "a/log/10", "ab/log/1", "b", "a/state/x/y"]:
        assert store.create(key, key.encode())
    assert store.list("a/log/") == ["a/log/1", "a/log/10", "a/log/2"]
    assert store.list("a/log/1") == ["a/log/1", "a/log/10"]
    assert store.list("a") == ["a/log/1", "a/log/10", "a/log/2", "a/state/x/y", "ab/log/1"]
    assert len(store.list("")) == 6
    assert store.list("c/") == store.list("b/") == []


def test_deleted_key_is_gone_and_may_be_created_again(store: FileStore) -> None:
    store.create("log/1", b"one")
    store.delete("log/1")
    store.delete("log/1")
    store.delete("never/there")
    assert store.read("log/1") is None
    assert store.list("") == []
    assert store.create("log/1", b"two")


def test_folder_that_is_gone_is_not_made_again(store: FileStore, tmp_path: Path) -> None:
    """What stood in it is gone as well: who finds the next entry alone would take it for all."""
    store.create("job/log/1", b"one")
    (tmp_path / "state").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError) as caught:
        store.create("job/log/2", b"two")
    assert caught.value.filename == str(tmp_path / "state/job/log")
    assert not (tmp_path / "state").exists()
    (tmp_path / "elsewhere").rename(tmp_path / "state")
    assert store.create("job/log/2", b"two")


def test_another_store_of_the_folder_sees_the_same_keys(store: FileStore, tmp_path: Path) -> None:
    store.create("log/1", b"one")
    again = FileStore(tmp_path / "state")
    assert again.list("") == ["log/1"]
    assert again.read("log/1") == b"one"
    assert not again.create("log/1", b"two")


@pytest.mark.parametrize("key", ["", "/etc/x", "a/../b", "..", "a//b", "a/", ".hidden", "a/.b", "a\0b"])
def test_key_that_is_no_plain_relative_path_is_refused(store: FileStore, key: str) -> None:
    for use in (store.read, store.delete, lambda name: store.create(name, b"x")):
        with pytest.raises(ConfigurationError, match="cannot be a key"):
            use(key)


def test_no_other_files_are_left_beside_the_keys(store: FileStore, tmp_path: Path) -> None:
    for _ in range(2):
        store.create("log/1", b"one")
    assert left_behind(tmp_path) == []


# ---------------------------------------------------------------- races


def test_of_many_threads_exactly_one_creates_a_key(store: FileStore) -> None:
    threads, keys = 8, 40
    together = Barrier(threads)

    def race(thread: int) -> list[bool]:
        won = []
        for number in range(keys):
            together.wait()
            won.append(try_create(store, f"log/{number}", str(thread).encode() * 10_000))
        return won

    with ThreadPoolExecutor(threads) as pool:
        results = list(pool.map(race, range(threads)))
    for number in range(keys):
        winners = [thread for thread in range(threads) if results[thread][number]]
        assert len(winners) == 1
        assert store.read(f"log/{number}") == str(winners[0]).encode() * 10_000


def try_create(store: FileStore, key: str, data: bytes) -> bool:
    """Whether this call created the key. Without links a key may be busy, which is an error and no success."""
    try:
        return store.create(key, data)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False


RACER = """
    import sys
    from penstock.actors.storage.stores import FileStore

    folder, name, keys = sys.argv[1:]
    store = FileStore(folder)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(int(keys)):
        if store.create(f"log/{number}", name.encode() * 1000):
            print(number, flush=True)
"""


def test_of_several_processes_exactly_one_creates_a_key(tmp_path: Path) -> None:
    keys, command = 100, [sys.executable, "-c", dedent(RACER), str(tmp_path)]
    racers = [
        subprocess.Popen([*command, name, str(keys)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in "abc"
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [{int(number) for number in racer.communicate(timeout=60)[0].split()} for racer in racers]
    assert sum(len(numbers) for numbers in won) == keys
    assert set.union(*won) == set(range(keys))
    store = FileStore(tmp_path)
    for name, numbers in zip("abc", won, strict=True):
        assert all(store.read(f"log/{number}") == name.encode() * 1000 for number in numbers)


def test_link_whose_reply_was_lost_counts_as_ours(tmp_path: Path) -> None:
    def link_and_lose_the_reply(source: str, target: str) -> None:
        os.link(source, target)
        raise FileExistsError(errno.EEXIST, "made by the request that was repeated", target)

    assert FileStore(tmp_path, link_and_lose_the_reply).create("log/1", b"one")
    assert FileStore(tmp_path).read("log/1") == b"one"


# ---------------------------------------------------------------- crashes and full disks


CRASHER = """
    import os, signal, sys
    from penstock.actors.storage.stores import FileStore

    folder, moment = sys.argv[1:]

    def die(*arguments):
        os.kill(os.getpid(), signal.SIGKILL)

    def refuse(source, target):
        raise OSError(95, "no links here")

    if moment == "rename":
        os.rename = die
    FileStore(folder, die if moment == "link" else refuse).create("log/1", b"x" * 1_000_000)
"""


@pytest.mark.parametrize("moment", ["link", "rename"])
def test_creator_that_dies_leaves_no_part_of_a_key(tmp_path: Path, moment: str) -> None:
    ended = subprocess.run([sys.executable, "-c", dedent(CRASHER), str(tmp_path), moment], check=False, timeout=60)
    assert ended.returncode == -9
    store = FileStore(tmp_path, LINKS["links" if moment == "link" else "no links"])
    assert store.read("log/1") is None
    assert store.list("") == []
    if moment == "rename":
        with pytest.raises(OSError, match=r"delete .*/log/\.claim\.1"):
            store.create("log/1", b"two")
        (tmp_path / "log" / ".claim.1").unlink()
    assert store.create("log/1", b"two")
    assert store.read("log/1") == b"two"


def test_key_that_its_writer_finds_standing_survives_a_power_cut(tmp_path: Path) -> None:
    """The key appeared, then its writer failed or died before it was synced: who asks again is told that it stands."""
    (tmp_path / "disk").mkdir()
    disk, store = ForgetfulDisk(tmp_path / "disk"), FileStore(tmp_path / "disk" / "state")
    with disk.watched():
        store.create("log/0", b"first")
        (tmp_path / "disk" / "state" / "log" / "1").hardlink_to(tmp_path / "disk" / "state" / "log" / "0")
        assert not store.create("log/1", b"first")
    left = FileStore(disk.moments[-1].survivors(tmp_path / "left") / "state")
    assert left.read("log/1") == b"first"


@pytest.mark.parametrize("kind", KINDS)
def test_full_disk_is_an_os_error_and_leaves_nothing(tmp_path: Path, kind: str) -> None:
    with small_disk(kind, tmp_path / "disk", 64 * 1024) as disk:
        store = FileStore(disk)
        assert store.create("log/1", b"x" * 1000)
        with pytest.raises(OSError, match=r"(No space left on device|File too large)"):
            store.create("log/2", bytes(200 * 1024))
        assert store.list("") == ["log/1"]
        assert left_behind(disk) == []
        assert store.create("log/2", b"small")


# ---------------------------------------------------------------- opening


def test_store_is_opened_by_path_and_by_url(tmp_path: Path) -> None:
    open_store(tmp_path / "a b" / "state").create("log/1", b"one")
    assert open_store((tmp_path / "a b" / "state").as_uri()).read("log/1") == b"one"


def test_place_without_a_create_if_absent_is_refused_with_what_is_supported() -> None:
    with pytest.raises(ConfigurationError, match="hdfs://host/state is on a file system") as caught:
        open_store("hdfs://host/state")
    assert "local path" in caught.value.remedy
    assert "s3://" in caught.value.remedy


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="cannot make the checkpoint folder"):
        open_store(tmp_path / "file" / "state")
