"""The books of a checkpoint: nothing is stored that does not balance. Pure.

Rules:

1. Every account of every task must balance (``engine.core.identity.Account``; ``engine/runtime/ledger.py`` says who
   counts what). Its producers' word has come through the channel itself, with the barrier, so an account needs no other
   task's. The channel files of a task hold as many rows as its accounts say are in flight; a flight holds more than
   channels do, so of a task that cut as a whole the accounts alone are looked at.
2. What the tasks of a region were restored with, in flight, is together what the manifest holds for them: each row
   once, also at another parallelism. That is checked before the region starts.
3. An imbalance is a bug: rows were lost or repeated inside the job. The job fails at once; started again it goes on
   from its newest checkpoint, which balanced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from ...engine.core.identity import Account, CheckpointId, Holds, Opening, StateHandle, Tally, TaskId
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
    if any(each.holds is Holds.FLIGHT for each in files):
        return None
    stored = Counter({each.operator: each.rows for each in files if each.holds is Holds.INPUT})
    told = Counter({each.place: each.in_flight.rows for each in ledger if each.kind == "exchange"})
    for place in sorted(stored.keys() | told.keys()):
        if stored[place] != told[place]:
            rows = f"{told[place]:,} rows of exchange {place!r} in flight, and wrote {stored[place]:,}"
            return _not_stored(checkpoint, f"{task} has {rows}")
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


def opening_failure(handles: Iterable[StateHandle], told: Iterable[Opening]) -> Failure | None:
    """Why the rows in flight that a region's tasks were built with are not those of its files; None if they are.

    ``handles``: those of which nobody else reads a part."""
    stored: Counter[tuple[str, str]] = Counter()
    for handle in handles:
        stored[handle.operator, handle.holds.value] += handle.rows
    found: Counter[tuple[str, str]] = Counter()
    for each in told:
        found[each.exchange, each.holds.value] += each.rows
    for exchange, side in sorted(stored):
        rows, restored = stored[exchange, side], found[exchange, side]
        if rows != restored:
            message = (
                f"the tasks are not started: the checkpoint holds {rows:,} rows in flight of exchange {exchange!r} "
                f"({side}), and they were restored with {restored:,}"
            )
            return Failure(message, retry=False, remedy=_REMEDY, kind="InternalError")
    return None
