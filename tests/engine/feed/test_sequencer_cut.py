"""A feed's sequencer over batches that were cut by cost: whatever the pieces, the restores and the ranks."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.identity import Attempt, CheckpointId, TaskId
from penstock.engine.core.operator import OperatorContext, RunningOperator, do_nothing
from penstock.engine.feed.digests import BatchDigests, CutDigests
from penstock.engine.feed.marks import END, Marks, marked
from penstock.engine.feed.messages import Ask, FeedEnded, NotYet, RankGroup, Slice
from penstock.engine.feed.sequencer import FeedSettings, Sequencer
from penstock.engine.feed.server import FeedServer
from penstock.engine.feed.sink import CutFeedSink, FeedSink
from penstock.engine.feed.state import read_state, write_state
from penstock.engine.kernels.hashing import hashes
from support.operator_harness import Collected
from support.sweeps import seeds

SCHEMA = marked(pa.schema([("n", pa.int64())]))


def rows_of(batches: list[list[int]]) -> pa.RecordBatch:
    flags = [at == len(batch) - 1 for batch in batches for at in range(len(batch))]
    numbers = [number for batch in batches for number in batch]
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array(flags, pa.bool_())], schema=SCHEMA)


def settings_of(room: int, keep: int, epochs: int) -> FeedSettings:
    return CutFeedSink.over(FeedSink.of("feed", 1, False, room, keep, epochs), 100, "n").settings


def read(made: Sequencer[Any], batch: int, ranks: int) -> list[int] | None:
    """The batch by all ranks of the group; None: it is not there."""
    found = [made.read(made.group.generation, rank, batch) for rank in range(ranks)]
    assert len({type(each) for each in found}) == 1
    if not isinstance(found[0], Slice):
        assert isinstance(found[0], NotYet), found
        return None
    assert {each.batch_rows for each in found} == {sum(rows.num_rows for each in found for rows in each.rows)}
    assert all(rows.schema.names == ["n"] for each in found for rows in each.rows)
    return sorted(number for each in found for rows in each.rows for number in rows.column("n").to_pylist())


@pytest.mark.parametrize("seed", seeds(80, of=2000))
def test_batches_are_handed_out_as_they_were_cut(seed: int) -> None:
    chance = random.Random(seed)
    epochs, batches, at = [], [], 0
    for _ in range(chance.randint(1, 3)):
        for _ in range(chance.randint(1, 6)):
            batches.append(list(range(at, at := at + chance.randint(1, 9))))
        epochs.append(len(batches))
    settings = settings_of(chance.choice((1, 5, 30)), chance.choice((0, 12)), len(epochs))
    marks = Marks(SCHEMA, chance.choice((None, "n")))

    def hashing(rows: pa.RecordBatch) -> Any:
        return hashes(marks.bare(rows).columns)

    def sizing(rows: pa.RecordBatch) -> int:
        return int(rows.nbytes)

    made: Sequencer[pa.RecordBatch] = Sequencer(settings, hashing, sizing, marks)
    pending = [piece for epoch, end in enumerate(epochs) for piece in pieces(chance, batches, epochs, epoch, end)]
    kept: tuple[Any, list[Any]] = (made.state(), list(pending))
    ranks, generation, taken = chance.randint(1, 4), 1, 0
    made.join(RankGroup(generation, ranks, 0), 0)
    while taken < len(batches):
        what = chance.random()
        if what < 0.1:
            kept = (made.snapshot(CheckpointId(1, generation)), list(pending))
            made.committed(CheckpointId(1, generation))
            assert kept[0].next_batch(1, False) == sum(batch[0] < made.position for batch in batches)
        elif what < 0.2:
            stored = read_state(write_state(kept[0], 0, SCHEMA), SCHEMA)
            assert replace(stored, rows=()) == replace(kept[0], rows=())
            pending = list(kept[1])
            made = Sequencer.restored(stored, settings, hashing, sizing, marks)
            ranks, generation = chance.randint(1, 4), generation + 1
            taken = max(made.oldest, min(taken, made.oldest + chance.randint(0, 9)))
            made.join(RankGroup(generation, ranks, taken), taken)
            for rank in range(ranks):
                made.acknowledge(generation, rank, taken, 0)
        elif (found := read(made, taken, ranks)) is None:
            assert pending, "the feed waits for rows, and none are left"
            assert made.ready, "there is no room for the batch that is wanted"
            give(made, pending.pop(0))
        else:
            assert found == batches[taken]
            last = made.read(generation, 0, taken)
            assert isinstance(last, Slice)
            assert last.last == (len(epochs) > 1 and taken + 1 in epochs)
            assert last.epoch == sum(end <= taken for end in epochs)
            taken += 1
            for rank in range(ranks):
                made.acknowledge(generation, rank, taken, 0)
            assert read(made, taken - 1, ranks) == batches[taken - 1], "one batch stays"
        made.validate()
    while pending:
        give(made, pending.pop(0))
    assert made.read(generation, 0, taken) == FeedEnded(generation, taken, len(batches))


def test_status_knows_how_many_rows_are_ahead() -> None:
    marks = Marks(SCHEMA, None)
    server: FeedServer = FeedServer("feed")
    server.open(Sequencer(settings_of(100, 0, 1), None, lambda rows: 8 * rows.num_rows, marks), do_nothing)
    joined = Ask("one", 0, 1, 0, 0, 0, 0)
    server.accept(rows_of([[1, 2], [3, 4, 5], [6], [7, 8, 9]]))
    generation = server.serve(joined, 0.0).group.generation
    server.serve(Ask("one", 0, 1, 0, generation, 0, 0, (0, 1, 2, 3)), 0.0)
    server.notify(Ask("one", 0, 1, 0, generation, 1, 0))
    (rank,) = server.status().ranks
    assert (rank.ahead, rank.bytes_ahead) == (3, 8 * 7)


def pieces(chance: random.Random, batches: list[list[int]], epochs: list[int], epoch: int, end: int) -> list[Any]:
    """What comes of an epoch: rows in pieces, and its end."""
    whole, found = rows_of(batches[epochs[epoch - 1] if epoch else 0 : end]), []
    while whole.num_rows:
        count = chance.randint(1, 12)
        found.append(whole.slice(0, count))
        whole = whole.slice(count)
    return [*found, "end" if end == len(batches) else "end of epoch"]


def give(made: Sequencer[Any], piece: Any) -> None:
    if isinstance(piece, str):
        made.end() if piece == "end" else made.end_epoch()
    else:
        made.accept(piece)


def test_ranks_are_not_further_apart_than_the_room() -> None:
    made: Sequencer[pa.RecordBatch] = Sequencer(settings_of(7, 0, 1), None, None, Marks(SCHEMA, None))
    made.join(RankGroup(1, 2, 0), 0)
    made.accept(rows_of([[1, 2, 3], [4, 5, 6], [7, 8], [9]]))
    assert not made.ready
    made.acknowledge(1, 0, 2, 0)
    assert [isinstance(made.read(1, 0, batch), Slice) for batch in range(4)] == [True, True, True, False]
    made.acknowledge(1, 1, 1, 0)
    assert isinstance(made.read(1, 0, 3), Slice)


def test_digests_are_those_of_batches_of_so_many_rows() -> None:
    found, expected = CutDigests(), BatchDigests(4)
    for first in range(0, 12, 3):
        records = rows_of([[first, first + 1, first + 2]])
        numbers = hashes(records.select(["n"]).columns)
        expected.add(numbers)
        found.add(numbers, [end for end in (1, 2, 3) if (first + end) % 4 == 0])
    assert (found.take().digests == expected.take().digests).all()
    assert found.take().first == 3
    assert END in records.schema.names


@pytest.mark.parametrize("seed", seeds(40, of=1000))
def test_digests_go_on_from_a_checkpoint_in_the_middle_of_a_batch(seed: int) -> None:
    chance, at = random.Random(seed), 0
    batches = [list(range(at, at := at + chance.randint(1, 9))) for _ in range(6)]
    given = pieces(chance, batches, [6], 0, 6)[:-1]

    def digests_of(cuts: int) -> dict[int, int]:
        found: dict[int, int] = {}
        server = FeedServer("feed")
        server.record = lambda run, _: found.update(enumerate(run.digests.tolist(), run.first))
        sink = opened(server, None)
        for number, piece in enumerate(given):
            sink.process(0, Batch(piece, Tag(0, 0, number)), Collected(SCHEMA))
            if cuts & 1 << number:
                stored = sink.snapshot()
                sink.flush(CheckpointId(1, number))
                sink = opened(server, stored)
        sink.flush(CheckpointId(1, len(given)))
        return found

    undisturbed = digests_of(0)
    assert sorted(undisturbed) == list(range(6))
    assert digests_of(chance.getrandbits(len(given))) == undisturbed


def opened(server: FeedServer, stored: pa.Table | None) -> RunningOperator:
    config = CutFeedSink.over(FeedSink.of("feed", 1, False, 30, 12), 100, "n")
    context = OperatorContext("feed", TaskId("feed", 0), Attempt(1, 1), 1, range(1), server=server)
    return config.build(context, [SCHEMA], stored)
