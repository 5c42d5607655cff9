"""What a driver tells its task, and in which form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from ..core.elements import Barrier
from ..core.errors import PenstockError
from ..core.identity import Account, CheckpointId, Committable, EndedLanes
from ..exchange.channel_state import ChannelPart
from ..sources.reader import SplitReader
from .windows import OperatorWindow


@dataclass(frozen=True, slots=True)
class Cut:
    """What a driver was at the cut of a checkpoint. ``tables``: operator id to state; ``ended``: for which lanes its
    operators have finished; ``channels``: what ``unaligned`` barriers have overtaken; ``alignment``: seconds from the
    first barrier to the last, in which ``processed_bytes`` of batches were read; ``ledger``: what came in and went out,
    up to the cut."""

    barrier: Barrier
    tables: dict[str, pa.Table]
    data_ended: bool
    ended: tuple[EndedLanes, ...] = ()
    unaligned: bool = False
    channels: tuple[ChannelPart, ...] = ()
    alignment: float = 0.0
    processed_bytes: int = 0
    ledger: tuple[Account, ...] = ()


class Teller(Protocol):
    """A driver, as its host sees it."""

    @property
    def name(self) -> str: ...

    @property
    def readers(self) -> Sequence[SplitReader]: ...


class DriverHost(Protocol):
    """What a driver tells its task, on the thread that runs the driver."""

    def met(self, driver: Teller, barrier: Barrier) -> None:
        """A checkpoint's barrier has come to the driver."""

    def prepared(self, driver: Teller, cut: Cut, committables: list[Committable]) -> None:
        """All barriers of a checkpoint have come, and everything from before its cut is written."""

    def left_over(self, driver: Teller, checkpoint: CheckpointId, committables: list[Committable]) -> None:
        """The driver gave a checkpoint up after its cut; this is what its sinks had prepared by then."""

    def drained(self, driver: Teller, barrier: CheckpointId, window: Sequence[OperatorWindow]) -> None:
        """The same for a task barrier, when the driver's operators have drained."""

    def abandoned(self, driver: Teller, checkpoint: CheckpointId) -> None:
        """The driver gave the checkpoint up, because a newer one began or a cancel marker came."""

    def advanced(self, driver: Teller) -> None:
        """The driver has come further towards its end: its data, an input or the records of a consumer have ended."""

    def closed(self, driver: Teller, errors: Sequence[PenstockError]) -> None:
        """The driver's operators are closed; ``errors``: what they raised."""
