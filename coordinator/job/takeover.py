"""Makes the job ours: read the log, claim its next number, and make sure that the claim stands at its end.

Rules:

1. Nothing but the log is touched before the claim stands. A log that is not ours is not written to at all.
2. A claim beyond entry 0 is verified by reading again. Between the first reading and the claim an older coordinator
   may have completed many checkpoints and deleted old entries, ours among the deleted numbers: a claim in such a hole
   would stop nobody. With the claim at the end of the log, the number that any older coordinator writes next is taken.
3. Of two that start at the same time one gets the number; the other finds a claim not older than its own and leaves.
   A claim of ours that was said to have failed and landed late, in a hole, is nobody else's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..log.recovery import Over, Refused, TakeOver, check_inputs, decide_recovery, generation_of, identity_in
from ..model.commands import Command
from ..model.events import EntryFailed, EntryRefused, EntryStored, Failure, LogFailed, LogRead
from ..model.manifest import Claim, Claimant, LogEntry, encode
from ..restore.stored_channels import check_channels
from ..restore.stored_state import Snapshot, check_snapshot
from ..state.context import Context

TRIES = 3
"""Times that a store which fails is tried before the job is given up: enough for a hiccup, too few to wait for it."""


@dataclass(frozen=True)
class Retry:
    """Go on with this order."""

    order: Command


@dataclass(frozen=True)
class Claimed:
    """The job is ours, from here on."""

    decision: TakeOver


@dataclass(frozen=True)
class AlreadyOver:
    """There is nothing to take over: the log is closed."""

    decision: Over


@dataclass(frozen=True)
class SteppedDown:
    """Somebody newer has it, as these entries say."""

    entries: Sequence[LogEntry]


class TakeOverAttempt:
    """From the first reading of the log to the verified claim."""

    def __init__(
        self,
        context: Context,
        description: str,
        owner: str,
        snapshot: Snapshot | None = None,
        claimant: Claimant | None = None,
    ) -> None:
        self._context = context
        self._description = description
        self._owner = owner
        self._snapshot = snapshot
        self._claimant = claimant
        #: The decision and the claim made from it, once the log was read; the newest of each.
        self._decision: TakeOver | None = None
        self._claim: Claim | None = None
        #: Every claim that was ordered, as it would stand in the log.
        self._ordered: set[bytes] = set()
        self._failures = 0

    def note(
        self, event: LogRead | LogFailed | EntryStored | EntryRefused | EntryFailed
    ) -> Retry | Claimed | AlreadyOver | SteppedDown | Failure:
        """What follows from an answer of the log."""
        log = self._context.log
        if isinstance(event, LogRead):
            log.reading = False
            return self._decide(event) if self._claim is None else self._verify(event, self._claim)
        if isinstance(event, LogFailed | EntryFailed):
            self._failures += 1
            log.reading = False
            if not event.failure.retry or self._failures >= TRIES:
                return event.failure
        elif isinstance(event, EntryStored) and event.number == 0 and self._decision is not None:
            log.stored()
            return self._claimed(self._decision)
        return Retry(log.read())

    def _decide(self, read: LogRead) -> Retry | AlreadyOver | Failure:
        context, entries = self._context, read.entries
        decision = decide_recovery(
            entries, context.fingerprint, context.job, self._description, context.identity.uuid, read.running
        )
        if isinstance(decision, Refused):
            return decision.failure
        if isinstance(decision, Over):
            return AlreadyOver(decision)
        if (refused := self._cannot_restore(decision)) is not None:
            return refused
        self._decision = decision
        found = identity_in(entries)
        if found is not None:  # what the first claim says stays true, whatever this run was started with
            context.identity = replace(context.identity, ancestors=found.ancestors)
        self._claim = Claim(
            number=decision.number,
            generation=decision.generation,
            job=context.job,
            fingerprint=context.fingerprint,
            description=self._description,
            inputs=context.recorded_inputs,
            owner=self._owner,
            uuid=context.identity.uuid,
            ancestors=context.identity.ancestors,
            by=self._claimant,
        )
        self._ordered.add(encode(self._claim))
        context.log.next_number = decision.number
        return Retry(context.log.store(self._claim))

    def _verify(self, read: LogRead, claim: Claim) -> Retry | Claimed | AlreadyOver | SteppedDown | Failure:
        log, entries = self._context.log, read.entries
        stands = any(encode(entry) == encode(claim) for entry in entries)
        others = [entry for entry in entries if encode(entry) not in self._ordered]
        if any(generation_of(entry) >= claim.generation for entry in others):
            return SteppedDown(others)
        log.dropped()
        if stands and all(entry.number < claim.number for entry in others):
            log.next_number = claim.number + 1
            decision = decide_recovery(others, claim.fingerprint, claim.job, self._description, claim.uuid)
            if isinstance(decision, Refused):
                return decision.failure
            if isinstance(decision, Over):
                return AlreadyOver(decision)
            return self._cannot_restore(decision) or self._claimed(decision)
        return self._decide(read)

    def _cannot_restore(self, decision: TakeOver) -> Failure | None:
        """Why this flow cannot go on from what it would go on from."""
        graph, snapshot = self._context.graph, self._snapshot
        if decision.latest is not None:
            return check_inputs(self._context.inputs, decision.latest) or check_channels(graph, decision.latest)
        return check_snapshot(graph, snapshot) if snapshot is not None else None

    def _claimed(self, decision: TakeOver) -> Claimed:
        self._context.claim = self._claim
        identity = self._context.identity
        if identity.uuid:
            self._context.identity = replace(identity, generation=decision.generation, claim=self._owner)
        return Claimed(decision)
