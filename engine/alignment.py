"""Barrier alignment of one driver: which of its channels wait for the others. Pure.

Semantics follow Flink's single-checkpoint barrier handler in its aligned mode, with checkpoints after some inputs have
finished (FLIP-147).

Rules:

1. A channel is blocked from its barrier until all open channels have delivered theirs, or the checkpoint is aborted.
2. The end of a channel's partition counts as its barrier for the pending checkpoint, and lowers the number of channels
   of later ones. A channel is counted once.
3. Ids only grow. A barrier of a newer checkpoint aborts the pending one; a barrier of an older or completed one is
   ignored, and its channel is not blocked.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .identity import CheckpointId


@dataclass(frozen=True, slots=True)
class Alignment:
    """What one input did: checkpoints given up, then the checkpoint that is aligned now, if any."""

    aborted: tuple[CheckpointId, ...] = ()
    aligned: CheckpointId | None = None


NOTHING = Alignment()


@dataclass(slots=True)
class BarrierAligner:
    """Aligns the barriers of ``channels`` channels, numbered from 0."""

    channels: int
    #: the newest checkpoint heard of, pending or not
    latest: CheckpointId | None = None
    #: whether ``latest`` waits for barriers
    pending: bool = False
    #: channels counted for the pending checkpoint, by barrier or by their end
    counted: set[int] = field(default_factory=set)
    #: channels that have not ended
    open: set[int] = field(default_factory=set)
    #: channels whose barrier of the pending checkpoint came and that must wait; all of them are counted
    blocked: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.open = set(range(self.channels))

    def barrier(self, channel: int, checkpoint: CheckpointId, *, block: bool = True) -> Alignment:
        """A barrier came. ``block`` False: it was injected by a trigger, the channel need not wait."""
        aborted: tuple[CheckpointId, ...] = ()
        if self.latest is None or checkpoint > self.latest:
            aborted = self._begin(checkpoint)
        elif checkpoint < self.latest or not self.pending:
            return NOTHING
        self.counted.add(channel)
        if block:
            self.blocked.add(channel)
        return Alignment(aborted, self._complete())

    def cancel(self, checkpoint: CheckpointId) -> Alignment:
        """A cancel marker came. It acts on a newer checkpoint, or on the pending one once a channel is counted."""
        if self.latest is None or checkpoint > self.latest or (checkpoint == self.latest and self.pending):
            self.latest = checkpoint
            self._release()
            return Alignment(aborted=(checkpoint,))
        return NOTHING

    def abort(self, checkpoint: CheckpointId) -> Alignment:
        """The coordinator gave the checkpoint up, here or anywhere: its barriers are ignored from now on."""
        if self.latest is None or checkpoint > self.latest:
            self.latest = checkpoint
            self._release()
            return NOTHING
        return self.cancel(checkpoint)

    def end(self, channel: int) -> Alignment:
        """The channel's partition has ended."""
        self.open.discard(channel)
        if not self.pending:
            return NOTHING
        self.counted.add(channel)
        self.blocked.discard(channel)
        return Alignment((), self._complete())

    def _begin(self, checkpoint: CheckpointId) -> tuple[CheckpointId, ...]:
        aborted = (self.latest,) if self.pending and self.latest is not None else ()
        self._release()
        self.latest, self.pending = checkpoint, True
        return aborted

    def _complete(self) -> CheckpointId | None:
        if not self.open <= self.counted:
            return None
        self._release()
        return self.latest

    def _release(self) -> None:
        self.pending = False
        self.counted.clear()
        self.blocked.clear()

    def validate(self) -> None:
        """Raises AssertionError if an invariant does not hold."""
        assert self.blocked <= self.counted, "a blocked channel is counted"
        assert self.pending or not self.counted, "nothing is counted unless a checkpoint is pending"
        assert not self.pending or not self.open <= self.counted, "a pending checkpoint waits for somebody"
