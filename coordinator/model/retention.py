"""What becomes of completed checkpoints: when a newer one completes, and when the job ends.

Rules:

1. When more are stored than are to be kept, they go from the oldest on until the number fits. The latest never goes.
2. Savepoints that are in the list count, and can be taken off it; their files stay, they are the user's.
3. The latest one that is no savepoint stays as well: later checkpoints share its files. Not so if the latest is the
   savepoint that the job stops with: nothing will build upon anything older.
4. When the job ends, the policy says for which ends the files stay. A job that a new coordinator will take over has not
   ended; nothing is decided here for it, but a *suspended* one is put away on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from ...engine.core.identity import CheckpointId
from .kinds import CheckpointKind


class Ending(Enum):
    """How a stored checkpoint comes to its end."""

    SUBSUMED = "subsumed"
    """A newer checkpoint took its place."""
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"
    SUSPENDED = "suspended"


class RetentionPolicy(Enum):
    """Whom a job's checkpoints outlive."""

    NEVER = "never keep"
    ON_FAILURE = "keep when the job fails"
    ON_CANCELLATION = "keep when the job fails or is stopped by hand"
    ALWAYS = "the user's: savepoints, and snapshots that a job started from without claiming them"


KEPT_ON: Mapping[RetentionPolicy, frozenset[Ending]] = {
    RetentionPolicy.NEVER: frozenset(),
    RetentionPolicy.ON_FAILURE: frozenset({Ending.FAILED}),
    RetentionPolicy.ON_CANCELLATION: frozenset({Ending.CANCELLED, Ending.FAILED, Ending.SUSPENDED}),
    RetentionPolicy.ALWAYS: frozenset(Ending),
}


class StoredCheckpoint(msgspec.Struct, frozen=True):
    """One entry of the list of completed checkpoints."""

    id: CheckpointId
    kind: CheckpointKind
    policy: RetentionPolicy

    def keeps_files(self, ending: Ending) -> bool:
        """Whether the files stay."""
        return ending in KEPT_ON[self.policy]


def plan_subsumption(stored: Sequence[StoredCheckpoint], retained: int) -> tuple[StoredCheckpoint, ...]:
    """Which of the stored ones (oldest first) leave the list so that at most ``retained`` stay, if possible."""
    surplus = len(stored) - retained
    return tuple(one for one in stored if _may_go(one, stored))[:surplus] if surplus > 0 else ()


def _may_go(one: StoredCheckpoint, stored: Sequence[StoredCheckpoint]) -> bool:
    """Rules 1 and 3."""
    latest = stored[-1]
    if one is latest:
        return False
    if latest.kind is CheckpointKind.STOP_WITH_SAVEPOINT:
        return True
    return one is not next((other for other in reversed(stored) if not other.kind.is_savepoint), None)
