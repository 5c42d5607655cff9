"""Sample: which rows are taken follows from seed, lane and place alone."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.epochs import Epochs
from penstock.engine.core.errors import FlowError
from penstock.engine.kernels.counter_random import words
from penstock.engine.operators import Sample
from penstock.engine.operators.sequence.sample import BLOCK
from support.operator_harness import LANES, SIZES, Collected, context, run

SCHEMA = pa.schema([("lane", pa.int64()), ("place", pa.int64())])


def units_of(lengths: dict[tuple[int, int], int]) -> dict[tuple[int, int], pa.Table]:
    """Rows that say their lane, and their place in it."""
    places = dict.fromkeys(range(LANES), 0)
    found = {}
    for round, lane in sorted(lengths):
        rows = range(places[lane], places[lane] + lengths[round, lane])
        places[lane] = rows.stop
        found[round, lane] = pa.table([[lane] * len(rows), list(rows)], schema=SCHEMA)
    return found


def is_taken(config: Sample, lane: int, place: int) -> bool:
    """Written down from the definition."""
    word = int(words(config.seed, lane, 5, place // BLOCK, BLOCK)[place % BLOCK])
    return (word >> 11) / 2**53 < config.fraction


@settings(max_examples=40, deadline=None)
@given(
    fraction=st.sampled_from((0.0, 1e-9, 0.3, 0.5, 0.999, 1.0)),
    seed=st.integers(0, 3),
    size=st.sampled_from(SIZES),
    lengths=st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, LANES - 1)), st.integers(0, 30), max_size=10),
    restore=st.booleans(),
    parallelisms=st.sampled_from(((1,), (2,), (1, 2, 4), (4, 1))),
)
def test_rows_are_taken_by_their_places_whatever_the_batches_restores_and_parallelism(
    fraction: float,
    seed: int,
    size: int,
    lengths: dict[tuple[int, int], int],
    restore: bool,
    parallelisms: tuple[int, ...],
) -> None:
    config, units = Sample(fraction, seed), units_of(lengths)
    found = run(config, units, schemas=[SCHEMA], size=size, restore=restore, parallelisms=parallelisms)
    rows = [row for at in sorted(units) for row in units[at].to_pylist()]
    assert found.table.to_pylist() == [row for row in rows if is_taken(config, row["lane"], row["place"])]


def test_numbers_go_on_from_block_to_block_and_a_larger_fraction_takes_more() -> None:
    units = units_of({(0, 1): BLOCK - 3, (1, 1): 2 * BLOCK + 5, (1, 2): 7})
    fewer, more = (run(Sample(fraction, 9), units, size=5000).table for fraction in (0.2, 0.21))
    assert all(is_taken(Sample(0.2, 9), row["lane"], row["place"]) for row in fewer.to_pylist())
    assert abs(fewer.num_rows / (3 * BLOCK) - 0.2) < 0.01
    assert {*map(repr, fewer.to_pylist())} < {*map(repr, more.to_pylist())}


def test_every_epoch_has_the_same_sample() -> None:
    running = Sample(0.5, 1).build(replace(context(), epochs=Epochs(2, 2)), [SCHEMA], None)
    out = Collected(SCHEMA)
    for round in range(4):
        rows = pa.RecordBatch.from_arrays([pa.array([0] * 50), pa.array(range(50))], schema=SCHEMA)
        running.process(0, Batch(rows, Tag(round, 0, 0)), out)
        running.end_round(0, round, out)
    one, two, again, and_two = (batch.records.column("place").to_pylist() for batch in out.batches)
    assert (one, two) == (again, and_two)
    assert one != two


def test_splits_are_not_drawn_in_front_of_a_sample() -> None:
    def drawn(sampled: bool) -> bool:
        flow = ps.Flow("sampled")
        rows = flow.from_tables([pa.table({"n": range(100)})] * 8)
        (rows.sample(0.5) if sampled else rows).feed(8, shuffle=16)
        return "read in a drawn order" in flow.explain()

    assert drawn(sampled=False)
    assert not drawn(sampled=True)


@pytest.mark.parametrize(
    ("config", "message"),
    [(Sample(-0.1), "fraction -0.1"), (Sample(float("nan")), "fraction nan"), (Sample(0.5, -1), "seed -1")],
)
def test_sample_refuses_impossible_numbers(config: Sample, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        config.output_schema([SCHEMA])
