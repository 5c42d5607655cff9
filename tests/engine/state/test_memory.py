"""Accounts and budgets, spill files, full disks, and that nothing stays behind."""

from __future__ import annotations

import gc
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.engine.core.errors import InternalError, StorageError
from penstock.engine.state.memory import MemoryStatistics, TaskMemory
from penstock.engine.state.spill import ArrowSpillFile
from support.small_disk import KINDS, small_disk

SCHEMA = pa.schema([("a", pa.int64()), ("s", pa.string())])


def rows(start: int, count: int) -> pa.RecordBatch:
    numbers = range(start, start + count)
    return pa.record_batch({"a": list(numbers), "s": [f"row {number}" for number in numbers]}, schema=SCHEMA)


def write_much(file: ArrowSpillFile) -> None:
    for start in range(0, 10**6, 1000):
        file.write(rows(start, 1000))


def test_one_operator_may_use_the_whole_budget_and_no_more() -> None:
    account = TaskMemory(100).account("sort-1")
    assert [account.hold(held) for held in (0, 99, 100, 101, 50)] == [False, False, False, True, False]
    assert account.statistics() == MemoryStatistics(held=50, peak=101)


def test_without_a_budget_nobody_spills() -> None:
    memory = TaskMemory(None)
    assert not memory.account("sort-1").hold(10**18)
    assert memory.statistics().peak == 10**18


def test_operators_that_hold_nothing_take_no_share() -> None:
    memory = TaskMemory(100)
    accounts = [memory.account(f"filter-{number}") for number in range(9)]
    accounts[0].hold(5)
    accounts[0].hold(0)
    assert not accounts[1].hold(100)


def test_only_those_above_their_share_spill_when_the_task_holds_too_much() -> None:
    memory = TaskMemory(100)
    greedy, modest, late = (memory.account(name) for name in ("window-1", "sort-1", "join-1"))
    assert greedy.hold(1000)  # and cannot do anything about it
    assert not modest.hold(50)
    assert modest.hold(51)
    assert not late.hold(33)
    assert modest.hold(34)  # three share now
    greedy.hold(0)
    assert not modest.hold(67)
    memory.validate()


def test_a_budget_of_nothing_spills_every_row_but_not_the_empty_account() -> None:
    account = TaskMemory(0).account("sort-1")
    assert [account.hold(held) for held in (1, 0)] == [True, False]


def test_accounts_of_several_threads_add_up() -> None:
    memory = TaskMemory(10)
    accounts = [memory.account(f"sort-{number}") for number in range(4)]

    def work(number: int) -> None:
        for held in range(2000):
            accounts[number].hold(held % 7)
        accounts[number].hold(number)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    memory.validate()
    assert memory.statistics().held == 6


def test_batches_come_back_in_their_order_as_often_as_wanted_and_outlive_their_file() -> None:
    memory = TaskMemory(0)
    account = memory.account("sort-1")
    file = account.spill(SCHEMA)
    for start in (0, 3):
        file.write(rows(start, 3))
    file.write(rows(9, 0))
    assert file.rows == 6
    found = list(file.read())
    assert [records.column("a").to_pylist() for records in file.read()] == [[0, 1, 2], [3, 4, 5]]
    memory.release()
    assert [records.column("s")[0].as_py() for records in found] == ["row 0", "row 3"]


def test_batches_are_read_without_taking_memory_or_file_handles() -> None:
    memory = TaskMemory(0)
    file = memory.account("sort-1").spill(pa.schema([("a", pa.int64())]))
    for _ in range(20):
        file.write(pa.record_batch({"a": pa.array(range(10_000), pa.int64())}))
    assert next(file.read()).num_rows == 10_000
    gc.collect()
    before = pa.total_allocated_bytes(), len(os.listdir("/proc/self/fd"))
    batches = list(file.read())
    assert sum(records.nbytes for records in batches) == 20 * 80_000
    assert pa.total_allocated_bytes() - before[0] < 80_000
    assert len(os.listdir("/proc/self/fd")) == before[1]
    memory.release()


def test_dictionaries_may_differ_from_batch_to_batch() -> None:
    memory = TaskMemory(0)
    columns = [pa.array(values).dictionary_encode() for values in (["b", "a"], ["c", None], ["a"])]
    file = memory.account("sort-1").spill(pa.schema([("k", columns[0].type)]))
    for column in columns:
        file.write(pa.record_batch({"k": column}))
    assert [records.column("k").to_pylist() for records in file.read()] == [["b", "a"], ["c", None], ["a"]]
    memory.release()


def test_a_file_that_has_been_read_takes_no_more() -> None:
    memory = TaskMemory(0)
    file = memory.account("sort-1").spill(SCHEMA)
    assert list(file.read()) == []
    with pytest.raises(InternalError, match="is complete"):
        file.write(rows(0, 1))
    memory.release()


def test_figures_and_folder_follow_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "spill" / "task"
    memory = TaskMemory(0, str(folder))
    account, other = memory.account("a sort/1"), memory.account("join-1")
    assert not folder.exists()
    files = [account.spill(SCHEMA), account.spill(SCHEMA), other.spill(SCHEMA)]
    files[0].write(rows(0, 10))
    files[2].write(rows(0, 10))
    size = rows(0, 10).nbytes
    assert sorted(os.listdir(folder)) == ["000-a-sort-1-00000.arrow", "001-join-1-00000.arrow"]
    assert memory.statistics() == MemoryStatistics(0, 0, 2 * size, 3, 3)
    files[0].delete()
    files[0].delete()
    assert memory.operators() == {
        "a sort/1": MemoryStatistics(0, 0, size, 2, 1),
        "join-1": MemoryStatistics(0, 0, size, 1, 1),
    }
    account.hold(7)
    memory.release()
    memory.release()
    memory.validate()
    assert memory.statistics().held == 0
    assert not folder.exists()
    assert folder.parent.exists()
    with pytest.raises(InternalError, match="released"):
        account.spill(SCHEMA)


def test_a_folder_that_nobody_releases_goes_with_its_task() -> None:
    memory = TaskMemory(0)
    memory.account("sort-1").spill(SCHEMA)
    folder = memory.folder
    assert folder is not None
    assert os.path.exists(folder)
    del memory
    gc.collect()
    assert not os.path.exists(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_names_the_operator_the_folder_and_the_remedy(kind: str, tmp_path: Path) -> None:
    with small_disk(kind, tmp_path / "small", 256 * 1024) as place:
        memory = TaskMemory(0, str(place / "task"))
        file = memory.account("sort-7").spill(SCHEMA)
        with pytest.raises(StorageError, match=r"sort-7: cannot spill to .*task: (No space|File too large)") as caught:
            write_much(file)
        assert "larger memory budget" in caught.value.remedy
        memory.release()
        assert os.listdir(place) == []


def test_a_spill_folder_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    account = TaskMemory(0, str(tmp_path / "file" / "task")).account("sort-7")
    with pytest.raises(StorageError, match=r"sort-7: cannot make the spill folder .*: Not a directory"):
        account.spill(SCHEMA)


def test_validate_finds_figures_that_contradict_each_other() -> None:
    memory = TaskMemory(100)
    account = memory.account("sort-1")
    account.hold(5)
    account.held = 6
    with pytest.raises(InternalError, match=r"the accounts hold \[6\], the task 5"):
        memory.validate()
