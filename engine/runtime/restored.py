"""What an attempt of a task is restored from, as its process has read it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa

from ..core.identity import EndedLanes, Reweight
from ..exchange.flight import Flight
from ..state.change_log import StatePart


class Restored(msgspec.Struct, frozen=True):
    """``tables``: state by operator, of the whole vertex; ``ended``: for which lanes operators had finished;
    ``finished``: all of them had, in all tasks of the vertex, and their state is carried on by others. ``flights``:
    what this very subtask had in flight when it was cut as a whole, or, at another parallelism, what those had whose
    lanes it has now (``moved_flight``); none: they were not cut, and nothing else says where drivers stood.
    ``reweights``: what the log says of mixtures. ``parts``: those of the tables, where the job still has them."""

    tables: Mapping[str, pa.Table] = msgspec.field(default_factory=dict)
    ended: tuple[EndedLanes, ...] = ()
    finished: bool = False
    flights: tuple[Flight, ...] = ()
    reweights: tuple[Reweight, ...] = ()
    parts: Mapping[str, tuple[StatePart, ...]] = msgspec.field(default_factory=dict)


NOTHING_RESTORED = Restored()
