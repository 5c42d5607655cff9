"""State in parts: what is put together is what the rows were, whatever is merged when."""

from __future__ import annotations

import random
from datetime import date, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.state.change_log import (
    BASE_SHARE,
    MOST_CHANGES,
    ROW,
    ChangeLog,
    StatePart,
    merge_from,
    merged,
    states_of,
)


def part_of(table: pa.Table) -> StatePart:
    return StatePart(lambda: table, table.num_rows)


def columns(values: list[str | None]) -> pa.Table:
    lists = [None if value is None else [value, None] for value in values]
    codes = pa.array(values, pa.string()).dictionary_encode()
    return pa.table(
        {"value": pa.array(values, pa.string()), "list": pa.array(lists, pa.list_(pa.string())), "code": codes}
    )


class Rows:
    """A state, and its log."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.log = ChangeLog()
        self.values = [self.value() for _ in range(chance.randrange(1, 30))]
        self.log.add(part_of(self.table))

    def value(self) -> str | None:
        return self.chance.choice([None, "one", "two", str(self.chance.random())])

    @property
    def table(self) -> pa.Table:
        return columns(self.values)

    def change(self) -> None:
        """Change some rows and add some, and say so in any order."""
        old, new = len(self.values), self.chance.choice([0, 0, 3])
        self.values += [self.value() for _ in range(new)]
        rows = [*self.chance.sample(range(old), self.chance.randrange(min(old, 4))), *range(old, old + new)]
        self.chance.shuffle(rows)
        for row in rows:
            self.values[row] = self.value()
        changed = columns([self.values[row] for row in rows]).append_column(ROW, pa.array(rows, pa.int64()))
        self.log.add(part_of(changed))

    def merge(self) -> None:
        """Put some parts together, as a store does on another thread."""
        parts = self.log.cut().cuts[0].parts
        first = self.chance.randrange(len(parts))
        mine = parts[first : self.chance.randrange(first, len(parts)) + 1]
        tables = [part.table for part in mine]
        assert all(table is not None for table in tables)
        self.log.merged(mine, part_of(merged(tables)))


@pytest.mark.parametrize("seed", range(60))
def test_parts_are_the_state_whatever_is_merged(seed: int) -> None:
    chance = random.Random(seed)
    rows = Rows(chance)
    for _ in range(12):
        earlier, then = rows.log.cut(), rows.table
        rows.change()
        if chance.random() < 0.4:
            rows.merge()
        assert earlier.whole().to_pylist() == then.to_pylist()
        assert rows.log.cut().whole().to_pylist() == rows.table.to_pylist()


def test_states_of_several_tasks_stand_one_behind_the_other() -> None:
    first, second = Rows(random.Random(1)), Rows(random.Random(2))
    for rows in (first, second, second):
        rows.change()
    tables = [part.table for rows in (first, second) for part in rows.log.cut().cuts[0].parts]
    assert [each.to_pylist() for each in states_of(tables)] == [first.table.to_pylist(), second.table.to_pylist()]
    assert states_of([]) == []


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.1, 1.0, 3.0])
def test_what_is_stored_stays_small_and_is_seldom_written_again(share: float) -> None:
    base, changed, written = 100_000, int(100_000 * share), 0
    sizes = [base]
    for _ in range(1_000):
        sizes.append(changed)
        first = merge_from(sizes)
        size = base if first == 0 else sum(sizes[first:])
        sizes[first:] = [size]
        written += size
        assert len(sizes) <= MOST_CHANGES + 1
        assert BASE_SHARE * sum(sizes[1:]) < sizes[0]
    assert written / 1_000 <= 7 * changed


@pytest.mark.parametrize("sizes", [[10] * 1_000, [1_000_000, *[10] * 1_000], [2**power for power in range(40, 0, -1)]])
def test_rows_of_a_state_that_grows_are_seldom_written_again(sizes: list[int]) -> None:
    parts: list[int] = []
    written = 0
    for size in sizes:
        parts.append(size)
        first = merge_from(parts, grows=True)
        parts[first:] = [sum(parts[first:])]
        written += parts[-1]
        assert len(parts) <= MOST_CHANGES + 1
    assert sum(parts) == sum(sizes)
    assert written <= 5 * sum(sizes)


def test_parts_of_a_state_that_grows_follow_one_another() -> None:
    log, values = ChangeLog(grows=True), [str(value) for value in range(20)]
    for value in values:
        log.add(part_of(columns([value])))
    parts = log.cut().cuts[0].parts
    tables = [part.table for part in parts[3:9]]
    log.merged(parts[3:9], part_of(merged([table for table in tables if table is not None])))
    assert log.rows == 20
    assert log.cut().whole().to_pylist() == columns(values).to_pylist()


def test_rows_are_made_once_and_let_go_of() -> None:
    made = []

    def make() -> pa.Table:
        made.append(1)
        return pa.table({"value": np.arange(3)})

    part = StatePart(make, 3)
    assert part.table is part.table
    assert made == [1]
    part.let_go()
    assert part.table is None


@pytest.mark.parametrize(
    ("type", "value"),
    [
        (pa.duration("us"), timedelta(1)),
        (pa.decimal32(5), Decimal(1)),
        (pa.date64(), date(1500, 1, 1)),
        (pa.large_list(pa.int8()), [1]),
    ],
)
def test_changes_of_every_type_are_put_into_their_base(type: pa.DataType, value: object) -> None:
    full = pa.table({"value": pa.array([value] * 3, type), "at": pa.array([7, 8, 9], pa.int16())}).slice(1)
    new = pa.table({"value": pa.array([value], type), "at": pa.array([1], pa.int16()), ROW: pa.array([1])})
    (state,) = states_of([pa.concat_tables([full.slice(0, 1), full.slice(1)]), new])
    assert state.to_pydict() == {"value": [value, value], "at": [8, 1]}
    base = pa.table({"value": pa.nulls(3, type)})
    changes = pa.table({"value": pa.array([value, value], type), ROW: pa.array([1, 3])})
    (state,) = states_of([base, changes])
    assert state.column("value").to_pylist() == [None, value, None, value]


def test_a_zero_that_changes_its_sign_is_a_change() -> None:
    base = pa.table({"value": [0.0, 1.0], "key": [1, 2]})
    (state,) = states_of([base, pa.table({"value": [-0.0], "key": [1], ROW: [0]})])
    assert str(state.column("value")[0].as_py()) == "-0.0"
    assert state.column("key").to_pylist() == [1, 2]
