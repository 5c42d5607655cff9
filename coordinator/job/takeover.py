"""Makes the job ours: read the log, claim its next number, make sure that the claim is at its end, take the outputs.

Rules:

1. Nothing but the log is touched before the claim is durable. A log that is not ours is not written to at all.
2. A claim beyond entry 0 is verified by reading again. Between the first reading and the claim an older coordinator
   may have completed many checkpoints and deleted old entries, ours among the deleted numbers: a claim in such a hole
   would stop nobody. With the claim at the end of the log, the number that any older coordinator writes next is taken.
3. Of two that start at the same time one gets the number; the other finds a claim not older than its own and leaves.
   A claim of ours that was said to have failed and landed late, in a hole, is nobody else's.
4. Once the claim is verified the outputs are taken; the job begins when they are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from ...engine.core.identity import JobIdentity
from ...engine.core.state_machine import check_move
from ..log.recovery import Over, Refused, TakeOver, check_inputs, decide_recovery, generation_of, identity_in
from ..model.commands import Command, TakeOutputs
from ..model.events import (
    EntryFailed,
    EntryRefused,
    EntryStored,
    Failure,
    LogFailed,
    LogRead,
    OutputsRefused,
    OutputsTaken,
)
from ..model.manifest import Claim, Claimant, LogEntry, encode
from ..restore.stored_channels import check_channels
from ..restore.stored_state import Snapshot, check_snapshot
from ..state.context import Context

TRIES = 3
"""Times that a store which fails is tried before the job fails: enough for a hiccup, too few to wait for it."""


class TakeoverState(Enum):
    """How far the takeover is."""

    __hash__ = object.__hash__

    READING = "reading"
    """The log is read to decide whether there is anything to take over."""
    CLAIMING = "claiming"
    """A claim has been ordered."""
    VERIFYING = "verifying"
    """The log is read again to see where the claim is."""
    TAKING_OUTPUTS = "taking outputs"
    """The claim is at the log's end; the outputs are asked for."""
    OURS = "ours"
    OVER = "over"
    """It is not ours: the log is closed, somebody else's, or cannot be used."""


_LEFT = frozenset({TakeoverState.OURS, TakeoverState.OVER})
LEGAL_TAKEOVER_MOVES: Mapping[TakeoverState, frozenset[TakeoverState]] = {
    TakeoverState.READING: frozenset({TakeoverState.CLAIMING, TakeoverState.OVER}),
    TakeoverState.CLAIMING: frozenset({TakeoverState.VERIFYING, TakeoverState.TAKING_OUTPUTS, *_LEFT}),
    TakeoverState.VERIFYING: frozenset({TakeoverState.CLAIMING, TakeoverState.TAKING_OUTPUTS, *_LEFT}),
    TakeoverState.TAKING_OUTPUTS: _LEFT,
    TakeoverState.OURS: frozenset(),
    TakeoverState.OVER: frozenset(),
}


class Order(msgspec.Struct, frozen=True):
    """Go on with this order."""

    command: Command


class Claimed(msgspec.Struct, frozen=True):
    """The job is ours, from here on."""

    decision: TakeOver


class AlreadyOver(msgspec.Struct, frozen=True):
    """There is nothing to take over: the log is closed."""

    decision: Over


class SteppedDown(msgspec.Struct, frozen=True):
    """Somebody newer has it, as these entries say."""

    entries: Sequence[LogEntry]


Outcome: TypeAlias = Order | Claimed | AlreadyOver | SteppedDown | Failure


class Takeover:
    """From the first reading of the log to the job that is ours. See the module's rules."""

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
        self._state = TakeoverState.READING
        #: The decision and the claim made from it, once the log was read; the newest of each.
        self._decision: TakeOver | None = None
        self._claim: Claim | None = None
        #: Every claim that was ordered, as it would be in the log.
        self._ordered: set[bytes] = set()
        #: What failed in a row: the log, then the outputs.
        self._failures = 0

    def note(self, event: LogRead | LogFailed | EntryStored | EntryRefused | EntryFailed) -> Outcome:
        """What follows from an answer of the log."""
        log = self._context.log
        if isinstance(event, LogRead):
            log.has_read()
            return self._decide(event) if self._claim is None else self._verify(event, self._claim)
        if isinstance(event, LogFailed | EntryFailed):
            self._failures += 1
            log.has_read()
            if not event.failure.retry or self._failures >= TRIES:
                return self._refuse(event.failure)
        elif isinstance(event, EntryStored) and event.number == 0 and self._decision is not None:
            log.stored()
            return self._claimed(self._decision)
        if self._state is TakeoverState.CLAIMING:
            self._move(TakeoverState.VERIFYING)
        return Order(log.read())

    def note_outputs(self, event: OutputsTaken | OutputsRefused) -> Outcome | None:
        """The outputs are ours or are not; None for an answer that nobody waits for."""
        if self._state is not TakeoverState.TAKING_OUTPUTS or self._decision is None:
            return None
        if isinstance(event, OutputsTaken):
            self._move(TakeoverState.OURS)
            return Claimed(self._decision)
        self._failures += 1
        if event.failure.retry and self._failures < TRIES:
            return Order(self._take_outputs(self._decision))
        return self._refuse(event.failure)

    def validate(self) -> None:
        """A claim has been made unless the log is read for the first time, or was refused by that."""
        if (self._claim is None) and self._state not in (TakeoverState.READING, TakeoverState.OVER):
            raise AssertionError(f"the takeover is {self._state.value}, and nothing was claimed")

    def _decide(self, read: LogRead) -> Outcome:
        context, entries = self._context, read.entries
        found = self._usable(self._decided(entries, read.running))
        if not isinstance(found, TakeOver):
            return found
        self._decision = found
        before = identity_in(entries)
        if before is not None:  # what the first claim says stays true, whatever this run was started with
            context.identity = replace(context.identity, ancestors=before.ancestors)
        self._claim = Claim(
            number=found.number,
            generation=found.generation,
            job=context.job,
            fingerprint=context.fingerprint,
            description=self._description,
            inputs=context.recorded_inputs,
            owner=self._owner,
            uuid=context.identity.uuid,
            ancestors=context.identity.ancestors,
            parts=context.graph.parts,
            broadcasts=context.graph.broadcasts,
            round_rows=context.graph.round_rows,
            by=self._claimant,
        )
        self._ordered.add(encode(self._claim))
        context.log.next_number = found.number
        self._move(TakeoverState.CLAIMING)
        return Order(context.log.store(self._claim))

    def _verify(self, read: LogRead, claim: Claim) -> Outcome:
        log, entries = self._context.log, read.entries
        durable = any(encode(entry) == encode(claim) for entry in entries)
        others = [entry for entry in entries if encode(entry) not in self._ordered]
        if any(generation_of(entry) >= claim.generation for entry in others):
            self._move(TakeoverState.OVER)
            return SteppedDown(others)
        log.dropped()
        if not (durable and all(entry.number < claim.number for entry in others)):
            return self._decide(read)
        log.next_number = claim.number + 1
        found = self._usable(self._decided(others))
        return self._claimed(found) if isinstance(found, TakeOver) else found

    def _decided(self, entries: Sequence[LogEntry], running: str = "") -> TakeOver | Over | Refused:
        context, snapshot = self._context, self._snapshot
        return decide_recovery(
            entries,
            context.fingerprint,
            context.job,
            self._description,
            context.identity.uuid,
            running,
            behind=0 if snapshot is None else snapshot.manifest.checkpoint.generation,
        )

    def _usable(self, decision: TakeOver | Over | Refused) -> TakeOver | AlreadyOver | Failure:
        """The decision to take over if this flow can go on from what it would go on from."""
        if isinstance(decision, Refused):
            return self._refuse(decision.failure)
        if isinstance(decision, Over):
            self._move(TakeoverState.OVER)
            return AlreadyOver(decision)
        graph, snapshot, failure = self._context.graph, self._snapshot, None
        if decision.latest is not None:
            failure = check_inputs(self._context.inputs, decision.latest) or check_channels(graph, decision.latest)
        elif snapshot is not None:
            failure = check_snapshot(graph, snapshot)
        return decision if failure is None else self._refuse(failure)

    def _claimed(self, decision: TakeOver) -> Outcome:
        context, self._decision, self._failures = self._context, decision, 0
        context.claim = self._claim
        if context.identity.uuid:
            context.identity = replace(context.identity, generation=decision.generation, claim=self._owner)
        self._move(TakeoverState.TAKING_OUTPUTS if context.has_outputs else TakeoverState.OURS)
        return Order(self._take_outputs(decision)) if context.has_outputs else Claimed(decision)

    def _take_outputs(self, decision: TakeOver) -> TakeOutputs:
        identity: JobIdentity = self._context.identity
        claims, latest, snapshot = (*decision.claims, identity.claim), decision.latest, self._snapshot
        if latest is not None:
            return TakeOutputs(identity, claims, latest, latest.root)
        if snapshot is not None:
            return TakeOutputs(identity, claims, snapshot.manifest, snapshot.root)
        return TakeOutputs(identity, claims, None)

    def _refuse(self, failure: Failure) -> Failure:
        self._move(TakeoverState.OVER)
        return failure

    def _move(self, to: TakeoverState) -> None:
        self._state = check_move("the takeover", LEGAL_TAKEOVER_MOVES, self._state, to)
