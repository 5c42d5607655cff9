"""The sink that ends a flow in a feed: gives rows their global positions and keeps them for the ranks that read.

The rules are the sequencer's (``sequencer``), the ranks ask the feed server (``server``). It commits nothing: what a
rank has read is the rank's business, and what a restart repeats has the same positions, so that readers recognise it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from ..core.byte_sizes import bytes_of
from ..core.elements import Batch
from ..core.epochs import ends_epoch
from ..core.errors import FlowError
from ..core.identity import CheckpointId, CommitPermit, Committable
from ..core.operator import Committer, OperatorContext, Output, Stateless
from ..core.schemas import duplicate_of
from ..core.traits import State, Traits
from ..kernels.hashing import Hashes, hashes
from ..kernels.pieces import Positions
from .batch_grid import BatchGrid
from .digests import BatchDigests, CutDigests
from .marks import Marks, marked, unmarked
from .measures import Given, check_measure
from .messages import RankGroup
from .progress import GroupProgress
from .sequencer import FeedSettings, Sequencer, SnapshotPosition
from .server import FeedServer
from .state import SequencerState, read_state, write_state

MOST_ROWS = 2**31 - 1
"""Of a global batch: as many as one list of Arrow can number."""
MOST_EPOCHS = 1_000_000
"""The audit counts every split of each."""
CONTIGUOUS = "contiguous"
"""A rank has one run of the rows of each global batch."""
LEAST_ROOM = 128 * 1024
BATCHES_OF_ROOM = 16
BYTES_OF_ROOM = 256 << 20
"""Where the user does not say how much room there is, no more than so many bytes: rows may be large."""
ANY_ROWS = 1 << 40
"""The room in rows where the user gives it in bytes."""


@dataclass(frozen=True, slots=True)
class FeedSink:
    """``room``: rows that may wait for the slowest rank, ``room_bytes``: and their bytes, if they matter; ``keep``:
    rows that all ranks have taken and not saved."""

    name: str
    batch_size: int
    drop_last: bool
    room: int
    keep: int
    epochs: int = 1
    room_bytes: int | None = None

    @property
    def traits(self) -> Traits:
        """The ranks set the pace, and its epochs are those of the sources."""
        return Traits(
            beyond_budget="",
            deterministic=True,
            state=State.ROWS,
            needs_order=True,
            epochs=self.epochs,
            throttled=True,
            held_bytes=self._held_bytes,
            held_at_most=None if self.room_bytes is None else (self.room_bytes, self._beside),
        )

    @property
    def _beside(self) -> str:
        return f"the {self.batch_size + self.kept:,} rows of the batch that is wanted next, and of those that stay"

    def _held_bytes(self, row: int) -> int:
        """Rows that it keeps for its ranks."""
        waiting = self.room * row
        if self.room_bytes is not None:
            waiting = min(waiting, self.room_bytes + self.batch_size * row)
        return waiting + self.kept * row

    @classmethod
    def of(
        cls, name: str, batch_size: int, drop_last: bool, room: int | str | None, keep: int, epochs: int = 1
    ) -> FeedSink:
        """With the default for the room, which is rows, or bytes as a text. Raises FlowError."""
        if not 1 <= batch_size <= MOST_ROWS:
            raise FlowError(f"global batches of {batch_size} rows", f"give 1 to {MOST_ROWS}", name)
        room_bytes = BYTES_OF_ROOM if room is None else bytes_of("room", room) if isinstance(room, str) else None
        if room is None:
            room = max(BATCHES_OF_ROOM * batch_size, LEAST_ROOM)
        elif isinstance(room, str):
            room = ANY_ROWS
        if room < batch_size:
            raise FlowError(f"a feed with room for {room} rows", f"a batch needs room={batch_size} at least", name)
        if keep < 0:
            raise FlowError(f"keep={keep}", "give a number of rows from 0 on", name)
        if not 1 <= epochs <= MOST_EPOCHS:
            raise FlowError(f"epochs={epochs}", f"give how often the sources are to be read, 1 to {MOST_EPOCHS}", name)
        return cls(name, batch_size, drop_last, room, keep, epochs, room_bytes)

    @property
    def kind(self) -> str:
        return "feed"

    @property
    def guarantee(self) -> str:
        return "exactly once"

    @property
    def place(self) -> str:
        return ""

    def describe(self) -> str:
        """How many epochs it has is none of what the flow is: there may be more when the job goes on."""
        last = "a last batch that is not full is dropped" if self.drop_last else "the last batch may be short"
        often = "" if self.epochs == 1 else ", in several epochs"
        return f"global {self.describe_batches}{often} to any number of ranks, {last}; the ranks set the pace"

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        if not len(inputs[0]):
            raise FlowError("a feed of rows without columns", "keep at least one column")
        if (twice := duplicate_of(inputs[0].names)) is not None:  # batches as arrays and rows are dictionaries
            raise FlowError(f"a feed of two columns named {twice!r}", "rename one of them before the feed (project)")
        return inputs[0]

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningFeedSink:
        return RunningFeedSink(self, context, inputs[0], restored)

    @property
    def settings(self) -> FeedSettings:
        """The sequencer's."""
        most = self.room + self.kept
        settings = FeedSettings(self.batch_size, True, self.drop_last, most, self.room, True, self.epochs)
        room = self.room + settings.margin
        max_drift = self.room // self.batch_size
        return replace(
            settings, ahead=room, most_rows=room + self.kept, max_drift=max_drift, ahead_bytes=self.room_bytes
        )

    @property
    def describe_batches(self) -> str:
        """What its batches are."""
        return f"batches of {self.batch_size:,} rows"

    @property
    def digested(self) -> int:
        """What is written down beside the digests of batches."""
        return self.batch_size

    @property
    def layout(self) -> str:
        """How a batch is divided among ranks."""
        return CONTIGUOUS

    def share(self, batch: pa.Table, rank: int, ranks: int) -> Positions:
        """The rows of a whole batch that a rank gets, by number."""
        return np.array(RankGroup(0, ranks, 0).share(rank, len(batch)), np.int64)

    def marks(self, schema: pa.Schema) -> Marks | None:
        """How rows of this schema say where batches end, if they do."""
        return None

    @property
    def kept(self) -> int:
        """Rows that stay when all ranks have taken them: besides ``keep`` a batch, because a framework that fetches one
        ahead has not shown the last one to its model."""
        return self.keep + self.batch_size

    def committer(self, job: str) -> Committer:
        return NothingToCommit()

    def visible_rows(self, job: str) -> int | None:
        """Ranks do not say what they have made of the rows."""
        return None

    def check(self, job: str, resuming: bool = False) -> None:
        """Nothing can be wrong."""


@dataclass(frozen=True, slots=True)
class CutFeedSink(FeedSink):
    """A feed whose batches were cut before it (``operators.sequence.batches``): ``batch_size`` is what one may cost.
    ``balance``: what is to be equal on all ranks; None: how many rows they have."""

    balance: Given | None = None

    @classmethod
    def over(cls, sink: FeedSink, most: int, balance: Given | None) -> CutFeedSink:
        """The sink of batches that are cut before it and may cost so much, else like this one. Raises FlowError."""
        if sink.drop_last:
            raise FlowError("drop_last in a feed of batches by cost", "leave it out: none of them is full", sink.name)
        own = (sink.name, most, False, sink.room, sink.keep, sink.epochs, sink.room_bytes)
        return cls(*own, balance)

    def describe(self) -> str:
        often = "" if self.epochs == 1 else ", in several epochs"
        even = "" if self.balance is None else f", balanced by {self.balance}"
        return f"global {self.describe_batches}{often} to any number of ranks{even}; they set the pace"

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        schema = unmarked(FeedSink.output_schema(self, inputs))
        if self.balance is not None:
            check_measure("feed", "balance", self.balance, schema)
        return schema

    @property
    def _beside(self) -> str:
        return f"the batch that is wanted next, and the {self.kept:,} rows and one batch that stay"

    def _held_bytes(self, row: int) -> int:
        waiting = self.room * row
        return (waiting if self.room_bytes is None else min(waiting, self.room_bytes)) + self.kept * row

    @property
    def settings(self) -> FeedSettings:
        room = self.room + 1
        return FeedSettings(1, True, False, room + self.kept, room, True, self.epochs, None, self.room_bytes, cut=True)

    @property
    def describe_batches(self) -> str:
        return f"batches of at most {self.batch_size:,}"

    @property
    def digested(self) -> int:
        return 0

    @property
    def layout(self) -> str:
        return CONTIGUOUS if self.balance is None else f"balanced by {self.balance}"

    def share(self, batch: pa.Table, rank: int, ranks: int) -> Positions:
        return self.marks(marked(batch.schema)).shares(batch.to_batches(), ranks)[rank]

    def marks(self, schema: pa.Schema) -> Marks:
        return Marks(schema, self.balance)

    @property
    def kept(self) -> int:
        """Rows that stay when all ranks have taken them; one batch does in any case."""
        return self.keep


class NothingToCommit:
    """Rows that ranks read are not made visible: the ranks have them."""

    def commit(self, permit: CommitPermit) -> None:
        """Nothing is ever prepared."""

    def clean(self, keep: Sequence[Committable], claims: Sequence[str] = ()) -> None:
        """There are no files."""


class RunningFeedSink(Stateless):
    """The operator of one attempt; also a ``throttling.ThrottledOperator``."""

    def __init__(
        self, config: FeedSink, context: OperatorContext, schema: pa.Schema, restored: pa.Table | None
    ) -> None:
        self._schema, self._lane = schema, context.lanes.start
        self._batch_size, self._drop_last, self._write = config.batch_size, config.drop_last, context.write
        self._epochs = context.epochs
        self._attempt = (context.attempt.generation, context.attempt.number)
        self._marks, self._recorded_size = config.marks(schema), config.digested
        self._digests: BatchDigests | CutDigests
        self._digests = BatchDigests(config.batch_size) if self._marks is None else CutDigests()
        self._sequencer: Sequencer[pa.RecordBatch]
        progress = GroupProgress()
        if restored is None:
            self._sequencer = Sequencer(config.settings, self._hashes, _bytes, self._marks)
        else:
            state = read_state(restored, schema)
            # its job may have been told of fewer epochs
            state = replace(state, ended=state.ended and len(state.ends) >= config.epochs)
            progress = GroupProgress.restored(state.progress, state.untaken)
            self._digests = self._digests_from(state)
            self._sequencer = Sequencer.restored(state, config.settings, self._hashes, _bytes, self._marks)
        self._server = context.server if isinstance(context.server, FeedServer) else FeedServer(context.operator)
        #: where the last snapshot was taken, and the position of its first row
        self._taken_at: SnapshotPosition | None = None
        self._first = 0
        #: the batches before this one were recorded as taken
        self._recorded: int | None = None
        self._server.open(self._sequencer, context.wake, context.attempt, progress)

    def _hashes(self, rows: pa.RecordBatch) -> Hashes:
        if isinstance(self._digests, BatchDigests):
            found = hashes(rows.columns)
            self._digests.add(found)
        else:
            assert self._marks is not None
            found = hashes(self._marks.bare(rows).columns)
            self._digests.add(found, self._marks.ends(rows))
        return found

    def _digests_from(self, state: SequencerState[pa.RecordBatch]) -> BatchDigests | CutDigests:
        """Digests from the batch on that was open, if its rows are kept."""
        if self._marks is not None and state.cut is not None:
            return CutDigests(state.cut.next, self._open_hashes(state.rows, self._marks))
        grid = BatchGrid.of(self._batch_size, self._drop_last, [end.position for end in state.ends])
        come = state.position - grid.begin
        begun = come % self._batch_size
        if state.ended or begun > state.position - state.first:
            return BatchDigests(self._batch_size, come, grid.first)
        self._digests, at = BatchDigests(self._batch_size, come - begun, grid.first), state.first
        for rows in state.rows:
            self._hashes(rows.slice(min(rows.num_rows, max(0, state.position - begun - at))))
            at += rows.num_rows
        return self._digests

    @staticmethod
    def _open_hashes(pieces: Sequence[pa.RecordBatch], marks: Marks) -> list[Hashes]:
        """Of the kept rows of the batch that is open: nobody has taken it, so all of its rows are kept."""
        found: list[Hashes] = []
        for rows in reversed(pieces):
            begin = (marks.ends(rows) or [0])[-1]
            found.append(hashes(marks.bare(rows.slice(begin)).columns))
            if begin:
                break
        return found[::-1]

    def process(self, port: int, batch: Batch, out: Output) -> None:
        if self._marks is not None:
            self._marks.check(batch.records)
        self._server.accept(batch.records)

    def end_round(self, port: int, round: int, out: Output) -> None:
        if ends_epoch(self._epochs, round):
            self._end_digests()
            self._server.end_epoch()

    def finish(self, out: Output) -> None:
        if not self._sequencer.ended:
            self._end_digests()
            self._server.end()

    def _end_digests(self) -> None:
        if isinstance(self._digests, BatchDigests):
            self._digests.end(self._drop_last)

    def accepts(self, port: int) -> bool:
        return self._server.accepts_rows

    def snapshot(self) -> pa.Table | None:
        found = self._server.state()
        if found is None:
            return None
        state, self._taken_at = found
        self._first = state.first
        return write_state(state, self._lane, self._schema)

    def flush(self, checkpoint: CheckpointId) -> None:
        if self._taken_at is not None:
            self._server.on_snapshot(checkpoint, self._taken_at, self._first)
        run = replace(self._digests.take(), taken=self._server.taken, attempt=self._attempt)
        if len(run.digests) or run.taken != self._recorded:
            self._recorded = run.taken
            self._write(partial(self._server.record, run, self._recorded_size), run.digests.nbytes)

    def prepare(self, checkpoint: CheckpointId) -> list[Committable]:
        return []

    def close(self) -> None:
        self._server.close(self._sequencer)

    # ------------------------------------------------------------------ pacing

    def expect(self, checkpoint: CheckpointId) -> None:
        """Barriers are on their way."""
        self._server.expect(checkpoint)

    def abort(self, checkpoint: CheckpointId) -> None:
        """The checkpoint was aborted."""
        self._server.give_up(checkpoint)

    def committed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is durable."""
        self._server.committed(checkpoint)

    @property
    def is_full(self) -> bool:
        """Whether no further round should begin."""
        return self._server.is_full

    @property
    def is_released(self) -> bool:
        """Whether the ranks may leave."""
        return self._server.is_settled

    @property
    def waiting_for(self) -> str:
        """The ranks that hold the feed up."""
        return self._server.waits_for


def _bytes(rows: pa.RecordBatch) -> int:
    return int(rows.nbytes)
