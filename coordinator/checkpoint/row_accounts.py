"""The books of a checkpoint: nothing is stored that does not balance. Pure.

Rules:

1. Every account of every task must balance (``engine.core.identity.Account``; ``engine/runtime/ledger.py`` says who
   counts what). Its producers' word has come through the channel itself, with the barrier, so an account needs no other
   task's. Rows are in flight only at a task that cut as a whole. Its flight holds more than channels do, so there the
   accounts alone are looked at.
2. A task is restored with all rows that its flight holds. That is checked before its region starts.
3. An imbalance is a bug: rows were lost or repeated inside the job. The job fails at once; started again it goes on
   from its newest checkpoint, which balanced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from ...engine.core.identity import Account, CheckpointId, StateHandle, Tally, TaskId
from ..model.events import Failure

_REMEDY = (
    "this is a bug of Penstock: report it. What was committed before is whole; run the job again, and it goes on from "
    "its newest checkpoint"
)


def imbalance(
    checkpoint: CheckpointId, task: TaskId, ledger: Sequence[Account], files: Collection[StateHandle]
) -> Failure | None:
    """Why a checkpoint with this ledger and these files of a task may not be stored; None if it may."""
    for account in ledger:
        if not account.balances:
            return _not_stored(checkpoint, _unequal(task, account))
    if not any(each.is_flight for each in files):
        for account in ledger:
            if account.in_flight.rows:
                rows = f"{account.in_flight.rows:,} rows of {account.kind} {account.place!r} in flight"
                return _not_stored(checkpoint, f"{task} has {rows}, and wrote none")
    return None


def _unequal(task: TaskId, account: Account) -> str:
    parts = [
        f"given {_told(account.given)}",
        f"in flight at the restore {_told(account.restored)}",
        f"taken {_told(account.taken)}",
        f"dropped {_told(account.dropped)}",
        f"in flight {_told(account.in_flight)}",
    ]
    return f"the rows of {account.kind} {account.place!r} at {task} do not balance ({'; '.join(parts)})"


def _told(tally: Tally | None) -> str:
    if tally is None:
        return "not told"
    batches = f" in {tally.batches:,} batches, sum {tally.checksum:016x}" if tally.batches else ""
    return f"{tally.rows:,} rows{batches}"


def _not_stored(checkpoint: CheckpointId, why: str) -> Failure:
    message = f"checkpoint {checkpoint} is not stored: {why}"
    return Failure(message, retry=False, remedy=_REMEDY, kind="InternalError")


def opening_failure(task: TaskId, handles: Iterable[StateHandle], restored: int) -> Failure | None:
    """Why the rows in flight that a task was built with are not those that its files hold; None if they are."""
    stored = sum(each.rows for each in handles if each.is_flight)
    if stored == restored:
        return None
    message = (
        f"{task} is not started: the checkpoint holds {stored:,} rows of its flight, and it was restored with "
        f"{restored:,}"
    )
    return Failure(message, retry=False, remedy=_REMEDY, kind="InternalError")
