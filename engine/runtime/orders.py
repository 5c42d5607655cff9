"""What may be sent to a driver: everything that reaches it from outside, as one closed union.

The driver takes an order out of its inbox at the beginning of a step, on the thread that runs it, and performs it
(``Driver.perform``), so an order and a batch can be followed by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from ..core.elements import Barrier
from ..core.identity import CheckpointId, Reweight
from ..core.source import Split
from ..exchange.channels import Frame, InputChannel, OutputChannel, Upstream
from ..sources.reader import SplitReader, Stop


class Receive(msgspec.Struct, frozen=True):
    """A producer's frame has come for one of the inputs."""

    channel: InputChannel
    frame: Frame


class Deliver(msgspec.Struct, frozen=True):
    """A consumer's message has come for one of the outputs."""

    channel: OutputChannel
    message: Upstream


class ProposeRound(msgspec.Struct, frozen=True):
    """Hold the sources at the end of their round, and say which it is."""

    checkpoint: CheckpointId


class PlaceBarrier(msgspec.Struct, frozen=True):
    """Place a barrier in the sources, behind ``at_round``; with ``stop``, the data end there."""

    barrier: Barrier
    at_round: int | None
    stop: Stop | None


class InjectBarrier(msgspec.Struct, frozen=True):
    """The barrier has come on these inputs, whose producers have all finished."""

    barrier: Barrier
    inputs: Sequence[int]


class JoinBarrier(msgspec.Struct, frozen=True):
    """The barrier has come to another driver of the task."""

    barrier: Barrier


class ExpectBarriers(msgspec.Struct, frozen=True):
    """A checkpoint begins: a throttled operator takes what comes before its barriers."""

    checkpoint: CheckpointId


class AbortCheckpoint(msgspec.Struct, frozen=True):
    """The coordinator aborted a checkpoint."""

    checkpoint: CheckpointId


class NotifyCommitted(msgspec.Struct, frozen=True):
    """A checkpoint is durable and committed."""

    checkpoint: CheckpointId


class AddSplits(msgspec.Struct, frozen=True):
    """So many more rounds for a source, with the splits at these places of them."""

    reader: SplitReader
    rounds: int
    splits: Mapping[int, Split]


class NoMoreSplits(msgspec.Struct, frozen=True):
    """The splits of a source are complete."""

    reader: SplitReader


class DrainSources(msgspec.Struct, frozen=True):
    """Place a task barrier behind the splits known so far."""

    barrier: CheckpointId


class AddSplitSet(msgspec.Struct, frozen=True):
    """A split set as the sources get it: so many rounds, and for each source the splits at their places in these."""

    rounds: int
    splits: Mapping[str, Mapping[int, Split]]


class EndSplitSets(msgspec.Struct, frozen=True):
    """No more split sets."""


SplitSetOrder: TypeAlias = AddSplitSet | DrainSources | EndSplitSets


class TakeSplitSets(msgspec.Struct, frozen=True):
    """Split sets, task barriers behind them, and their end, behind so many ``rounds``.

    A set is given to a reader at once, so no round ends for want of a lane that is still to come, and a set begins in
    the same round everywhere. What a reader has had is known by its rounds: one that is restored stands at the end of a
    window (its cursors say of which round), and gets what follows.
    """

    rounds: int
    orders: Sequence[SplitSetOrder]


class Steer(msgspec.Struct, frozen=True):
    """The first operator goes by these changes, and is held at ``limit``."""

    operator: str
    reweights: tuple[Reweight, ...]
    limit: int | None


class ClosePartition(msgspec.Struct, frozen=True):
    """The task is over: end the partition once the inputs are closed."""


class CheckEnd(msgspec.Struct, frozen=True):
    """Look again at how far the end of the task has come."""


class CallBack(msgspec.Struct, frozen=True):
    """This is to be called: work in the background is done, say, or the task is to be cut."""

    action: Callable[[], object]


Order: TypeAlias = (
    Receive
    | Deliver
    | ProposeRound
    | PlaceBarrier
    | InjectBarrier
    | JoinBarrier
    | ExpectBarriers
    | AbortCheckpoint
    | NotifyCommitted
    | AddSplits
    | NoMoreSplits
    | DrainSources
    | TakeSplitSets
    | Steer
    | ClosePartition
    | CheckEnd
    | CallBack
)
