"""Mix: whose turn it is depends on seed and position; who is out, and what waits."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count as endless
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.engine.core.elements import FINAL_ROUND, Batch, Tag
from penstock.engine.core.errors import FlowError
from penstock.engine.core.identity import Reweight
from penstock.engine.core.operator import exhaust
from penstock.engine.kernels.counter_random import MIX, places_again, words
from penstock.engine.operators import Mix, Schedule
from penstock.engine.operators.sequence import mix as mixing
from penstock.engine.operators.sequence.mix import AT_ENDS, turns_begun
from penstock.engine.state.memory import TaskMemory
from support.operator_harness import LANES, SIZES, Collected, Units, context, rows_of, run

SCHEMA = pa.schema([("port", pa.int64()), ("n", pa.int64())])

schedules = st.builds(
    lambda make, points: make({0: 1.0, **points}),
    st.sampled_from((Schedule.steps, Schedule.linear)),
    st.dictionaries(st.integers(1, 40), st.sampled_from((0.0, 0.5, 4.0)), max_size=3),
) | st.builds(Schedule.by_epoch, st.lists(st.sampled_from((0.25, 2.0)), min_size=1, max_size=3))
lengths = st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, LANES - 1)), st.integers(0, 12), max_size=8)


def numbered(port: int, rows: dict[tuple[int, int], int]) -> Units:
    units, first = {}, 0
    for unit in sorted(rows):
        numbers = range(first, first + rows[unit])
        units[unit] = pa.table([[port] * rows[unit], list(numbers)], schema=SCHEMA)
        first += rows[unit]
    return units


def weight_at(weight: float | Schedule, position: int, epoch: int) -> float:
    """Of one stream at one position, written down from the definition."""
    if not isinstance(weight, Schedule):
        return weight
    place = epoch if weight.kind == "epochs" else position
    before = [point for point in weight.points if point[0] <= place]
    behind = [point for point in weight.points if point[0] > place]
    if weight.kind != "linear" or not behind:
        return before[-1][1]
    (start, low), (end, high) = before[-1], behind[0]
    return low + (high - low) * (place - start) / (end - start)


def expected(counts: Sequence[int], config: Mix, before: int = 0) -> list[tuple[int, int]]:
    """Written down from the definition: position by position. ``before``: rows of the mixture in earlier epochs."""
    left, out, been, found = list(counts), set[int](), dict[int, int](), list[tuple[int, int]]()
    for position in endless():
        block, place = divmod(position, mixing.BLOCK)
        draw = (int(words(config.seed, config.epoch, MIX, block, place + 1)[place]) >> 11) / 2**53
        while len(out) < len(left):
            idle = [is_idle(weight, before + position, config.epoch) for weight in config.weights]
            if been.keys() - out and all(each or port in been for port, each in enumerate(idle)):
                return found
            weights = [weight_at(each, before + position, config.epoch) for each in config.weights]
            live = [0.0 if port in out else weight for port, weight in enumerate(weights)]
            if not any(live):
                live = [float(port not in out) for port in range(len(left))]
            shares = np.cumsum(live)
            port = int(np.searchsorted(shares, draw * shares[-1], side="right"))
            if left[port]:
                found.append((port, counts[port] - left[port]))
                left[port] -= 1
                break
            if port not in been:
                been[port] = 0
                if config.at_ends[port] == "stop" or len(been) == len(left):
                    return found
                if config.at_ends[port] == "go on" or not counts[port]:
                    out.add(port)
                continue
            found.append((port, int(places_again(config.seed, config.epoch, port, counts[port], been[port], 1)[0])))
            been[port] += 1
            break
    return found


def is_idle(weight: float | Schedule, position: int, epoch: int) -> bool:
    """Whether a stream has no weight from a position on."""
    if not isinstance(weight, Schedule):
        return False
    behind = [point for point, _ in weight.points if point > position] if weight.kind != "epochs" else []
    return not any(weight_at(weight, each, epoch) for each in (position, *behind))


@settings(max_examples=120, deadline=None)
@given(
    ports=st.lists(lengths, min_size=2, max_size=3),
    weights=st.lists(st.sampled_from((0.1, 1.0, 2.5)) | schedules, min_size=3, max_size=3),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 2),
    at_end=st.sampled_from(AT_ENDS) | st.lists(st.sampled_from(AT_ENDS), min_size=3, max_size=3),
    size=st.sampled_from(SIZES),
    turns=st.integers(0, 10),
    restore=st.booleans(),
    budget=st.sampled_from((None, 0, 200)),
    output_rows=st.sampled_from((2, 1024)),
)
def test_rows_are_those_of_the_definition_whoever_is_faster(
    ports: list[dict[tuple[int, int], int]],
    weights: list[float | Schedule],
    seed: int,
    epoch: int,
    at_end: Any,
    size: int,
    turns: int,
    restore: bool,
    budget: int | None,
    output_rows: int,
) -> None:
    at_end = at_end if isinstance(at_end, str) else tuple(at_end[: len(ports)])
    config = Mix(tuple(weights[: len(ports)]), seed, epoch, at_end)
    assume(any(not isinstance(weight, Schedule) or weight.kind == "epochs" for weight in config.weights))
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


def test_weights_follow_a_schedule() -> None:
    inputs = [numbered(port, {(0, 0): 100_000}) for port in range(2)]
    config = Mix((Schedule.steps({0: 3, 30_000: 0, 40_000: 1}), Schedule.linear({0: 1, 20_000: 1, 60_000: 9})), 7)
    first = run(config, *inputs, size=1000).table.column("port").to_numpy()

    def share(begin: int, end: int) -> float:
        return float(first[begin:end].mean())

    assert abs(share(0, 20_000) - 0.25) < 0.02
    assert share(30_000, 40_000) == 1.0
    assert abs(share(60_000, 90_000) - 0.9) < 0.02
    assert first[29_990:30_000].min() == 0, "the last rows before a step are drawn by the weights before it"


def test_a_stream_that_begins_again_has_each_row_once_in_each_turn_and_another_order() -> None:
    """The stream that is used up last ends the mixture, and none of its rows comes twice."""
    inputs = [numbered(0, {(0, 0): 50}), numbered(1, {(0, 0): 1000})]
    config = Mix((1, 1), 7, at_end="begin again")
    found = rows_of(run(config, *inputs, size=100, restore=True).table)
    assert found == expected((50, 1000), config)
    assert [n for port, n in found if port] == list(range(1000))
    first = [n for port, n in found if not port]
    assert len(first) > 800
    assert first[:50] == list(range(50))
    turns = [first[start : start + 50] for start in range(50, len(first) - 50, 50)]
    assert all(sorted(turn) == list(range(50)) for turn in turns)
    assert len(set(map(tuple, turns))) == len(turns)


def test_rows_of_the_last_stream_are_not_kept() -> None:
    running = Mix((1, 1), at_end="begin again").build(context(), [SCHEMA] * 2, None)
    output, kept = Collected(SCHEMA), []
    for port in (0, 1):
        if not port:
            (records,) = numbered(0, {(0, 0): 5})[0, 0].to_batches()
            exhaust(running.process(0, Batch(records, Tag(0, 0, 0)), output))
            exhaust(running.end_port(0, output))
    for round in range(4):
        (records,) = numbered(1, {(0, 0): 500})[0, 0].to_batches()
        exhaust(running.process(1, Batch(records, Tag(round, 0, 0)), output))
        exhaust(running.end_round(1, round, output))
        state = running.snapshot()
        kept.append(Counter(state.filter(pc.equal(state.column("round"), -2)).column("port").to_pylist()))
    assert kept[-1] == {0: 5}
    assert turns_begun(state)[0] > 100
    assert turns_begun(state)[1] == 0
    exhaust(running.end_port(1, output))
    exhaust(running.finish(output))
    assert running.snapshot() is None or len(running.snapshot()) == 2, "nothing is kept at the end"


def test_what_may_come_again_goes_to_disk() -> None:
    memory = TaskMemory(budget=1000)
    inputs = [numbered(0, {(0, 0): 3000}), numbered(1, {(0, 0): 9000})]
    config = Mix((1, 1), at_end="begin again")
    found = run(config, *inputs, size=500, memory=memory, output_rows=200)
    assert rows_of(found.table) == expected((3000, 9000), config)
    assert memory.statistics().spilled_bytes > 0
    assert memory.statistics().peak < 40_000


def test_a_mixture_that_comes_again_ends_where_the_others_have_no_weight_any_more() -> None:
    """Else it would never end."""
    config = Mix((1.0, Schedule.steps({0: 1, 40: 0})), 3, at_end="begin again")
    inputs = [numbered(0, {(0, 0): 5}), numbered(1, {(0, 0): 100})]
    for restore in (False, True):
        found = rows_of(run(config, *inputs, size=7, restore=restore).table)
        assert found == expected((5, 100), config)
        assert len(found) == 40


def test_a_batch_lets_go_of_a_bounded_part_where_streams_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cut takes the steps of a batch to their end; those of the end of a round may wait."""
    monkeypatch.setattr(mixing, "ENOUGH", 30)
    config = Mix((1.0, Schedule.steps({0: 1, 10: 0, 5_000: 1})), 3, at_end="begin again")
    running, output = config.build(replace(context(), output_rows=16), [SCHEMA] * 2, None), Collected(SCHEMA)
    for port, rows in ((0, 9), (1, 9)):
        (records,) = numbered(port, {(0, 0): rows})[0, 0].to_batches()
        exhaust(running.process(port, Batch(records, Tag(0, 0, 0)), output))
    exhaust(running.end_port(0, output))
    exhaust(running.end_round(1, 0, output))
    before = sum(batch.rows for batch in output.batches)
    (records,) = numbered(1, {(0, 0): 40})[0, 0].to_batches()
    exhaust(running.process(1, Batch(records, Tag(1, 0, 0)), output))
    assert 30 <= sum(batch.rows for batch in output.batches) - before < 60
    exhaust(running.end_round(1, 1, output))
    assert sum(batch.rows for batch in output.batches) > 5_000


@pytest.mark.parametrize("restored", [False, True])
def test_schedule_counts_on_behind_a_barrier_and_so_do_the_rows_of_each_stream(restored: bool) -> None:
    config = Mix((Schedule.steps({0: 1, 9: 0, 30: 1}), 1.0), 5, at_end="go on")
    running, before, given = config.build(context(), [SCHEMA] * 2, None), 0, [0, 0]
    for round, rows in enumerate(((5, 9), (8, 12), (5, 9), (0, 3))):
        assert _window(running, round, rows) == expected(rows, config, before)
        before, given = before + sum(rows), [sum(pair) for pair in zip(given, rows, strict=True)]
        state = running.snapshot()
        assert state is not None
        assert state.column("given").to_pylist() == given
        if restored:
            running = config.build(context(), [SCHEMA] * 2, state)


def test_state_of_an_earlier_release_has_no_counts_and_gives_the_same_rows() -> None:
    running = Mix((1, 2), 5, at_end="go on").build(context(), [SCHEMA] * 2, None)
    _window(running, 0, (5, 9))
    state = running.snapshot().drop_columns(["given"])
    again = Mix((1, 2), 5, at_end="go on").build(context(), [SCHEMA] * 2, state)
    assert _window(again, 1, (7, 7)) == _window(running, 1, (7, 7))
    assert again.snapshot().column("given").null_count == 2


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


@pytest.mark.parametrize("at_end", AT_ENDS)
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
        (Mix((1e308, 1e308)), "a weight of 1e\\+308"),
        (Mix((1e-320, 1e-320)), "a weight of 1e-320"),
        (Mix((1, 1), at_end="wait"), "at_end is 'wait'"),  # type: ignore[arg-type]
        (Mix((1, 1), at_end=("stop",)), "for all streams or for each"),
        (replace(Mix((1, 1)), seed=-1), "seed -1"),
        (Mix((Schedule.steps({0: 1, 7: 0}), Schedule.steps({0: 1, 5: 0, 8: 1}))), "no stream has a weight at row 7 in"),
        (Mix((Schedule.steps({0: 1, 7: 0}), Schedule.by_epoch([1, 0]))), "no stream has a weight at row 7 in epoch 1"),
    ],
)
def test_mix_refuses_what_it_cannot_mix(config: Mix, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        config.output_schema([SCHEMA, SCHEMA])


def test_mix_refuses_streams_of_other_columns() -> None:
    with pytest.raises(FlowError, match="stream 2 has columns"):
        Mix((1, 1)).output_schema([SCHEMA, pa.schema([("x", pa.int64())])])


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({}, "begins at no point"),
        ({1: 1.0}, "begins at 1"),
        ({-1: 1.0, 0: 1.0}, "begins at -1"),
        ({0: -1.0}, "a weight of -1"),
        ({0: float("nan")}, "does not fit"),
        ({0: 0.0, 5: 0.0}, "are all 0"),
        ({0: 1e308, 5: 1e308}, "a weight of 1e\\+308"),
        ({0.5: 1.0}, "does not fit"),
    ],
)
def test_schedule_refuses_what_is_none(points: Any, message: str) -> None:
    for make in (Schedule.steps, Schedule.linear):
        with pytest.raises(FlowError, match=message):
            make(points)


def test_schedule_says_what_it_does() -> None:
    found = Mix((Schedule.steps({0: 0.8, 1_000_000: 0.2}), Schedule.linear({0: 1, 50: 2}), Schedule.by_epoch([1, 3])))
    words = "0.8 → 0.2 at row 1,000,000 : 1 → 2 at row 50 (linear) : 1 → 3 at epoch 1, seed 0"
    assert found.describe().startswith(words)


class Steps:
    """Calls of a mixture, one step at a time, with a change of its course between any two."""

    def __init__(self, config: Mix, seed: int) -> None:
        self.config, self.random = config, random.Random(seed)
        self.running = config.build(replace(context(), output_rows=3), [SCHEMA] * 2, None)
        self.output = Collected(SCHEMA)
        self.changes: tuple[Reweight, ...] = ()
        self.held = self._limit = 0

    def take(self, steps: Any) -> None:
        for _ in steps or ():
            self.steer()

    def steer(self) -> None:
        """Sometimes hold it somewhere ahead, and change it there or not, at once or when it has come there."""
        if self.running.is_held:
            self.held += 1
            assert self.rows == self._limit, "it is held where it was to be"
            self.running.steer(self.changes, None)
        if self.random.random() < 0.3:
            possible = self.running.steer(self.changes, None)
            assert possible > self.rows, "no row from there on has left"
            self._limit = possible + self.random.randrange(6)
            change = Reweight(
                "mix", self._limit, ((self.random.randrange(2), self.random.choice((0.0, 1.0, 5.0))),), ""
            )
            assert self.running.steer(self.changes, self._limit) == possible
            if self.random.random() < 0.8:
                self.changes = (*self.changes, change)
            if self.random.random() < 0.5:
                self.running.steer(self.changes, None)

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.output.batches)


@pytest.mark.parametrize("at_end", AT_ENDS)
def test_changed_weights_hold_from_their_position_on_whenever_they_come(at_end: Any) -> None:
    """The rows are those of a mixture that was told of all changes when it was built, in the same rounds."""
    held = 0
    for seed in range(12):
        config = Mix((2.0, Schedule.steps({0: 1, 20: 3})) if seed % 2 else (2.0, 1.0), seed, at_end=at_end)
        sizes = [[3 + (seed * 7 + round * port) % 9 for round in range(6)] for port in range(2)]
        inputs = [numbered(port, {(round, 0): size for round, size in enumerate(sizes[port])}) for port in range(2)]
        world = Steps(config, seed)
        _give(world.running, inputs, world.output, world.take)
        again = config.build(replace(context(), output_rows=3, reweights=world.changes), [SCHEMA] * 2, None)
        output = Collected(SCHEMA)
        _give(again, inputs, output, exhaust)
        assert _in_rounds(world.output) == _in_rounds(output)
        held += world.held
    assert held > 12


def test_a_mixture_that_is_held_lets_a_cut_stand_and_gives_the_rest_when_it_goes_on() -> None:
    """The steps of a batch come to their end, also where it is held; those of an end wait, and may be left."""
    config, units = Mix((1, 1), 5, at_end="go on"), [numbered(port, {(0, 0): 10}) for port in range(2)]
    whole = Collected(SCHEMA)
    running = config.build(replace(context(), output_rows=3), [SCHEMA] * 2, None)
    running.steer((), 4)
    out = Collected(SCHEMA)
    for port in range(2):
        (records,) = units[port][0, 0].to_batches()
        exhaust(running.process(port, Batch(records, Tag(0, 0, 0)), out))
    assert running.is_held
    assert sum(batch.rows for batch in out.batches) == 4
    exhaust(running.end_round(0, 0, out))
    steps = running.end_round(1, 0, out)
    assert [next(steps), next(steps)] == [None, None]
    again = config.build(replace(context(), output_rows=3), [SCHEMA] * 2, running.snapshot())
    rest = Collected(SCHEMA)
    for each, until in ((again, rest), (config.build(context(), [SCHEMA] * 2, None), whole)):
        if each is not again:
            for port in range(2):
                (records,) = units[port][0, 0].to_batches()
                exhaust(each.process(port, Batch(records, Tag(0, 0, 0)), until))
            exhaust(each.end_round(0, 0, until))
        exhaust(each.end_round(1, 0, until))
        exhaust(each.finish(until))
    assert [*_rows(out), *_rows(rest)] == _rows(whole)


def _rows(output: Collected) -> list[tuple[Any, ...]]:
    return [row for batch in output.batches for row in rows_of(batch.records)]


def _in_rounds(output: Collected) -> list[tuple[Any, ...]]:
    return [(batch.tag.round, *row) for batch in output.batches for row in rows_of(batch.records)]


def _give(running: Any, inputs: Sequence[Units], output: Collected, take: Any) -> None:
    for round in range(6):
        for port, units in enumerate(inputs):
            (records,) = units[round, 0].to_batches()
            take(running.process(port, Batch(records, Tag(round, 0, 0)), output))
            take(running.end_round(port, round, output))
    for port in range(2):
        running.end_port(port, output)
    take(running.finish(output))


def test_state_of_an_earlier_release_cannot_be_reweighed() -> None:
    """It does not say at which position it stands."""
    running = Mix((1, 2), 5, at_end="go on").build(context(), [SCHEMA] * 2, None)
    assert running.steer((), None) == 1
    _window(running, 0, (5, 9))
    assert running.steer((), None) == 15
    state = running.snapshot()
    assert Mix((1, 2), 5, at_end="go on").build(context(), [SCHEMA] * 2, state).steer((), None) == 15
    old = Mix((1, 2), 5, at_end="go on").build(context(), [SCHEMA] * 2, state.drop_columns(["given"]))
    assert old.steer((), None) is None


def test_state_that_is_being_written_stays_what_it_was() -> None:
    running = Mix((1, 2), 5, at_end="go on").build(context(), [SCHEMA] * 2, None)
    _window(running, 0, (5, 9))
    state = running.snapshot()
    before = state.to_pylist()
    _window(running, 1, (5, 9))
    assert state.to_pylist() == before
