"""Running lookup joins: one for an index that answers in place, one for an index that must be waited for.

Rules:

1. Output comes in the order of the input, whatever the order of the answers: a batch leaves when it is answered and all
   before it have left. It is the index's answer that is awaited elsewhere; output is made by the driver's own thread.
2. At most 1 + ``prefetch`` batches are under way. A batch in which nothing is to be looked up waits for its turn, too,
   but asks nothing.
3. Ends of rounds and task barriers stand among the batches under way, and are passed on in their turn: lookups of
   later rounds and windows need not wait for them. The end comes only while nothing is under way. There is never any
   state: batches of which nothing has left at a cut are given again, and asked for again.
4. An index is closed when its operator is and the last lookup has come back, whichever is later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import pyarrow as pa

from ...arrow.dictionaries import PlainNulls
from ...core.elements import Batch
from ...core.errors import DataError, InternalError, PenstockError, StorageError
from ...core.operator import Background, Emitter, Output, Stateless, Steps
from ...core.schemas import no_rows, value_type
from ...core.user_code import is_to_be_told, raised
from .index_protocol import Found, Index, OpenIndex
from .lookup_keys import Asked
from .lookup_output import LookupOutput
from .matching import Matches

Answer = tuple[Matches, pa.RecordBatch]
"""The matches of all rows of a batch, and the index's rows that they mean."""


class Inquiry:
    """An open index as a lookup join uses it: what to ask for, and errors that name the index."""

    def __init__(self, index: Index, on: Sequence[str], needed: Sequence[str]) -> None:
        self.name = index.describe()
        self._on, self._needed = on, needed
        self._schema = index.schema
        self._plain = PlainNulls(index.schema)
        self._key_schema = pa.schema([(name, value_type(index.schema.field(name).type)) for name in index.key])
        self._open: OpenIndex = self._told("could not be opened", index.open)
        self._lock = Lock()
        #: lookups that are running now, on any thread
        self._running = 0
        self._closed = False

    def asked(self, records: pa.RecordBatch) -> Asked:
        """What to look up for a batch."""
        return Asked.of(records, self._on, self._needed, self._key_schema)

    def nothing(self, asked: Asked) -> Answer:
        """The answer where nothing was asked for."""
        return Matches.none(asked.rows), no_rows(self._schema)

    def answer(self, asked: Asked) -> Answer:
        """Look up every row."""
        found = self._lookup(asked.keys)
        return asked.answered(found), found.records

    def answer_once(self, asked: Asked) -> Answer:
        """Look up every distinct key. May be called from any thread."""
        with self._lock:
            if self._closed:
                raise InternalError("a lookup began after its join was closed")
            self._running += 1
        try:
            keys, numbers = asked.once()
            found = self._lookup(keys)
            return asked.answered(found, numbers), found.records
        finally:
            with self._lock:
                self._running -= 1
                is_last = self._closed and not self._running
            if is_last:
                self._open.close()

    def close(self) -> None:
        """Close the index, now or when the last lookup comes back."""
        with self._lock:
            self._closed = True
            is_idle = not self._running
        if is_idle:
            self._open.close()

    def _lookup(self, keys: pa.RecordBatch) -> Found:
        found: Found = self._told("failed", lambda: self._open.lookup(keys))
        self._check(found, keys.num_rows)
        records = self._plain.of(found.records)
        return found if records is found.records else replace(found, records=records)

    def _check(self, found: object, rows: int) -> None:
        remedy = "give a Found with an entry per key in its matches, and records of the index's schema"
        if not isinstance(found, Found):
            raise DataError(f"lookup join: {self.name} answered with {type(found).__name__}", remedy)
        matches = found.matches
        if len(matches.counts) != rows or len(matches.first) != rows:
            raise DataError(f"lookup join: {self.name} answered for {len(matches.counts)} of {rows} keys", remedy)
        if not found.records.schema.equals(self._schema):
            raise DataError(
                f"lookup join: {self.name} answered with columns {_columns(found.records.schema)}; its schema has "
                f"{_columns(self._schema)}",
                remedy,
            )
        last = int((matches.first + matches.counts)[matches.counts > 0].max(initial=0))
        if last > (found.records.num_rows if matches.rows is None else len(matches.rows)):
            raise DataError(f"lookup join: {self.name} answered with matches beyond its rows", remedy)

    def _told(self, what: str, action: Callable[[], Any]) -> Any:
        message = f"lookup join: {self.name} {what}"
        try:
            return action()
        except PenstockError:
            raise
        except OSError as error:
            raise StorageError(
                f"{message}: {error}", "check that what it reads from is there and healthy; the job then goes on"
            ) from error
        except BaseException as error:
            if not is_to_be_told(error):
                raise
            raise raised(f"{message}: it", error, "correct the index") from error


class RunningLookupJoin(Stateless):
    """Looks up in place, batch by batch."""

    def __init__(self, inquiry: Inquiry, output: LookupOutput) -> None:
        self._inquiry = inquiry
        self._output = output
        self._emitter = Emitter()

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        """Emit the batch's rows with their matches."""
        asked = self._inquiry.asked(batch.records)
        answer = self._inquiry.answer(asked) if asked.keys.num_rows else self._inquiry.nothing(asked)
        return self._pieces(batch, answer, out)

    def close(self) -> None:
        """Close the index."""
        self._inquiry.close()

    def _pieces(self, batch: Batch, answer: Answer, out: Output) -> Iterator[None]:
        matches, right = answer
        for records in self._output.batches(batch.records, right, matches):
            self._emitter.emit(records, batch.tag.round, batch.tag.lane, out)
            yield


@dataclass(slots=True, eq=False)
class _Awaited:
    """A batch and its answer, or the exception in place of it; None until it is there."""

    batch: Batch
    answer: Any = None

    def put(self, answer: Any) -> None:
        self.answer = answer


class AsynchronousLookupJoin(RunningLookupJoin):
    """Looks up elsewhere, several batches at once; see the module's rules."""

    def __init__(self, inquiry: Inquiry, output: LookupOutput, background: Background, prefetch: int) -> None:
        super().__init__(inquiry, output)
        self._background = background
        self._most = 1 + prefetch
        #: the batches under way, in the order in which they came
        self._awaited: deque[_Awaited] = deque()
        #: the rest of the output of the first one, while it leaves
        self._leaving: Iterator[None] | None = None

    def process(self, port: int, batch: Batch, out: Output) -> None:
        """Ask for the batch's keys; ``poll`` emits what has been answered."""
        if not self.accepts(port):
            raise InternalError(f"lookup join: {len(self._awaited)} batches are under way, no more are accepted")
        asked = self._inquiry.asked(batch.records)
        awaited = _Awaited(batch)
        self._awaited.append(awaited)
        if asked.keys.num_rows:
            self._background(lambda: self._inquiry.answer_once(asked), awaited.put)
        else:
            awaited.put(self._inquiry.nothing(asked))

    def accepts(self, port: int) -> bool:
        """While fewer batches are under way than may be."""
        return len(self._awaited) < self._most

    @property
    def batches_under_way(self) -> int:
        """Those that wait for an answer, or for their turn, and one that is leaving."""
        return len(self._awaited)

    @property
    def waits_for(self) -> str:
        """The index, and how many batches wait for it."""
        count = len(self._awaited)
        return f"{count} lookup{'s' if count > 1 else ''} in {self._inquiry.name}" if count else ""

    def poll(self, out: Output) -> bool:
        """Emit the next piece of the first batch, if that has been answered."""
        if self._leaving is None:
            if not self._awaited or self._awaited[0].answer is None:
                return False
            first = self._awaited[0]
            if isinstance(first.answer, BaseException):
                raise first.answer
            self._leaving = self._pieces(first.batch, first.answer, out)
        if next(self._leaving, self) is self:
            self._leaving = None
            self._awaited.popleft()
        return True

    def unanswered(self, out: Output) -> Sequence[Batch]:
        """All that are under way, behind the rest of one that leaves."""
        while self._leaving is not None:
            self.poll(out)
        return [awaited.batch for awaited in self._awaited]

    def end_port(self, port: int, out: Output) -> None:
        """Nothing to do, if the driver keeps its promise."""
        if self._awaited:
            raise InternalError(f"lookup join: the end of the input came while it waited for {self.waits_for}")


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)
