"""An ``AlignedHandler`` without times and reasons, for tests of the aligned rules alone."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.engine.alignment import AlignedHandler, BarrierArrival, Outcome
from penstock.engine.core.identity import CheckpointId


@dataclass(frozen=True, slots=True)
class Alignment:
    """What one input did: checkpoints given up, then the checkpoint that is aligned now, if any."""

    aborted: tuple[CheckpointId, ...] = ()
    aligned: CheckpointId | None = None


NOTHING = Alignment()


class Aligner:
    """Aligns the barriers of ``channels`` channels, numbered from 0."""

    def __init__(self, channels: int) -> None:
        self._handler = AlignedHandler[CheckpointId](channels)

    @property
    def channels(self) -> int:
        return self._handler.channels

    @property
    def open(self) -> set[int]:
        """Channels that have not ended."""
        return self._handler.open

    @property
    def blocked(self) -> set[int]:
        """Channels that must not be read until the pending checkpoint is aligned or given up."""
        return self._handler.blocked

    def barrier(self, channel: int, checkpoint: CheckpointId, *, block: bool = True) -> Alignment:
        """A barrier came. ``block`` False: it was injected by a trigger, the channel need not wait."""
        return _plain(self._handler.barrier(channel, BarrierArrival(checkpoint, 0), 0, injected=not block))

    def cancel(self, checkpoint: CheckpointId) -> Alignment:
        """A cancel marker came. It acts on a newer checkpoint, or on the pending one once a channel is counted."""
        return _plain(self._handler.cancel(0, checkpoint))

    def abort(self, checkpoint: CheckpointId) -> Alignment:
        """The coordinator gave the checkpoint up, here or anywhere: its barriers are ignored from now on."""
        return _plain(self._handler.abort(checkpoint))

    def end(self, channel: int) -> Alignment:
        """The channel's partition has ended."""
        return _plain(self._handler.end(channel, 0))

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        self._handler.validate()


def _plain(outcome: Outcome[CheckpointId]) -> Alignment:
    return Alignment(tuple(given_up.checkpoint for given_up in outcome.aborted), outcome.triggered)
