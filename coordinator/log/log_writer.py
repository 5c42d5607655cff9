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

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

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


@dataclass
class LogWriter:
    """Where we stand in the log."""

    #: The number of the next entry; no entry at or above it is known to us.
    next_number: int = 0
    #: The entry that was ordered and not answered.
    in_flight: LogEntry | None = None
    #: Whether the log is being read.
    reading: bool = False
    #: Entries that failed and may still appear, all at ``next_number``.
    doubtful: list[LogEntry] = field(default_factory=list)

    @property
    def is_idle(self) -> bool:
        return self.in_flight is None and not self.reading

    def read(self) -> ReadLog:
        self.reading = True
        return ReadLog()

    def store(self, entry: LogEntry) -> StoreEntry:
        """Order an entry; the caller has given it ``next_number``."""
        if not self.is_idle or entry.number != self.next_number:
            raise AssertionError(f"entry {entry.number} is ordered while {self.waits_for()}")
        self.in_flight = entry
        return StoreEntry(entry)

    def expects(self, number: int) -> bool:
        """Whether an answer for this number is one to the entry in flight; others are late or doubled."""
        return self.in_flight is not None and self.in_flight.number == number and not self.reading

    def stored(self) -> LogEntry:
        """The entry in flight stands in the log."""
        entry = self.in_flight
        if entry is None:
            raise AssertionError("an entry was stored that was not ordered")
        self.in_flight = None
        self._taken()
        return entry

    def dropped(self) -> None:
        """The entry in flight is not going to be stored."""
        self.in_flight = None

    def failed(self) -> None:
        """The entry in flight failed and is not in the log; it may still come."""
        if self.in_flight is not None:
            self.doubtful.append(self.in_flight)
        self.in_flight = None

    def _taken(self) -> None:
        self.next_number += 1
        self.doubtful.clear()

    def resolve(self, entries: Sequence[LogEntry], generation: int) -> Resolution:
        """The log was read because the entry in flight had an unclear answer."""
        self.reading = False
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
        if any(encode(standing) == encode(other) for other in self.doubtful):
            self._taken()
            return Resolution.ADOPTED
        return Resolution.SUPERSEDED

    def waits_for(self) -> str:
        """One clause for people."""
        if self.reading:
            return "the log is being read"
        return f"entry {self.in_flight.number} is being stored" if self.in_flight is not None else "the log is idle"
