"""The ids and rights that every layer shares: what a message can name.

This is the only engine module that ``coordinator`` imports, so it knows nothing but ``enum``,
``typing`` and ``msgspec``. Rules:

1. An id is a value: immutable, ordered, hashable, and never reused. Checkpoint ids and attempts carry the
   generation of the coordinator that drew them, so two coordinators never draw the same one.
2. A right is an object: a sink commits only what a :class:`CommitPermit` lists, and only the coordinator makes one,
   after the checkpoint's entry stands in the log.
3. Whatever the coordinator stores but does not understand (state files, committables) is opaque here as well.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeAlias

import msgspec

FINAL_ROUND = 2**62
"""The round of the rows that operators emit when they finish. It is the same for every lane and subtask, so that the
place of those rows in the order does not depend on which subtask saw how many rounds."""

CLOSING_ROUND = FINAL_ROUND + 1
"""Where a source stands whose data have ended, while what was emitted because of that is still on its way."""

UNDECIDED_ROUND = FINAL_ROUND + 2
"""What sources agree on while the end of some is on its way and others go on: no barrier can be placed."""


def later_round(*rounds: int) -> int:
    """The round after which sources that stand in ``rounds`` place a barrier: the latest.

    Those in ``FINAL_ROUND`` have ended: theirs stands behind their end, whatever the others do. If nobody goes on, that
    of those in ``CLOSING_ROUND`` does, too. Else it would stand behind rows that a merge keeps until the others have
    come to their end.
    """
    live = [round for round in rounds if round < FINAL_ROUND]
    if not live:
        return max(rounds)
    return UNDECIDED_ROUND if max(rounds) > FINAL_ROUND else max(live)


class TaskId(msgspec.Struct, frozen=True, order=True):
    """One subtask of one vertex (stage): ``vertex`` is the stage's name, ``subtask`` counts from 0."""

    vertex: str
    subtask: int

    def __str__(self) -> str:
        return f"{self.vertex}[{self.subtask}]"


class Attempt(msgspec.Struct, frozen=True, order=True):
    """One execution of a task. ``generation`` is the coordinator's; ``number`` counts deployments within it."""

    generation: int
    number: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.number}"


class CheckpointId(msgspec.Struct, frozen=True, order=True):
    """One checkpoint. Ordered by generation first: a later coordinator's ids are all larger than an earlier one's."""

    generation: int
    number: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.number}"


class JobIdentity(msgspec.Struct, frozen=True):
    """Who writes: a job, in the hands of one of its coordinators.

    ``uuid`` is drawn at the first claim of a checkpoint folder and stands in its log; names that users choose identify
    nothing. ``claim`` is drawn by each coordinator for its claim: two copies of one checkpoint folder have the same
    UUID and count the same generations, and only their claims differ. ``ancestors``: the jobs whose snapshots this one
    goes on from, the oldest first.
    """

    uuid: str
    generation: int = 0
    claim: str = ""
    ancestors: tuple[str, ...] = ()

    @property
    def lineage(self) -> tuple[str, ...]:
        """The UUIDs of all jobs whose rows are this one's, the oldest first."""
        return (*self.ancestors, self.uuid)


class BarrierKind(Enum):
    """What a barrier asks for."""

    CHECKPOINT = "checkpoint"
    """Snapshot in place and go on."""
    SAVEPOINT = "savepoint"
    """As a checkpoint, self-contained and owned by the user."""
    DRAIN = "drain"
    """Emit what depends on the input so far and forget it (the task barrier)."""


class Holds(Enum):
    """What a file of a checkpoint holds."""

    STATE = "state"
    FLIGHT = "flight"
    """All that a task was in the middle of when it cut as a whole: it is that subtask's, at that shape of the plan."""


Data: TypeAlias = bytes
"""The type, where a field has its name."""


class StateHandle(msgspec.Struct, frozen=True):
    """A part of an immutable file of one task. ``location`` is relative to the checkpoint folder; empty: the part is in
    no file, it is so small that it stands here (``inline``).

    ``operator``: whose state it is; of a flight (``holds``) the vertex.
    ``digest``: of the part's bytes (``engine.integrity.checksums``), which whoever reads it compares. ``offset``: where
    in the file its ``bytes`` begin.
    """

    operator: str
    location: str
    bytes: int
    rows: int
    holds: Holds = Holds.STATE
    digest: str = ""
    offset: int = 0
    inline: Data = b""

    @property
    def is_flight(self) -> bool:
        """Whether it holds what was in flight."""
        return self.holds is Holds.FLIGHT


class EndedLanes(msgspec.Struct, frozen=True):
    """Lanes for which an operator has finished, from ``start`` up to, but not including, ``stop``: it is not to be run
    for them again."""

    operator: str
    start: int
    stop: int


class Reweight(msgspec.Struct, frozen=True):
    """From row ``position`` of mixture ``operator`` on, counted over all epochs, the streams at these ports have these
    weights. ``request``: the asker's name for the change; asked for twice, it is one."""

    operator: str
    position: int
    weights: tuple[tuple[int, float], ...]
    request: str


class Committable(msgspec.Struct, frozen=True):
    """What one sink operator prepared for one checkpoint and will make visible on commit.

    ``payload`` is plain JSON data that only the sink's committer understands. Committing it twice is harmless:
    that is the committer's contract.
    """

    operator: str
    rows: int
    payload: dict[str, Any] = {}


class Tally(msgspec.Struct, frozen=True):
    """Rows that have passed a place, in how many batches, and the sum of the batches' checksums modulo 2**64.

    A sum and no exclusive or: that would not see a batch that came twice more.
    """

    rows: int = 0
    batches: int = 0
    checksum: int = 0

    def __add__(self, other: Tally) -> Tally:
        checksum = (self.checksum + other.checksum) % 2**64
        return Tally(self.rows + other.rows, self.batches + other.batches, checksum)


NOTHING = Tally()


class Account(msgspec.Struct, frozen=True):
    """What became of the rows that a task was given at one place, from the beginning of its attempt to its cut.

    ``kind``: "exchange", "source" or "sink"; ``place``: its id. ``given``: in the word of whoever gave them, up to the
    cut (None: it said nothing). ``restored``: they were in flight at the checkpoint that the attempt goes on from.
    ``in_flight``: they belong to this checkpoint as such. ``dropped``: nobody needed them.
    """

    kind: str
    place: str
    given: Tally | None
    taken: Tally
    restored: Tally = NOTHING
    dropped: Tally = NOTHING
    in_flight: Tally = NOTHING

    @property
    def balances(self) -> bool:
        """Whether nothing was lost, repeated or exchanged for something else."""
        return self.given is not None and self.given + self.restored == self.taken + self.dropped + self.in_flight


class CommitPermit(msgspec.Struct, frozen=True):
    """The right to commit: made by the coordinator once the entry of ``checkpoint`` stands in the log.

    ``by``: whose right it is; None where nobody else can write, as in tests of a sink alone.
    """

    checkpoint: CheckpointId
    committables: tuple[Committable, ...]
    by: JobIdentity | None = None
