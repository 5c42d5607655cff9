"""The asynchronous lookup join: how much is under way, in which order rows leave, and how much in a batch."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.errors import (
    InternalError,
)
from penstock.engine.core.operator import exhaust
from penstock.engine.flow import index
from penstock.engine.operators import LookupJoin
from penstock.engine.operators.join.running_lookup import RunningLookupJoin
from support.asynchronous_driver import batches_of, drive, polled, started, values
from support.index_kinds import INDEX, KINDS, SCHEMA, STORED, Delayed, keys
from support.operator_harness import Collected, context


def test_index_in_memory_answers_in_place_and_is_never_waited_for() -> None:
    running = LookupJoin(index.memory(STORED, "k"), ("k",)).build(context(), [SCHEMA], None)
    assert type(running) is RunningLookupJoin


@pytest.mark.parametrize("prefetch", [0, 3])
def test_exactly_one_and_prefetch_lookups_are_under_way_before_the_first_comes_back(prefetch: int) -> None:
    running, background, output = started(LookupJoin(INDEX, ("k",), prefetch=prefetch))
    fed = 0
    while running.accepts(0):
        exhaust(running.process(0, Batch(keys(fed), Tag(0, 0, fed)), output))
        fed += 1
    assert (fed, len(background.waiting)) == (1 + prefetch, 1 + prefetch)
    with pytest.raises(InternalError, match="no more are accepted"):
        exhaust(running.process(0, Batch(keys(9), Tag(0, 0, 9)), output))
    background.release()
    assert not running.accepts(0), "an answer makes room when it is taken over"
    assert polled(running, output)
    assert running.accepts(0)
    assert values(output) == [0]


def test_batches_leave_in_their_order_when_answers_come_backwards() -> None:
    running, background, output = started(LookupJoin(INDEX, ("k",), prefetch=2))
    for number in range(3):
        exhaust(running.process(0, Batch(keys(number), Tag(0, 0, number)), output))
    for left in (2, 1):
        background.release(left)
        assert not polled(running, output)
    assert running.waits_for == "3 lookups in delayed index in memory by k with k, v"
    background.release()
    assert polled(running, output)
    assert running.waits_for == ""
    assert values(output) == [0, 10, 20]
    assert [batch.tag for batch in output.batches] == [Tag(0, 0, number) for number in range(3)]


@pytest.mark.parametrize("prefetch", [0, 1, 4, 256])
@pytest.mark.parametrize("seed", range(10))
def test_rows_come_in_the_order_of_the_input_whenever_answers_come(prefetch: int, seed: int) -> None:
    """The barrier scenario: five splits of 256 rows that all match, cut at 32 rows, in random interleavings."""
    rng = random.Random(seed)
    rounds = [pa.table({"k": [rng.randrange(100) for _ in range(256)]}) for _ in range(5)]
    config = LookupJoin(INDEX, ("k",), prefetch=prefetch)
    fed = [list(batches_of(table, 32, number)) for number, table in enumerate(rounds)]
    driven = drive(config, fed, SCHEMA, seed=seed, output_rows=32)
    expected = [key for table in rounds for key in table.column("k").to_pylist()]
    assert driven.rows == [{"k": key, "v": key * 10} for key in expected]
    assert driven.most_waiting <= 1 + prefetch


def test_batch_of_nulls_alone_asks_nothing_and_waits_for_its_turn() -> None:
    running, background, output = started(LookupJoin(INDEX, ("k",), how="left", prefetch=3))
    for number, records in enumerate([keys(4), keys(None, None), keys(7)]):
        exhaust(running.process(0, Batch(records, Tag(0, 0, number)), output))
    assert len(background.waiting) == 2
    assert not output.batches
    background.release(1)
    background.release(0)
    polled(running, output)
    assert values(output) == [40, None, None, 70]
    exhaust(running.process(0, Batch(keys(None), Tag(0, 0, 3)), output))
    assert polled(running, output)
    assert values(output)[-1:] == [None], "with nothing before it there is nothing to wait for"


TABLE = [(10, 100, 10, 100), (10, 500, 10, 500), (10, 1, 200, 10), (1, 500, 10, 50), (1, 300, 10, 30),
         (1, 500, 200, 3), (10, 200, 200, 10), (10, 500, 300, 20), (10, 50, 1, 500)]  # fmt: skip


@pytest.mark.parametrize(("batches", "rows", "most", "count"), TABLE)
@pytest.mark.parametrize("how", ["inner", "left"])
@pytest.mark.parametrize("prefetch", [0, 3, None])
@pytest.mark.parametrize("with_nulls", [False, True])
def test_output_has_one_batch_per_input_batch_or_pieces_of_the_wanted_size(
    batches: int, rows: int, most: int, count: int, how: str, prefetch: int | None, with_nulls: bool
) -> None:
    """Every probe row with a key matches one of 3,000; rows with null keys come besides (inner: they are dropped)."""
    ones = pa.array([1] * 3000)
    memory = index.memory(pa.table({"u0": range(1, 3001), "u1": ones, "u2": ones}), ["u0", "u1", "u2"])
    used = memory if prefetch is None else Delayed(memory)
    config = LookupJoin(used, ("t0", "t1", "t2"), how=how, prefetch=prefetch or 0)
    wanted = [number % 3000 + 1 for number in range(batches * rows)]
    probe = pa.table({"t0": wanted, "t1": pa.array([1] * len(wanted)), "t2": pa.array([1] * len(wanted))})
    fed = list(batches_of(probe, rows))
    if with_nulls and how == "inner":
        nothing = pa.record_batch({name: pa.array([None] * 5, pa.int64()) for name in probe.schema.names})
        fed = [Batch(pa.concat_batches([nothing, batch.records, nothing]), batch.tag) for batch in fed]
    for split, expected in ((True, count), (False, batches)):
        chosen = replace(config, split_output=split)
        if prefetch is None:
            output = Collected(chosen.output_schema([probe.schema]))
            running = chosen.build(replace(context(), output_rows=most), [probe.schema], None)
            for batch in fed:
                exhaust(running.process(0, batch, output))
            made = output.batches
        else:
            made = drive(chosen, [fed], probe.schema, output_rows=most).batches
        assert len(made) == expected
        assert [key for batch in made for key in batch.records.column("t0").to_pylist()] == wanted


def test_unsplit_output_keeps_misses_in_the_batch_of_their_input() -> None:
    config = LookupJoin(INDEX, ("k",), how="left", split_output=False, filter="v <> 20")
    running, background, output = started(config, output_rows=1)
    exhaust(running.process(0, Batch(keys(1, 2, None, 3, 999), Tag(0, 0, 0)), output))
    background.release()
    polled(running, output)
    assert [batch.records.column("v").to_pylist() for batch in output.batches] == [[10, None, None, 30, None]]


def test_the_end_must_not_come_while_lookups_are_under_way() -> None:
    running, background, output = started(LookupJoin(INDEX, ("k",)))
    running.end_port(0, output)
    exhaust(running.process(0, Batch(keys(1), Tag(0, 0, 0)), output))
    with pytest.raises(InternalError, match="came while it waited for 1 lookup in delayed index"):
        running.end_port(0, output)
    background.release()
    polled(running, output)
    running.end_port(0, output)


def test_what_is_under_way_at_a_cut_is_asked_for_again() -> None:
    running, background, output = started(LookupJoin(INDEX, ("k",)), output_rows=1)
    given = [Batch(keys(*each), Tag(0, 0, number)) for number, each in enumerate([(1, 2, 3), (4,)])]
    for each in given:
        exhaust(running.process(0, each, output))
    assert running.unanswered(output) == given
    assert running.snapshot() is None
    background.release()
    running.poll(output)
    assert len(output.batches) == 1, "the first batch is leaving"
    assert running.unanswered(output) == given[1:], "the rest of it has left"
    assert len(output.batches) == 3
    background.release()
    polled(running, output)
    assert values(output) == [10, 20, 30, 40]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_keep_their_order_with_real_threads(kind: str, tmp_path: Path) -> None:
    config = LookupJoin(KINDS[kind](tmp_path, STORED, ["k"]), ("k",), how="left", prefetch=3)
    woken: Queue[None] = Queue()
    with ThreadPoolExecutor(4) as pool:

        def background(work: Callable[[], Any], done: Callable[[Any], None]) -> None:
            def run_and_tell() -> None:
                done(work())
                woken.put(None)

            pool.submit(run_and_tell)

        running = config.build(replace(context(), background=background), [SCHEMA], None)
        output = Collected(config.output_schema([SCHEMA]))
        rng = random.Random(3)
        fed = pa.table({"k": [rng.choice([None, *range(110)]) for _ in range(2000)]}, schema=SCHEMA)
        for batch in batches_of(fed, 17):
            while not running.accepts(0):
                woken.get(timeout=10)
                polled(running, output)
            exhaust(running.process(0, batch, output))
        while getattr(running, "waits_for", ""):
            woken.get(timeout=10)
            polled(running, output)
    running.close()
    wanted = fed.column("k").to_pylist()
    assert values(output) == [None if key is None or key >= 100 else key * 10 for key in wanted]


def test_nothing_is_left_open_when_joins_are_closed(tmp_path: Path) -> None:
    """Files and connections are back to what they were, over and over."""

    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    configs = [LookupJoin(make(tmp_path, STORED, ["k"]), ("k",)) for make in KINDS.values()]
    counts = []
    for _ in range(5):
        for config in configs:
            running = config.build(context(), [SCHEMA], None)
            exhaust(running.process(0, Batch(keys(1, 2, 3), Tag(0, 0, 0)), Collected(config.output_schema([SCHEMA]))))
            running.close()
        del running
        gc.collect()
        counts.append(open_files())
    assert counts[1:] == counts[1:2] * 4
