"""A feed's sequencer in several epochs: which batches end one, and when that is known."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa

from penstock.engine.feed.batch_grid import BatchGrid
from penstock.engine.feed.messages import FeedEnded, NotYet, RankGroup, Slice
from penstock.engine.feed.sequencer import FeedSettings, Sequencer
from penstock.engine.feed.state import read_state, write_state
from penstock.engine.kernels.hashing import hashes

SCHEMA = pa.schema([("n", pa.int64())])
ALONE = RankGroup(1, 1, 0)


def rows(start: int, stop: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(start, stop), pa.int64())})


def row_hashes(batch: pa.RecordBatch) -> np.ndarray:
    return hashes(batch.columns)


def sequencer(drop_last: bool) -> Sequencer[pa.RecordBatch]:
    made: Sequencer[pa.RecordBatch] = Sequencer(FeedSettings(10, drop_last=drop_last, certain=True, epochs=2))
    made.join(ALONE, 0)
    return made


def test_batch_is_handed_out_when_it_is_known_whether_it_ends_its_epoch() -> None:
    made = sequencer(drop_last=False)
    made.accept(rows(0, 10))
    assert isinstance(made.read(1, 0, 0), NotYet)
    assert made.starves
    made.accept(rows(10, 11))
    assert made.read(1, 0, 0) == Slice(1, 0, 0, 0, (rows(0, 10),), 10, 0, False)
    made.end_epoch()
    assert made.read(1, 0, 1) == Slice(1, 0, 1, 10, (rows(10, 11),), 1, 0, True)
    made.accept(rows(11, 31))
    made.end_epoch()
    made.end()
    batches = [made.read(1, 0, batch) for batch in (2, 3)]
    assert [(batch.epoch, batch.last) for batch in batches if isinstance(batch, Slice)] == [(1, False), (1, True)]
    assert made.read(1, 0, 4) == FeedEnded(1, 4, 4)


def test_batch_before_rows_that_may_be_dropped_waits_for_a_whole_one_or_the_end() -> None:
    made = sequencer(drop_last=True)
    made.accept(rows(0, 19))
    assert isinstance(made.read(1, 0, 0), NotYet), "whether there is a second batch is not known"
    made.end_epoch()
    assert made.read(1, 0, 0) == Slice(1, 0, 0, 0, (rows(0, 10),), 10, 0, True)
    made.accept(rows(19, 39))
    assert made.read(1, 0, 1) == Slice(1, 0, 1, 19, (rows(19, 29),), 10, 1, False)


def test_state_tells_where_epochs_have_ended() -> None:
    made: Sequencer[pa.RecordBatch] = Sequencer(FeedSettings(10, epochs=2), row_hashes)
    made.accept(rows(0, 13))
    made.end_epoch()
    made.accept(rows(13, 20))
    state = made.state()
    assert read_state(write_state(state, 0, SCHEMA), SCHEMA).ends == state.ends
    assert [end.position for end in state.ends] == [13]
    assert state.ends[0].content != state.order.content
    older = write_state(made.state(), 0, SCHEMA).drop_columns(["ends"])
    assert read_state(older, SCHEMA).ends == ()


def test_epochs_end_within_batches_whatever_the_pieces_the_restores_and_the_ranks() -> None:
    for seed in range(60):
        chance = random.Random(seed)
        drop_last, ends = chance.random() < 0.5, [0]
        for _ in range(3):
            ends.append(ends[-1] + chance.choice([0, 10, 20, chance.randint(1, 35)]))
        options = FeedSettings(10, drop_last=drop_last, certain=True, epochs=3)
        grid = BatchGrid.of(10, drop_last, ends[1:])
        made: Sequencer[pa.RecordBatch] = Sequencer(options, row_hashes)
        group, found, due, generation = RankGroup(1, chance.randint(1, 3), 0), [], 0, 1
        made.join(group, 0)
        for epoch, end in enumerate(ends[1:]):
            while made.position < end:
                count = chance.randint(1, end - made.position)
                made.accept(rows(made.position, made.position + count))
                while (slices := _slices(made, group, due)) is not None:
                    found.append(slices)
                    due += 1
                    for rank in range(group.ranks):
                        made.acknowledge(generation, rank, due, due if chance.random() < 0.5 else 0)
                made.validate()
                if chance.random() < 0.3:
                    made = Sequencer.restored(made.state(), options, row_hashes)
                    generation += 1
                    group = RankGroup(generation, chance.randint(1, 3), due)
                    assert made.join(group, due) == group
            made.end_epoch()
            assert len(made.ends) == epoch + 1
        made.end()
        while (slices := _slices(made, group, due)) is not None:
            found.append(slices)
            due += 1
        assert isinstance(made.read(generation, 0, due), FeedEnded)
        expected = [
            (grid.epoch_of(batch), grid.is_last(batch), list(range(grid.first_row(batch), grid.end_row(batch))))
            for batch in range(grid.first)
        ]
        assert found == expected, f"seed {seed}"


def _slices(made: Sequencer[pa.RecordBatch], group: RankGroup, batch: int) -> tuple[int, bool, list[int]] | None:
    """The whole batch, if it is there: epoch, whether it is the last one, rows."""
    parts = [made.read(group.generation, rank, batch) for rank in range(group.ranks)]
    slices = [part for part in parts if isinstance(part, Slice)]
    if not slices:
        return None
    assert len(slices) == group.ranks
    values = [value for part in slices for piece in part.rows for value in piece.column(0).to_pylist()]
    assert len({(part.epoch, part.last) for part in slices}) == 1
    return slices[0].epoch, slices[0].last, values
