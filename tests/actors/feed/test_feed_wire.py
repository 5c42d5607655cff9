"""Replies of a feed on their way: slices that travel together come back as they were; what is taken is told in time."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pyarrow as pa
import pytest

from penstock.actors.feed.prefetch import WANTED_AT_ONCE, Prefetcher
from penstock.actors.feed.wire import JOINED_BYTES, ReplyReader, ReplyWriter
from penstock.actors.transport.frames import GarbageError
from penstock.engine.feed.messages import Ask, FeedEnded, RankGroup, Reply, Slice
from support.feeds import wait_for

ROWS = 100


def rows(first: int, count: int) -> pa.RecordBatch:
    """Numbers, nested values, and texts of a dictionary that differs from batch to batch."""
    numbers = list(range(first, first + count))
    words = pa.array([f"w{n % 7 + first // 50}" for n in numbers], pa.string()).dictionary_encode()
    nested = pa.array([{"at": n, "all": [n] * (n % 3)} for n in numbers], pa.struct(
        [("at", pa.int64()), ("all", pa.list_(pa.int64()))]))  # fmt: skip
    return pa.RecordBatch.from_arrays([pa.array(numbers), words, nested], ["n", "word", "nested"])


def slice_of(batch: int, *parts: pa.RecordBatch) -> Slice[pa.RecordBatch]:
    return Slice(3, 1, batch, batch * ROWS, parts, ROWS)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def sent(ends: tuple[socket.socket, socket.socket], parts: list[object]) -> int:
    """Put everything on the wire; the bytes."""
    data = b"".join(bytes(part) for part in parts)
    ends[0].sendall(data)
    return len(data)


def test_slices_that_travel_together_come_back_row_by_row(ends: tuple[socket.socket, socket.socket]) -> None:
    writer, reader = ReplyWriter(), ReplyReader(ends[1])
    whole = rows(0, 250)
    for _ in range(2):
        answers = (
            slice_of(0, whole.slice(0, 60), whole.slice(60, 40)),
            slice_of(1),
            slice_of(2, rows(200, 100)),
            slice_of(3, whole.slice(10, 1)),
            FeedEnded(3, 4, 4),
        )
        sent(ends, writer.parts(Reply(RankGroup(3, 2, 0), answers, "words")))
        reply = reader.next()
        assert (reply.group, reply.reason, len(reply.answers)) == (RankGroup(3, 2, 0), "words", 5)
        for given, found in zip(answers, reply.answers, strict=True):
            if not isinstance(given, Slice):
                assert found == given
                continue
            assert isinstance(found, Slice)
            assert (found.batch, found.first, found.batch_rows) == (given.batch, given.first, given.batch_rows)
            assert [row for each in found.rows for row in each.to_pylist()] == [
                row for each in given.rows for row in each.to_pylist()
            ]


def test_a_window_of_small_slices_is_one_piece_and_large_ones_are_not_copied() -> None:
    writer = ReplyWriter()
    small = [slice_of(batch, rows(batch * 10, 10)) for batch in range(8)]
    writer.parts(Reply(RankGroup(3, 2, 0), tuple(small)))  # the schema travels with the first
    one, together = (writer.parts(Reply(RankGroup(3, 2, 0), tuple(some))) for some in (small[:1], small))
    assert len(together) == len(one)
    large = pa.RecordBatch.from_arrays([pa.array(range(JOINED_BYTES // 8))], ["n"])
    parts = writer.parts(Reply(RankGroup(3, 2, 0), (slice_of(0, large), slice_of(1, large))))
    buffers = [part.address for part in parts if isinstance(part, pa.Buffer)]
    assert buffers.count(large.column(0).buffers()[1].address) == 2


def test_fewer_rows_than_were_told_are_garbage(ends: tuple[socket.socket, socket.socket]) -> None:
    parts = ReplyWriter().parts(Reply(RankGroup(3, 2, 0), (slice_of(0, rows(0, 10)),)))
    longer = ReplyWriter().parts(Reply(RankGroup(3, 2, 0), (slice_of(0, rows(0, 20)),)))
    sent(ends, [*longer[:2], *parts[2:]])
    with pytest.raises(GarbageError, match="fewer rows"):
        ReplyReader(ends[1]).next()


class Feed:
    """A link to a feed that has everything at once, and writes down what it is told."""

    def __init__(self) -> None:
        self.asked: list[Ask] = []
        self.told: list[Ask] = []

    def ask(self, ask: Ask, timeout: float) -> Reply[pa.RecordBatch]:
        self.asked.append(ask)
        answers = tuple(Slice(1, 0, batch, batch * ROWS, (rows(0, 10),), ROWS) for batch in ask.wanted)
        return Reply(RankGroup(1, 1, 0), answers)

    def notify(self, ask: Ask) -> None:
        self.told.append(ask)

    def close(self) -> None:
        """Nothing is held."""


def test_what_was_taken_is_told_in_time_though_no_question_is_asked() -> None:
    feed = Feed()
    prefetcher = Prefetcher(feed, "feed", 0, 1, 0, 20)
    for batch in range(3):
        found = prefetcher.take(60)
        assert found is not None
        assert found.batch == batch
    wait_for(lambda: any(said.taken == 3 for said in feed.told + feed.asked))
    assert len(feed.told) <= 3
    prefetcher.close(0.0)


def test_small_slices_are_fetched_far_ahead_if_nobody_says_how_far() -> None:
    feed = Feed()
    prefetcher = Prefetcher(feed, "feed", 0, 1, 0, None)
    for _ in range(40):
        assert prefetcher.take(60) is not None
    assert max(len(each.wanted) for each in feed.asked) > 16
    prefetcher.close(0.0)


def test_many_batches_ahead_are_asked_for_some_at_a_time() -> None:
    feed = Feed()
    prefetcher = Prefetcher(feed, "feed", 0, 1, 0, 3000)
    for _ in range(1500):
        assert prefetcher.take(60) is not None
    assert max(len(each.wanted) for each in feed.asked) == WANTED_AT_ONCE
    prefetcher.close(0.0)


def test_so_many_slices_are_fetched_ahead_as_have_the_bytes_that_were_asked_for() -> None:
    class Widening(Feed):
        def ask(self, ask: Ask, timeout: float) -> Reply[pa.RecordBatch]:
            self.asked.append(ask)
            wanted = ((batch, 10 if batch < 60 else 100) for batch in ask.wanted)
            return Reply(RankGroup(1, 1, 0), tuple(Slice(1, 0, at, 0, (rows(0, n),), ROWS) for at, n in wanted))

    feed = Widening()
    one = rows(0, 10).nbytes
    prefetcher = Prefetcher(feed, "feed", 0, 1, 0, None, ahead_bytes=45 * one)
    for _ in range(120):
        assert prefetcher.take(60) is not None
        cursor = prefetcher._cursor
        assert cursor is not None
        assert sum(each.nbytes for found in cursor.next_arrived(100) for each in found.rows) <= 46 * 10 * one
    assert max(len(each.wanted) for each in feed.asked) > 20
    assert prefetcher._ahead == 4
    prefetcher.close(0.0)
