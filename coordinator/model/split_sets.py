"""The log of split sets: what a caller has added to a job, in order, and where its windows end. Versioned JSON.

Rules:

1. It is one dense sequence of entries beside the job's log, each created if absent by who adds to the job. An entry
   is never changed, and goes only when the newest completed checkpoint lies behind it. The last one stays: it says
   where the next one goes.
2. Each entry says what comes before it (:class:`SetPosition`), so one entry is enough to go on from.
3. A set is whole rounds of every source: the same number of splits for each, split ``k`` of one source beside split
   ``k`` of every other. In which lanes they are depends on their number and the set's (``split_places`` in the engine's
   plan), so it is the same at any parallelism; lanes that get none have nothing in that round.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from .records import decode_record, encode_record


class SplitName(msgspec.Struct, frozen=True):
    """A split of a source."""

    source: str
    split: str

    def __str__(self) -> str:
        return f"split {self.split} of {self.source}"


class Skipped(msgspec.Struct, frozen=True):
    """A split that is not read any more, and why."""

    name: SplitName
    reason: str

    def __str__(self) -> str:
        return f"{self.name} was skipped: {self.reason}"


FORMAT = 2
"""Version of the form, stored in every entry. 2: digests of entries and files."""


class SetPosition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A place in the log: how many entries, split sets, windows and rounds come before it."""

    number: int = 0
    sets: int = 0
    windows: int = 0
    rounds: int = 0


class SplitRef(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One split. Its rows are in ``data`` (an Arrow IPC stream), or in the file at ``path``: absolute, or relative to
    the checkpoint folder. ``rows``: None if unknown. ``digest``: of the file's bytes; empty if it is the caller's, of
    which ``listing`` is kept: a digest of names, sizes and contents."""

    id: str
    rows: int | None = None
    path: str = ""
    format: str = ""
    data: bytes = b""
    digest: str = ""
    listing: str = ""


class SetAdded(msgspec.Struct, frozen=True, tag="set", kw_only=True, forbid_unknown_fields=True):
    """A split set. ``rounds``: how many rounds it is."""

    format: int = FORMAT
    at: SetPosition
    splits: dict[str, tuple[SplitRef, ...]]
    rounds: int


class WindowEnded(msgspec.Struct, frozen=True, tag="barrier", kw_only=True, forbid_unknown_fields=True):
    """A task barrier was requested here, at ``requested_at`` (seconds since the epoch, by the caller's clock)."""

    format: int = FORMAT
    at: SetPosition
    requested_at: float = 0.0


class NoMoreSets(msgspec.Struct, frozen=True, tag="end", kw_only=True, forbid_unknown_fields=True):
    """Nothing follows. It comes after the end of a window."""

    format: int = FORMAT
    at: SetPosition


SplitEntry: TypeAlias = SetAdded | WindowEnded | NoMoreSets


def following(entry: SplitEntry) -> SetPosition:
    """The place behind the entry."""
    at, is_set = entry.at, isinstance(entry, SetAdded)
    return SetPosition(
        number=at.number + 1,
        sets=at.sets + is_set,
        windows=at.windows + isinstance(entry, WindowEnded),
        rounds=at.rounds + (entry.rounds if isinstance(entry, SetAdded) else 0),
    )


_ENTRIES: msgspec.json.Decoder[SplitEntry] = msgspec.json.Decoder(SplitEntry)


def encode_splits(entry: SplitEntry) -> bytes:
    """The entry as sealed JSON."""
    return encode_record(entry)


def decode_splits(data: bytes) -> SplitEntry:
    """The entry read back. Raises msgspec.ValidationError for what is no whole entry of this form."""
    return decode_record(data, _ENTRIES, FORMAT)
