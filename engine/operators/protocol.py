"""What an operator promises, and what it may rely on.

An operator is two things. Its *config* is immutable, picklable and shared: it knows the schemas and builds. What it
builds is the *running operator*, one per driver, which holds all mutable state. The split follows DuckDB's operators
and their local states.

The driver calls a running operator in this order, always from one thread at a time::

    build(context, restored) → { process | end_round | snapshot }* → end_port (each port) → finish → snapshot* → close

Rules that an operator may rely on:

1. Batches of a port come in order of their tags. ``end_round(port, r)`` follows the last batch of round ``r``.
2. A port that ended (``end_port``) sends no more batches and counts as having ended every round.
3. ``snapshot`` is never called between two ``process`` calls of one step: all output so far has been taken over.
4. After ``close`` nothing is called. ``close`` is called exactly once, also after an error.

Rules that an operator must keep:

1. Never block and never sleep; never touch threads, channels or Ray. Barriers are the driver's business.
2. ``process`` may emit any number of batches, never an empty one. A batch that derives from one input batch keeps
   its tag (give the pieces consecutive sequence numbers with :class:`Emitter`). Rows that an operator makes of its
   own (an aggregate's groups) are emitted in ``end_round`` or ``finish``.
3. Output depends on input, tags and state alone: not on time, on batch boundaries, or on the port that spoke first.
4. ``snapshot`` returns everything the operator needs to go on, as one table whose rows carry the order lane in
   column ``LANE`` (so that it can be handed to any number of subtasks), or None if it holds nothing.
   ``build(context, snapshot)`` gives back an equal operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from ..elements import Batch, Tag
from ..identity import Attempt, CheckpointId, CommitPermit, Committable, TaskId

LANE = "__lane"
"""Column of every state table: the order lane (int32) that a row belongs to."""

OUTPUT_ROWS = 64 * 1024
"""Rows of a batch that an operator makes of its own: large enough for kernels to pay, small enough for a core's cache,
and the bound that keeps an exploding list or product from becoming one batch."""


@dataclass(frozen=True, slots=True)
class OperatorContext:
    """Where a running operator stands. ``lanes`` are the order lanes that its subtask owns; ``output_rows`` is the
    largest batch that it should make of its own (rows never depend on it)."""

    operator: str
    task: TaskId
    attempt: Attempt
    parallelism: int
    lanes: range
    job: str = ""
    output_rows: int = OUTPUT_ROWS


class Output(Protocol):
    """Where an operator puts its batches."""

    def emit(self, batch: Batch) -> None: ...


class Emitter:
    """Gives the batches that an operator emits strictly increasing tags, whatever it derives them from.

    The pieces of round ``r`` and lane ``l`` are numbered 0, 1, 2, … as they are emitted, independently of the
    numbering of the input; only (round, lane) carries over.
    """

    def __init__(self) -> None:
        self._round = -1
        self._next: dict[int, int] = {}

    def tag(self, round: int, lane: int) -> Tag:
        """The next tag for (``round``, ``lane``)."""
        if round != self._round:
            self._round, self._next = round, {}
        sequence = self._next.get(lane, 0)
        self._next[lane] = sequence + 1
        return Tag(round, lane, sequence)

    def emit(self, records: pa.RecordBatch, round: int, lane: int, out: Output) -> None:
        """Emit ``records`` under the next tag, unless they are empty."""
        if records.num_rows:
            out.emit(Batch(records, self.tag(round, lane)))


class RunningOperator(Protocol):
    """One driver's instance of an operator; see the module's rules."""

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Take one batch."""

    def end_round(self, port: int, round: int, out: Output) -> None:
        """Round ``round`` has ended on this port."""

    def end_port(self, port: int, out: Output) -> None:
        """This port sends no more batches."""

    def finish(self, out: Output) -> None:
        """All ports have ended and the flow drains: emit whatever is still held, in round ``FINAL_ROUND``."""

    def drain(self, out: Output) -> None:
        """A task barrier has come on all ports: emit what depends on the rows so far, and forget it.

        Unlike ``finish`` the operator goes on afterwards, as if it were new. Rows are emitted in the last round that
        has ended.
        """

    def accepts(self, port: int) -> bool:
        """Whether a batch on this port is welcome now. At least one open port must always be."""

    def snapshot(self) -> pa.Table | None:
        """Everything needed to go on from here, with a column ``LANE``; None if nothing."""

    def close(self) -> None:
        """Release resources; nothing may be emitted."""


class RunningSink(RunningOperator, Protocol):
    """An operator at the end of a pipeline that makes its rows visible in two phases."""

    def prepare(self, checkpoint: CheckpointId) -> list[Committable]:
        """Write out everything received before the barrier of ``checkpoint``; what it returns is not yet visible."""


class Committer(Protocol):
    """Makes prepared rows visible. It needs no running sink: after a crash anyone may commit a permit again."""

    def commit(self, permit: CommitPermit) -> None:
        """Make the permit's committables visible. Idempotent; raises StorageError if it cannot."""

    def clean(self, keep: Sequence[Committable]) -> None:
        """Remove what abandoned attempts left behind, except what ``keep`` refers to."""


@runtime_checkable
class OperatorConfig(Protocol):
    """The immutable half of an operator. Configs are frozen dataclasses; equal configs behave equally."""

    @property
    def kind(self) -> str:
        """The operator's noun, as ``explain`` prints it: "filter", "merge join"."""

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        """The schema of the output, given the ports' schemas. Raises FlowError that names what exists."""

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningOperator:
        """A running operator; ``restored`` holds the rows of earlier snapshots for this subtask's lanes."""

    def describe(self) -> str:
        """One line for ``explain`` and for the flow's fingerprint: what it does, not where data lie."""


@runtime_checkable
class SinkConfig(OperatorConfig, Protocol):
    """A config whose running operator is a :class:`RunningSink`."""

    @property
    def guarantee(self) -> str:
        """ "exactly once" or "at least once"."""

    @property
    def place(self) -> str:
        """Where the rows go, if no other sink may write there; else ""."""

    def check(self, job: str, resuming: bool = False) -> None:
        """Before the job starts: raise ConfigurationError if the place cannot be written or belongs to others.

        ``resuming``: the job goes on from a checkpoint, so rows of its own are no surprise.
        """

    def visible_rows(self, job: str) -> int | None:
        """How many rows of this sink a reader finds now; None if the sink cannot tell them from those of others."""

    def committer(self, job: str) -> Committer:
        """The committer for this sink's committables."""


class Stateless:
    """The parts of :class:`RunningOperator` that an operator without state, with one port, need not write."""

    def end_round(self, port: int, round: int, out: Output) -> None:
        pass

    def end_port(self, port: int, out: Output) -> None:
        pass

    def finish(self, out: Output) -> None:
        pass

    def drain(self, out: Output) -> None:
        pass

    def accepts(self, port: int) -> bool:
        return True

    def snapshot(self) -> pa.Table | None:
        return None

    def close(self) -> None:
        pass
