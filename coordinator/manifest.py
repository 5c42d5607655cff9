"""What the log holds: claims and completed checkpoints, as versioned JSON.

Rules:

1. The log is one dense sequence of entries, each created if absent. ``Claim`` takes the job over for a generation;
   ``Manifest`` completes a checkpoint: its creation *is* the commit point; ``Ended`` closes the log.
2. An entry is never changed. Fields are only added, with a default, and ``FORMAT`` is raised when old readers would
   misread.
3. A manifest lists everything a restore needs: state files by task, finished tasks, and the committables that no
   later entry says are visible.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from ..engine.identity import CheckpointId, Committable, StateHandle, TaskId

FORMAT = 1
"""Version of the entries' form, stored in every entry."""


class Claim(msgspec.Struct, frozen=True, tag="claim", kw_only=True):
    """A coordinator of ``generation`` took the job over."""

    format: int = FORMAT
    number: int
    generation: int
    job: str
    fingerprint: str
    """The flow's fingerprint: a log belongs to one flow."""
    description: str = ""
    """The flow in words, for the error that a mismatch gives."""
    owner: str = ""
    """Unlike in any other coordinator, so that two of one generation do not take each other's claim for their own."""


class TaskState(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint holds of one task. A finished task's last state is carried on, so that its lanes stay known."""

    task: TaskId
    state: tuple[StateHandle, ...] = ()
    committables: tuple[Committable, ...] = ()
    finished: bool = False
    data_ended: bool = False


class Manifest(msgspec.Struct, frozen=True, tag="checkpoint", kw_only=True):
    """A completed checkpoint."""

    format: int = FORMAT
    number: int
    checkpoint: CheckpointId
    fingerprint: str
    parallelism: dict[str, int]
    """Vertex to number of subtasks, at the time of the checkpoint."""
    tasks: tuple[TaskState, ...]
    uncommitted: tuple[tuple[TaskId, Committable], ...] = ()
    """Committables of earlier checkpoints that were not yet known to be visible."""


class Ended(msgspec.Struct, frozen=True, tag="ended", kw_only=True):
    """The job is over; nothing follows. ``status``: finished, cancelled or failed."""

    format: int = FORMAT
    number: int
    generation: int
    status: str
    reason: str = ""


LogEntry: TypeAlias = Claim | Manifest | Ended


def encode(entry: LogEntry) -> bytes:
    """The entry as JSON."""
    return msgspec.json.encode(entry)


def decode(data: bytes) -> LogEntry:
    """The entry read back. Raises msgspec.ValidationError for what is no entry of a known form."""
    entry: LogEntry = msgspec.json.decode(data, type=LogEntry)
    return entry
