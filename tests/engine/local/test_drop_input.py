"""Windows in which a join needs no more of a side: its producers stop, and begin again with the next window."""

import random

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.exchange.channels import DEFAULT_CREDIT, OutputChannel
from penstock.engine.plan import rounds
from support.invariants import validate_task
from support.simulated_scheduler import SimulatedScheduler
from support.sweeps import swept

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
BATCH = 1000


def split(keys, first: int = 0) -> pa.Table:
    return pa.table([keys, range(first, first + len(keys))], schema=SCHEMA)


def joined(how: str, lanes: int = 1, parts: int = 0) -> tuple[ps.Stream, list[int]]:
    """A join, and the rows that came on its right side."""
    seen: list[int] = []

    def note(batch: pa.RecordBatch) -> pa.RecordBatch:
        seen.append(batch.num_rows)
        return batch

    flow = ps.Flow("joined", lanes=lanes, parts=parts or 1)
    left, right = (flow.from_split_sets(SCHEMA, name=name) for name in ("l", "r"))
    right = right.map_batches(note, SCHEMA, name="noted")
    if parts:
        left, right = left.partition_by("k"), right.partition_by("k")
    return left.merge_join(right, on=["k"], how=how), seen


@pytest.mark.parametrize("ends", ["at a barrier", "at the end"])
@pytest.mark.parametrize("how", ["inner", "left", "left semi", "anti"])
def test_side_of_which_no_more_is_needed_is_read_no_further(how, ends, monkeypatch):
    """Beyond the left side's last key the right one has six times what its channel takes."""
    monkeypatch.setattr(rounds, "CHUNK_ROWS", BATCH)
    monkeypatch.setattr(OutputChannel.__init__, "__defaults__", (16 * BATCH,))
    stream, seen = joined(how)
    with_rows = list(range(3))
    task = ps.PlanTask(stream)
    task.add_split("l", split(with_rows))
    for number in range(4):
        task.add_split("r", split(range(number * 25 * BATCH, (number + 1) * 25 * BATCH)))
    if ends == "at a barrier":
        task.request_barrier()
        task.add_split("l", split(with_rows))
        task.add_split("r", split(range(BATCH)))
    for name in ("l", "r"):
        task.no_more_splits(name)
    wanted = 0 if how == "anti" else 3
    assert sum(batch.num_rows for batch in iter(task.read, None)) == wanted
    assert sum(seen) <= 20 * BATCH
    if ends == "at a barrier":
        assert task.state == "barrier"
        assert sum(batch.num_rows for batch in iter(task.read, None)) == wanted, "the next window is read"


# ------------------------------------------------------------------ random windows against a model


def model(how: str, left: list[list[int]], right: list[list[int]]) -> list[int]:
    """The keys that a window gives: splits meet by their numbers."""
    found = []
    for number in range(max(len(left), len(right))):
        mine, other = (splits[number] if number < len(splits) else [] for splits in (left, right))
        for key in mine:
            times = other.count(key)
            found += [key] * {"inner": times, "left": max(times, 1), "left semi": min(times, 1)}[how]
    return sorted(found)


def random_keys(chance: random.Random) -> list[list[int]]:
    top = chance.choice([3, 40])
    return [sorted(chance.randrange(top) for _ in range(chance.choice([0, 2, 30]))) for _ in range(chance.randrange(4))]


def simulate(seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """The windows as they were read, and as they should be."""
    chance = random.Random(seed)
    how = chance.choice(["inner", "left", "left semi"])
    lanes, parts = chance.choice([(1, 0), (3, 0), (3, 3)])
    stream, _ = joined(how, lanes, parts)
    windows = [(random_keys(chance), random_keys(chance)) for _ in range(chance.randrange(1, 5))]
    if parts:  # of a round one split alone has rows, so that those of a partition are sorted
        windows = [tuple([each for keys in side for each in (keys, [], [])] for side in both) for both in windows]
    scheduler = SimulatedScheduler(seed, workers=chance.choice((1, 2, 3)))
    task = ps.PlanTask(stream, scheduler=scheduler, parallelism=chance.randint(1, lanes))
    actions = []
    for left, right in windows:
        added = [("l", keys) for keys in left] + [("r", keys) for keys in right]
        actions += [lambda name=name, keys=keys: task.add_split(name, split(keys)) for name, keys in added]
        actions.append(task.request_barrier)
    actions += [lambda name=name: task.no_more_splits(name) for name in ("l", "r")]
    eager = chance.random()
    read: list[list[int]] = [[]]
    idle = 0
    while task.state not in ("finished", "failed"):
        if actions and chance.random() < eager:
            actions.pop(0)()
        progressed = scheduler.step()
        for each in task.tasks:
            validate_task(each)
        while chance.random() < 0.3 or not progressed:
            batch, future = task.next()
            if batch is not None:
                read[-1] += batch.column("k").to_pylist()
            elif future is None and task.state == "barrier":
                read.append([])
            else:
                break
        if not progressed:
            if actions:
                actions.pop(0)()
            else:
                idle += 1
                assert idle < 100, f"nothing can run: {task.why()}"
    assert not read.pop(), "nothing is left behind the last window"
    return [sorted(keys) for keys in read], [model(how, *window) for window in windows]


@pytest.mark.parametrize("seeds", [range(12), *(swept(range(n, n + 248)) for n in range(12, 1500, 248))], ids=str)
@pytest.mark.parametrize("credit", [1, DEFAULT_CREDIT])
def test_no_row_of_the_next_window_is_lost(seeds, credit, monkeypatch):
    monkeypatch.setattr(OutputChannel.__init__, "__defaults__", (credit,))
    monkeypatch.setattr(rounds, "CHUNK_ROWS", 5)
    for seed in seeds:
        read, wanted = simulate(seed)
        assert read == wanted, f"seed {seed}"


@pytest.mark.parametrize("degree", [0, 2])
def test_rows_that_are_held_for_later_windows_are_read_whatever_this_window_needs(degree):
    """A join without a row on the other side needs nothing in this window, but what is held before it comes later."""
    flow = ps.Flow("held")
    rows, names = (flow.from_split_sets(SCHEMA, name=name) for name in ("rows", "names"))
    sums = rows.gather().aggregate(["k"], v=("v", "sum"), at_barrier="hold")
    found = sums.gather().hash_join(names, on=["k"], how="inner", suffix="_name")
    empty = SCHEMA.empty_table()
    windows = [(pa.table([[1], [number]], schema=SCHEMA), empty) for number in (1, 10)]
    with ps.PlanTask(found, degree=degree) as task:
        for part, name in windows:
            assert list(task.run({"rows": part, "names": name})) == []
        task.add_split("names", pa.table([[1], [0]], schema=SCHEMA))
        for source in ("rows", "names"):
            task.no_more_splits(source)
        assert [each for batch in iter(lambda: task.read(60), None) for each in batch["v"].to_pylist()] == [11]
