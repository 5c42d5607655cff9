"""A room in bytes under random pieces, ranks, barriers and restarts: every batch comes, once, and memory is bounded."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from penstock.engine.core.identity import Attempt, CheckpointId
from penstock.engine.core.operator import do_nothing
from penstock.engine.feed.messages import Ask, FeedEnded, Slice
from penstock.engine.feed.sequencer import Sequencer
from penstock.engine.feed.server import FeedServer
from penstock.engine.feed.sink import FeedSink

TURNS = 100_000


class Run:
    """A feed whose rows have random widths, and ranks that are slower or faster."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.rows, self.ranks, self.epochs = random.randint(0, 400), random.randint(1, 3), random.choice((1, 1, 3))
        self.widths = [random.choice((1, 5, 5, 300)) for _ in range(self.rows)]
        size, keep = random.randint(1, 40), random.choice((0, 0, 70))
        self.config = FeedSink.of(
            "feed", size, random.random() < 0.3, f"{random.choice((1, 50, 900))}B", keep, self.epochs
        )
        self.server: FeedServer = FeedServer("feed")
        #: in all epochs
        self.position = self.checkpoints = self.attempts = 0
        self.expected = self.ended = False
        self.open(Sequencer(self.config.settings, sizing=self.size_of))
        self.asks = [Ask(f"rank {rank}", rank, self.ranks, 0, 0, 0, 0) for rank in range(self.ranks)]
        self.found: list[list[list[int]]] = [[] for _ in range(self.ranks)]
        self.done = [False] * self.ranks

    def size_of(self, piece: pa.RecordBatch) -> int:
        return sum(self.widths[n] for n in piece.column(0).to_pylist())

    def open(self, sequencer: Sequencer[pa.RecordBatch]) -> None:
        self.attempts += 1
        self.sequencer, self.expected = sequencer, False
        self.server.open(sequencer, do_nothing, Attempt(1, self.attempts))

    def feed(self) -> None:
        """The driver's turn: rows if they are wanted, no more than to the end of the epoch."""
        if self.ended or not self.server.accepts_rows or (self.server.is_full and not self.expected):
            return
        at = self.position % self.rows if self.rows else 0
        count = min(self.random.randint(1, 60), self.rows - at)
        if count:
            self.server.accept(pa.record_batch({"n": list(range(at, at + count))}))
            self.position += count
        if at + count == self.rows:
            self.server.end_epoch() if self.epochs > 1 else None
            if self.position == self.rows * self.epochs:
                self.ended = True
                self.server.end()

    def checkpoint(self) -> None:
        """One that is announced, taken, aborted, or restored."""
        choice = self.random.random()
        id = CheckpointId(1, self.checkpoints + 1)
        if not self.expected:
            self.server.expect(id)
            self.expected = True
        elif choice < 0.3:
            self.server.give_up(id)
            self.expected, self.checkpoints = False, self.checkpoints + 1
        elif choice < 0.6:
            state, at = self.server.state() or (None, (0, False, False))
            assert state is not None
            self.server.on_snapshot(id, at, state.first)
            self.server.committed(id)
            self.expected, self.checkpoints = False, self.checkpoints + 1
            if choice < 0.4:
                self.server.close(self.sequencer)
                self.open(Sequencer.restored(state, self.config.settings, sizing=self.size_of))

    def read(self, rank: int) -> None:
        """A rank asks for some batches, and takes some of those that come."""
        ask = self.asks[rank]
        wanted = tuple(range(ask.taken, ask.taken + self.random.randint(1, 5)))
        reply = self.server.serve(Ask(ask.session, rank, self.ranks, 0, ask.generation, ask.taken, 0, wanted), 0.0)
        generation = ask.generation if reply.group is None else reply.group.generation
        taken = ask.taken
        for answer in reply.answers:
            if isinstance(answer, FeedEnded):
                self.done[rank] = taken >= answer.batches
            elif isinstance(answer, Slice) and answer.batch == taken:
                self.found[rank].append([n for piece in answer.rows for n in piece.column(0).to_pylist()])
                taken += 1
        self.asks[rank] = Ask(ask.session, rank, self.ranks, 0, generation, taken, 0)

    def check(self) -> None:
        self.sequencer.validate()
        if not self.expected and self.checkpoints == 0:  # nothing has come because of a barrier
            beside = self.config.kept + 2 * self.config.batch_size + 2 * 60 + 1
            assert self.sequencer.kept_bytes <= (self.config.room_bytes or 0) + 300 * beside

    def batches(self) -> list[list[int]]:
        size = self.config.batch_size
        each = [list(range(at, min(at + size, self.rows))) for at in range(0, self.rows, size)]
        return [batch for batch in each if len(batch) == size or not self.config.drop_last] * self.epochs


@pytest.mark.parametrize("start", range(0, 300, 30))
def test_every_batch_comes_once_whatever_the_room_and_no_more_is_held(start: int) -> None:
    for seed in range(start, start + 30):
        run = Run(seed)
        calm = run.random.random() < 0.4  # without checkpoints
        for _ in range(TURNS):
            choice = run.random.random()
            if choice < 0.5:
                run.feed()
            elif choice < 0.9 or calm:
                run.read(run.random.randrange(run.ranks))
            else:
                run.checkpoint()
            run.check()
            if all(run.done):
                break
        assert all(run.done), f"seed {seed} stands still"
        whole = [[n for part in parts for n in part] for parts in zip(*run.found, strict=True)]
        assert whole == run.batches(), f"seed {seed}"
