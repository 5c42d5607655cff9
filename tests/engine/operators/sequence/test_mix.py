"""Mix: whose turn it is depends on seed and position; who is out, and what waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.errors import FlowError
from penstock.engine.core.operator import exhaust
from penstock.engine.kernels.counter_random import MIX, words
from penstock.engine.operators import Mix
from penstock.engine.operators.sequence import mix as mixing
from penstock.engine.state.memory import TaskMemory
from support.operator_harness import LANES, SIZES, Collected, Units, context, rows_of, run

SCHEMA = pa.schema([("port", pa.int64()), ("n", pa.int64())])

lengths = st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, LANES - 1)), st.integers(0, 12), max_size=8)


def numbered(port: int, rows: dict[tuple[int, int], int]) -> Units:
    units, first = {}, 0
    for unit in sorted(rows):
        numbers = range(first, first + rows[unit])
        units[unit] = pa.table([[port] * rows[unit], list(numbers)], schema=SCHEMA)
        first += rows[unit]
    return units


def expected(counts: Sequence[int], config: Mix) -> list[tuple[int, int]]:
    """Written down from the definition: position by position."""
    left, out, found = list(counts), set[int](), []
    for position in range(sum(counts) + 1):
        block, place = divmod(position, mixing.BLOCK)
        draw = (int(words(config.seed, config.epoch, MIX, block, place + 1)[place]) >> 11) / 2**53
        while len(out) < len(left):
            live = [0.0 if port in out else weight for port, weight in enumerate(config.weights)]
            shares = np.cumsum(live)
            port = int(np.searchsorted(shares, draw * shares[-1], side="right"))
            if left[port]:
                found.append((port, counts[port] - left[port]))
                left[port] -= 1
                break
            out.add(port)
            if config.at_end == "stop":
                return found
    return found


@settings(max_examples=60, deadline=None)
@given(
    ports=st.lists(lengths, min_size=2, max_size=3),
    weights=st.lists(st.sampled_from((0.1, 1.0, 2.5)), min_size=3, max_size=3),
    seed=st.integers(0, 5),
    at_end=st.sampled_from(("stop", "go on")),
    size=st.sampled_from(SIZES),
    turns=st.integers(0, 10),
    restore=st.booleans(),
    budget=st.sampled_from((None, 0, 200)),
    output_rows=st.sampled_from((2, 1024)),
)
def test_rows_are_those_of_the_definition_whoever_is_faster(
    ports: list[dict[tuple[int, int], int]],
    weights: list[float],
    seed: int,
    at_end: Any,
    size: int,
    turns: int,
    restore: bool,
    budget: int | None,
    output_rows: int,
) -> None:
    config = Mix(tuple(weights[: len(ports)]), seed, at_end=at_end)
    inputs = [numbered(port, rows) for port, rows in enumerate(ports)]
    options: dict[str, Any] = {"schemas": [SCHEMA] * len(ports), "output_rows": output_rows}
    found = run(config, *inputs, size=size, seed=turns, restore=restore, memory=TaskMemory(budget), **options)
    assert rows_of(found.table) == expected([sum(rows.values()) for rows in ports], config)
    assert found.units == run(config, *inputs, **options).units, "the rounds in which rows leave differ"


def test_weights_are_kept() -> None:
    inputs = [numbered(port, {(0, 0): 40_000}) for port in range(2)]
    table = run(Mix((3, 1), 7), *inputs, size=1000).table
    first = table.column("port").to_numpy()[:40_000]
    assert abs(first.sum() - 10_000) < 5 * (40_000 * 0.25 * 0.75) ** 0.5
    assert 40_000 < len(table) < 56_000, "it stops when the first one has ended"


def test_a_stream_that_has_ended_is_out_in_the_round_behind_its_last() -> None:
    """It may be told of the end before or behind the ends of the others' rounds, and gives the same rounds."""
    config, units = Mix((1, 1), 3, at_end="go on"), []
    for late in (False, True):
        running = config.build(context(), [SCHEMA] * 2, None)
        output = Collected(SCHEMA)
        exhaust(running.process(0, Batch(pa.record_batch([[0], [0]], schema=SCHEMA), Tag(0, 0, 0)), output))
        exhaust(running.end_round(0, 0, output))
        if not late:
            exhaust(running.end_port(0, output))
        for round in range(3):
            records = pa.record_batch([[1] * 9, list(range(9))], schema=SCHEMA)
            if late and round == 1:
                exhaust(running.end_port(0, output))
            exhaust(running.process(1, Batch(records, Tag(round, 0, 0)), output))
            exhaust(running.end_round(1, round, output))
        exhaust(running.end_port(1, output))
        exhaust(running.finish(output))
        assert len({batch.tag.round for batch in output.batches} - {FINAL_ROUND}) == 3
        units.append([(batch.tag.round, *row) for batch in output.batches for row in rows_of(batch.records)])
    assert units[0] == units[1]


def _window(running: Any, round: int, rows: Sequence[int]) -> list[tuple[Any, ...]]:
    output = Collected(SCHEMA)
    for port, count in enumerate(rows):
        if count:
            (records,) = numbered(port, {(0, 0): count})[0, 0].to_batches()
            exhaust(running.process(port, Batch(records, Tag(round, 0, 0)), output))
        exhaust(running.end_round(port, round, output))
    exhaust(running.drain(output))
    assert {batch.tag.round for batch in output.batches} <= {round}
    return [row for batch in output.batches for row in rows_of(batch.records)]


@pytest.mark.parametrize("at_end", ["stop", "go on"])
def test_a_barrier_ends_what_has_come_and_the_mixture_begins_anew(at_end: Any) -> None:
    config = Mix((1, 2), 5, at_end=at_end)
    running = config.build(context(), [SCHEMA] * 2, None)
    for round, rows in enumerate(((5, 9), (20, 0), (5, 9))):
        assert _window(running, round, rows) == expected(rows, config)
    running.close()


def test_a_mixture_that_has_stopped_because_a_stream_has_ended_stays_so() -> None:
    running = Mix((1, 1)).build(context(), [SCHEMA] * 2, None)
    exhaust(running.end_port(0, Collected(SCHEMA)))
    assert _window(running, 0, (0, 50)) == expected((0, 50), Mix((1, 1)))
    assert running.needs_no_more(1)
    restored = Mix((1, 1)).build(context(), [SCHEMA] * 2, running.snapshot())
    assert restored.needs_no_more(1)
    assert _window(restored, 1, (0, 50)) == []


def test_a_port_that_holds_enough_is_not_read_while_another_can_still_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixing, "ENOUGH", 10)
    running, output = Mix((1000, 1)).build(context(), [SCHEMA] * 2, None), Collected(SCHEMA)
    (records,) = numbered(1, {(0, 0): 12})[0, 0].to_batches()
    exhaust(running.process(1, Batch(records, Tag(0, 0, 0)), output))
    assert (running.accepts(0), running.accepts(1)) == (True, False)
    exhaust(running.end_round(0, 0, output))
    exhaust(running.end_round(0, 0, output))
    assert running.accepts(1), "the round must end on all ports"


def test_what_waits_is_accounted_for_and_goes_to_disk() -> None:
    memory = TaskMemory(budget=1000)
    inputs = [numbered(0, {(0, 0): 2}), numbered(1, {(0, 0): 5000})]
    found = run(Mix((1, 1), at_end="go on"), *inputs, size=500, memory=memory)
    assert rows_of(found.table) == expected((2, 5000), Mix((1, 1), at_end="go on"))
    assert memory.statistics().spilled_bytes > 0
    assert memory.statistics().peak < 40_000


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Mix((1.0,)), "two streams or more"),
        (Mix((1.0, 0.0)), "a weight of 0"),
        (Mix((1.0, float("nan"))), "a weight of nan"),
        (Mix((1, 1), at_end="wait"), "at_end is 'wait'"),  # type: ignore[arg-type]
        (replace(Mix((1, 1)), seed=-1), "seed -1"),
    ],
)
def test_mix_refuses_what_it_cannot_mix(config: Mix, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        config.output_schema([SCHEMA, SCHEMA])


def test_mix_refuses_streams_of_other_columns() -> None:
    with pytest.raises(FlowError, match="stream 2 has columns"):
        Mix((1, 1)).output_schema([SCHEMA, pa.schema([("x", pa.int64())])])
