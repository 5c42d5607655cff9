"""Map batches: what the user's code may give back, and what is said when it fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import DataError, FlowError, UserCodeError
from penstock.engine.core.operator import OperatorContext, exhaust
from penstock.engine.kernels.pieces import PIECE_ROWS
from penstock.engine.operators import MapBatches
from penstock.engine.operators.rowwise import map_batches
from penstock.engine.operators.rowwise.map_batches import AsynchronousMapBatches
from penstock.engine.operators.rowwise.user_calls import Called
from penstock.engine.planner.exact import exact_text
from support.asynchronous_driver import HeldBackground, batches_of, drive, polled
from support.operator_harness import SIZES, Collected, context, run

ROWS = pa.table({"a": [1, 2, 3, 4]})
SCHEMA = pa.schema([("b", pa.int64())])


def as_batch(records: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"b": pc.multiply(records.column("a"), 2)})


def as_chunked_table(records: pa.RecordBatch) -> pa.Table:
    doubled = pc.multiply(records.column("a"), 2)
    return pa.table({"b": pa.chunked_array([doubled.slice(0, 1), doubled.slice(1)])})


def as_mapping(records: pa.RecordBatch) -> dict[str, Any]:
    return {"b": [2 * value for value in records.column("a").to_pylist()]}


class Counting:
    """Built once per running operator."""

    built = 0

    def __init__(self) -> None:
        type(self).built += 1
        self.calls = 0

    def __call__(self, records: pa.RecordBatch) -> dict[str, Any]:
        self.calls += 1
        return {"b": [self.calls] * records.num_rows}


class Unbuildable:
    def __init__(self) -> None:
        raise RuntimeError("no model here")

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        return records


def divide(records: pa.RecordBatch) -> dict[str, Any]:
    return {"b": [_inverse(value - 3) for value in records.column("a").to_pylist()]}


def _inverse(value: int) -> int:
    return 1 // value


def several_times(records: pa.RecordBatch) -> dict[str, Any]:
    return {"b": list(range(PIECE_ROWS + 5))}


def nothing(records: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"b": pa.array([], pa.int64())})


@pytest.mark.parametrize("function", [as_batch, as_chunked_table, as_mapping])
@pytest.mark.parametrize("size", SIZES)
def test_map_batches_takes_batches_tables_and_mappings(function: Any, size: int) -> None:
    outcome = run(MapBatches(function, SCHEMA), {(0, 0): ROWS, (2, 1): ROWS}, size=size)
    assert outcome.units == {(0, 0): [(2,), (4,), (6,), (8,)], (2, 1): [(2,), (4,), (6,), (8,)]}


def test_map_batches_builds_a_class_once_and_keeps_it_warm() -> None:
    Counting.built = 0
    outcome = run(MapBatches(Counting, SCHEMA), {(0, 0): ROWS}, size=2)
    assert outcome.table.column("b").to_pylist() == [1, 1, 2, 2]
    assert Counting.built == 2, "for the run, and for the restored one that ends again"


def test_map_batches_cuts_a_large_result_into_pieces_and_drops_an_empty_one() -> None:
    outcome = run(MapBatches(several_times, SCHEMA), {(0, 0): ROWS})
    assert [batch.records.num_rows for batch in outcome.batches] == [PIECE_ROWS, 5]
    assert run(MapBatches(nothing, SCHEMA), {(0, 0): ROWS}).batches == []


def as_often_as_the_first_value_says(records: pa.RecordBatch) -> dict[str, Any]:
    return {"b": [0] * (records.column("a")[0].as_py() * PIECE_ROWS)}


def test_tags_count_the_pieces_of_each_round_and_lane_whatever_the_numbers_of_the_input() -> None:
    config = MapBatches(as_often_as_the_first_value_says, SCHEMA)
    running, output = config.build(context(), [ROWS.schema], None), Collected(SCHEMA)
    given = [(0, 0, 0, 1), (0, 0, 1, 2), (0, 0, 2, 0), (0, 0, 3, 1), (0, 0, 9, 1), (0, 1, 0, 1), (1, 0, 4, 1)]
    for round, lane, sequence, pieces in given:
        exhaust(running.process(0, Batch(pa.record_batch({"a": [pieces]}), Tag(round, lane, sequence)), output))
    tags = [(batch.tag.round, batch.tag.lane, batch.tag.sequence) for batch in output.batches]
    assert tags == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3), (0, 0, 4), (0, 1, 0), (1, 0, 0)]


def test_map_batches_casts_a_column_only_if_no_value_changes() -> None:
    small = pa.schema([("b", pa.int8())])
    assert run(MapBatches(as_batch, small), {(0, 0): ROWS}).table.schema == small
    with pytest.raises(DataError, match=r"as_batch: column 'b' does not fit int8"):
        run(MapBatches(as_batch, small), {(0, 0): pa.table({"a": [1000]})})


def test_map_batches_that_raises_tells_rows_and_the_users_frames_only() -> None:
    with pytest.raises(UserCodeError) as caught:
        run(MapBatches(divide, SCHEMA), {(0, 0): ROWS.slice(0, 2), (5, 3): ROWS.slice(1)}, size=2)
    assert "divide raised ZeroDivisionError" in caught.value.message
    assert "rows 0..1 of round 5, lane 3, batch 0" in caught.value.message
    assert "in _inverse" in caught.value.detail
    assert "in divide" in caught.value.detail
    assert "in process" not in caught.value.detail


def test_a_part_of_a_batch_is_not_told_as_its_first_rows() -> None:
    with pytest.raises(UserCodeError, match="in 1 of the rows of round 0, lane 0, batch 0"):
        run(MapBatches(divide, SCHEMA, batch_size=1), {(0, 0): pa.table({"a": [1, 3]})})


def test_map_batches_whose_class_cannot_be_built_is_the_users_error() -> None:
    with pytest.raises(UserCodeError, match=r"Unbuildable could not be built(.|\n)*no model here"):
        run(MapBatches(Unbuildable, SCHEMA), {(0, 0): ROWS})


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "gave a NoneType .*(.|\n)*did you forget to return"),
        ({"c": [1]}, "gave no column 'b'; it gave: c"),
        ({"b": [1], "c": [1]}, "a column 'c' that its schema does not have"),
        ({"b": ["x"]}, "column 'b' does not fit int64"),
        ({"b": [1, "x"]}, "column 'b' does not fit int64"),
        ({"b": 3}, "column 'b' does not fit int64"),
        ({"b": [10**30]}, "column 'b' does not fit int64"),
    ],
)
def test_map_batches_refuses_a_wrong_result(result: Any, message: str) -> None:
    config = MapBatches(Constant(result), SCHEMA)
    with pytest.raises(DataError, match=message):
        run(config, {(0, 0): ROWS})


def test_map_batches_refuses_columns_of_different_lengths_and_unannounced_nulls() -> None:
    two = pa.schema([("b", pa.int64()), ("c", pa.int64())])
    with pytest.raises(DataError, match="different lengths"):
        run(MapBatches(Constant({"b": [1], "c": [1, 2]}), two), {(0, 0): ROWS})
    strict = pa.schema([pa.field("b", pa.int64(), nullable=False)])
    with pytest.raises(DataError, match="contains nulls"):
        run(MapBatches(Constant({"b": [1, None]}), strict), {(0, 0): ROWS})


class Constant:
    """Gives the same result for every batch."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def __call__(self, records: pa.RecordBatch) -> Any:
        return self.result


# ------------------------------------------------------------------ parts, and calls that are made elsewhere


class Given:
    """Says which rows it is given together."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        self.calls.append(records.column("a").to_pylist())
        return as_batch(records)


def a_batch(rows: int, sequence: int = 0) -> Batch:
    return Batch(pa.record_batch({"a": list(range(rows))}), Tag(0, 0, sequence))


def numbers(batches: Sequence[Batch]) -> list[int]:
    return [value for each in batches for value in each.records.column("b").to_pylist()]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_batch_size_cuts_each_batch_at_its_rows_and_each_part_leaves_by_itself(elsewhere: bool) -> None:
    function, background = Given(), HeldBackground()
    config = MapBatches(function, SCHEMA, batch_size=3)
    running = config.build(replace(context(), elsewhere=background if elsewhere else None), [ROWS.schema], None)
    output = Collected(SCHEMA)
    for sequence, rows in enumerate([7, 2, 3]):
        exhaust(running.process(0, a_batch(rows, sequence), output))
        while isinstance(running, AsynchronousMapBatches) and (polled(running, output) or background.waiting):
            if background.waiting:
                background.release()
    assert function.calls == [[0, 1, 2], [3, 4, 5], [6], [0, 1], [0, 1, 2]]
    assert [each.rows for each in output.batches] == [3, 3, 1, 2, 3]


def test_only_calls_that_take_long_are_made_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 9.0, 9.0, 9.0, 9.0, 18.0, 18.0, 18.0])
    monkeypatch.setattr(map_batches.time, "perf_counter", lambda: next(clock))
    background, output = HeldBackground(), Collected(SCHEMA)
    running = MapBatches(as_batch, SCHEMA).build(replace(context(), elsewhere=background), [ROWS.schema], None)
    was_elsewhere = []
    for sequence in range(4):
        running.process(0, a_batch(2, sequence), output)
        was_elsewhere.append(bool(background.waiting))
        if background.waiting:
            background.release()
            polled(running, output)
    # of the first call nothing is known; then they take 9 s, none, 9 s
    assert was_elsewhere == [True, True, False, True]
    assert numbers(output.batches) == [0, 2] * 4


def test_rows_that_a_function_is_at_elsewhere_are_given_again_with_all_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(map_batches, "LONG_SECONDS", -1.0)  # every call takes long
    background, output = HeldBackground(), Collected(SCHEMA)
    running = MapBatches(as_batch, SCHEMA, 3).build(replace(context(), elsewhere=background), [ROWS.schema], None)
    assert isinstance(running, AsynchronousMapBatches)
    running.process(0, a_batch(8), output)
    background.release()
    polled(running, output)
    (left,) = running.unanswered(output)
    assert not running.accepts(0)
    assert "which has 5 rows" in running.waits_for
    assert numbers(output.batches) == [0, 2, 4]
    assert left.records.column("a").to_pylist() == [3, 4, 5, 6, 7]
    while background.waiting:
        background.release()
        polled(running, output)
    assert numbers(output.batches) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert running.accepts(0)


def test_what_a_function_raises_elsewhere_is_told_as_ever() -> None:
    background, output = HeldBackground(), Collected(SCHEMA)
    running = MapBatches(divide, SCHEMA).build(replace(context(), elsewhere=background), [ROWS.schema], None)
    assert isinstance(running, AsynchronousMapBatches)
    running.process(0, a_batch(4), output)
    background.release()
    with pytest.raises(UserCodeError, match=r"divide raised .* in rows 0\.\.3 of round 0, lane 0, batch 0"):
        running.poll(output)


def test_a_batch_size_below_one_is_refused() -> None:
    with pytest.raises(FlowError, match="give batch_size= of 1 or more"):
        MapBatches(as_batch, SCHEMA, 0).output_schema([ROWS.schema])


# ------------------------------------------------------------------ several calls at once


def at_once(count: int, background: HeldBackground, function: Any = as_batch) -> AsynchronousMapBatches:
    config = MapBatches(function, SCHEMA, batch_size=2, concurrency=count)
    running = config.build(replace(context(), elsewhere=background), [ROWS.schema], None)
    assert isinstance(running, AsynchronousMapBatches)
    return running


def test_several_calls_are_under_way_and_leave_in_the_order_of_the_rows() -> None:
    background, output = HeldBackground(), Collected(SCHEMA)
    running = at_once(3, background)
    exhaust(running.process(0, a_batch(5), output))
    assert len(background.waiting) == 3, "rows 0 and 1, 2 and 3, and 4"
    assert not running.accepts(0)
    background.release(2)
    background.release(1)
    polled(running, output)
    assert numbers(output.batches) == [], "the first ones are not there yet"
    background.release()
    polled(running, output)
    assert numbers(output.batches) == [0, 2, 4, 6, 8]
    assert running.accepts(0)
    assert running.waits_for == ""


@pytest.mark.parametrize("count", [1, 2])
def test_batches_of_more_calls_than_may_be_made_now_wait_behind_a_restore(count: int) -> None:
    background, output = HeldBackground(), Collected(SCHEMA)
    before = at_once(3, background)
    for sequence in range(3):
        exhaust(before.process(0, a_batch(2, sequence), output))
    batches = before.unanswered(output)
    assert len(batches) == 3
    background, output = HeldBackground(), Collected(SCHEMA)
    running = at_once(count, background)
    for batch in batches:
        exhaust(running.process(0, batch, output))
    assert len(background.waiting) == count
    assert not running.accepts(0)
    while background.waiting:
        background.release()
        polled(running, output)
    assert numbers(output.batches) == [0, 2] * 3
    assert running.accepts(0)


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_without_rows_is_no_call(count: int) -> None:
    background, output = HeldBackground(), Collected(SCHEMA)
    running = at_once(count, background)
    exhaust(running.process(0, a_batch(0), output))
    assert running.accepts(0)
    assert not background.waiting
    in_place = MapBatches(unreachable, SCHEMA).build(context(), [ROWS.schema], None)
    exhaust(in_place.process(0, a_batch(0), output))
    assert output.batches == []


def unreachable(_: pa.RecordBatch) -> None:
    raise AssertionError("there is nothing to be called with")


class Opened:
    """Counts the open ones; ``refused``: that cannot be built or closed."""

    opened: ClassVar[list[int]] = []

    def __init__(self, refused: int, closes: bool = True) -> None:
        self.number, self.fails_in_close = len(self.opened), not closes
        if closes and self.number == refused:
            raise OSError("no memory")
        self.opened.append(self.number)
        self.refused = refused

    def __call__(self, records: pa.RecordBatch) -> pa.RecordBatch:
        return records

    def close(self) -> None:
        self.opened.remove(self.number)
        if self.fails_in_close and self.number == self.refused:
            raise OSError("no answer")


def test_what_is_built_is_closed_whatever_becomes_of_the_others() -> None:
    Opened.opened.clear()
    with pytest.raises(UserCodeError, match="no memory"):
        MapBatches(Called(Opened, constructor_args=(2,)), SCHEMA, 2, 3).build(elsewhere(), [ROWS.schema], None)
    assert Opened.opened == []
    running = MapBatches(Called(Opened, constructor_args=(0, False)), SCHEMA, 2, 3).build(
        elsewhere(), [ROWS.schema], None
    )
    assert Opened.opened == [0, 1, 2]
    with pytest.raises(UserCodeError, match="no answer"):
        running.close()
    assert Opened.opened == []


def elsewhere() -> OperatorContext:
    return replace(context(), elsewhere=HeldBackground())


def test_another_batch_comes_while_a_call_more_may_be_made() -> None:
    background, output = HeldBackground(), Collected(SCHEMA)
    running = at_once(3, background)
    exhaust(running.process(0, a_batch(2), output))
    assert running.accepts(0)
    exhaust(running.process(0, a_batch(6, 1), output))
    assert len(background.waiting) == 3
    assert not running.accepts(0), "rows wait for a call"
    background.release()
    polled(running, output)
    assert len(background.waiting) == 3, "a call is made in the place of one that is over"
    assert "which has 6 rows" in running.waits_for


def test_all_rows_that_have_not_left_are_given_again_in_their_order() -> None:
    background, output = HeldBackground(), Collected(SCHEMA)
    running = at_once(3, background)
    exhaust(running.process(0, a_batch(4), output))
    exhaust(running.process(0, a_batch(3, 1), output))
    background.release(1)
    background.release()
    running.poll(output)
    left = running.unanswered(output)
    assert numbers(output.batches) == [0, 2]
    assert [each.records.column("a").to_pylist() for each in left] == [[2, 3], [0, 1, 2]]
    assert [each.tag.sequence for each in left] == [0, 1]


def test_calls_at_once_need_another_thread_and_without_one_are_made_in_place() -> None:
    function = Given()
    running = MapBatches(function, SCHEMA, 2, concurrency=3).build(context(), [ROWS.schema], None)
    exhaust(running.process(0, a_batch(3), Collected(SCHEMA)))
    assert function.calls == [[0, 1], [2]]


@pytest.mark.parametrize("seed", range(5))
def test_order_is_that_of_the_rows_whichever_call_comes_back_first(seed: int) -> None:
    rounds = [list(batches_of(pa.table({"a": list(range(40))}), 7, round)) for round in range(3)]
    driven = drive(MapBatches(as_batch, SCHEMA, 2, concurrency=4), rounds, ROWS.schema, seed=seed)
    assert numbers(driven.batches) == [2 * value for value in range(40)] * 3
    assert driven.most_waiting == 4


def test_weights_are_not_spelt_out_in_a_fingerprint() -> None:
    texts = [
        exact_text(MapBatches(Called(as_batch, args=(weights,)), SCHEMA))
        for weights in (np.zeros(20_000), np.zeros(20_000), np.ones(20_000), np.zeros((200, 100)))
    ]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 3
    assert max(map(len, texts)) < 1_000


def test_no_fingerprint_depends_on_the_calls_at_once() -> None:
    assert exact_text(MapBatches(as_batch, SCHEMA, 2, concurrency=4)) == exact_text(MapBatches(as_batch, SCHEMA, 2))
