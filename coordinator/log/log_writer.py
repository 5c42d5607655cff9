"""One entry at a time into the log, and the truth about it when the answer was unclear.

Rules:

1. At most one entry is in flight. Its number is the one after the last that we know of.
2. The shell answers every ``StoreEntry`` and ``ReadLog`` exactly once. "Refused" and "failed" are both unclear: the
   log is read again before anything else is decided (:meth:`resolve`).
3. An entry that failed and is not in the log may still appear there (a write that was under way somewhere), whatever
   it says. It stays *doubtful* while its number is free: if the number then turns out to be taken by it, it is
   *adopted*, and the entry in flight takes the next number.
4. The number taken by anybody else: a newer coordinator has taken over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from ...engine.core.state_machine import check_move
from ..model.commands import ReadLog, StoreEntry
from ..model.manifest import LogEntry, encode
from .recovery import generation_of


class Resolution(Enum):
    """What reading the log said about the entry in flight."""

    STORED = "stored"
    ABSENT = "absent"
    ADOPTED = "adopted"
    """The number holds a doubtful entry of ours; the one in flight was not written."""
    SUPERSEDED = "superseded"


class WriterState(Enum):
    """What the log has been asked and has not answered."""

    __hash__ = object.__hash__

    IDLE = "idle"
    READING = "reading"
    """It is read, and no entry is in flight."""
    STORING = "storing"
    """An entry is in flight."""
    RESOLVING = "resolving"
    """The answer about the entry in flight was unclear, and the log is read."""


LEGAL_WRITER_MOVES: Mapping[WriterState, frozenset[WriterState]] = {
    WriterState.IDLE: frozenset({WriterState.READING, WriterState.STORING}),
    WriterState.READING: frozenset({WriterState.IDLE}),
    WriterState.STORING: frozenset({WriterState.IDLE, WriterState.RESOLVING}),
    WriterState.RESOLVING: frozenset({WriterState.IDLE, WriterState.RESOLVING}),
}


class LogWriter:
    """Where we are in the log."""

    def __init__(self) -> None:
        #: The number of the next entry; no entry at or above it is known to us.
        self.next_number = 0
        #: The entry that was ordered and of which nothing is certain; None while IDLE or READING.
        self.in_flight: LogEntry | None = None
        #: Entries that failed and may still appear, all at ``next_number``.
        self._doubtful: list[LogEntry] = []
        self._state = WriterState.IDLE

    @property
    def is_idle(self) -> bool:
        return self._state is WriterState.IDLE

    @property
    def is_reading(self) -> bool:
        return self._state is WriterState.READING or self._state is WriterState.RESOLVING

    def read(self) -> ReadLog:
        """Order the log read: to begin with, or to learn what became of the entry in flight."""
        self._move(WriterState.READING if self.in_flight is None else WriterState.RESOLVING)
        return ReadLog()

    def has_read(self) -> None:
        """The reading has been answered, or failed. An entry in flight is still to be resolved."""
        if self._state is WriterState.READING:
            self._move(WriterState.IDLE)

    def store(self, entry: LogEntry) -> StoreEntry:
        """Order an entry; the caller has given it ``next_number``."""
        if not self.is_idle or entry.number != self.next_number:
            raise AssertionError(f"entry {entry.number} is ordered while {self.waits_for()}")
        self._move(WriterState.STORING)
        self.in_flight = entry
        return StoreEntry(entry)

    def expects(self, number: int) -> bool:
        """Whether an answer for this number is one to the entry in flight; others are late or doubled."""
        known = self.in_flight
        return self._state is WriterState.STORING and known is not None and known.number == number

    def stored(self) -> LogEntry:
        """The entry in flight is durable."""
        entry = self.in_flight
        if entry is None:
            raise AssertionError("an entry was stored that was not ordered")
        self.dropped()
        self._taken()
        return entry

    def dropped(self) -> None:
        """The entry in flight is not going to be stored."""
        if self.in_flight is not None:
            self._move(WriterState.IDLE)
            self.in_flight = None

    def failed(self) -> None:
        """The entry in flight failed and is not in the log; it may still come."""
        if self.in_flight is not None:
            self._doubtful.append(self.in_flight)
        self.dropped()

    def _move(self, to: WriterState) -> None:
        self._state = check_move("the log's writer", LEGAL_WRITER_MOVES, self._state, to)

    def _taken(self) -> None:
        self.next_number += 1
        self._doubtful.clear()

    def resolve(self, entries: Sequence[LogEntry], generation: int) -> Resolution:
        """The log was read because the entry in flight had an unclear answer."""
        entry = self.in_flight
        if entry is None:
            raise AssertionError("the log was read to look for an entry that was not ordered")
        if any(generation_of(other) > generation for other in entries):
            return Resolution.SUPERSEDED
        standing = next((other for other in entries if other.number == entry.number), None)
        if standing is None:
            beyond = any(other.number > entry.number for other in entries)
            return Resolution.SUPERSEDED if beyond else Resolution.ABSENT
        if encode(standing) == encode(entry):
            return Resolution.STORED
        if any(encode(standing) == encode(other) for other in self._doubtful):
            self._taken()
            return Resolution.ADOPTED
        return Resolution.SUPERSEDED

    def waits_for(self) -> str:
        """One clause for people."""
        if self.is_reading:
            return "the log is being read"
        return f"entry {self.in_flight.number} is being stored" if self.in_flight is not None else "the log is idle"

    def validate(self) -> None:
        """An entry is in flight in two of the states."""
        if (self.in_flight is None) is not (self._state in (WriterState.IDLE, WriterState.READING)):
            raise AssertionError(f"the log's writer is {self._state.value}, with {self.in_flight} in flight")
