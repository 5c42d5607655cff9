"""Operators that had finished at the checkpoint that a task is restored from (FLIP-147): they are not run again.

Rules:

1. An operator that had finished for all lanes of a task is not built: :class:`EndedOperator` stands in its place in the
   chain, passes the end on and keeps the state as it was.
2. One that had finished for some of them (at another parallelism a task gets lanes of several) is built for the others:
   with their state, and with the lanes from the first to the last of them. What it emits in ``finish`` for a lane that
   had ended is dropped (``operator_chain``), and the state of such lanes is kept beside its own.
3. A feed is always built: it has finished when its ranks have read everything, which only it knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..core.elements import Batch
from ..core.errors import ConfigurationError
from ..core.identity import EndedLanes
from ..core.operator import LANE, Output, Stateless


class EndedOperator(Stateless):
    """See rule 1. It has no row to expect: what feeds it had ended, too."""

    def __init__(self, state: pa.Table | None) -> None:
        # in one piece: those of several tasks may differ in their dictionaries
        self._state = None if state is None else state.combine_chunks()

    def process(self, port: int, batch: Batch, out: Output) -> None:
        raise ConfigurationError(
            "rows came for an operator that had finished at the checkpoint: its input has become longer, or another "
            "operator stands before it",
            "append new operators behind finished ones, leave the input as it was, or begin without this checkpoint",
        )

    def snapshot(self) -> pa.Table | None:
        return self._state


@dataclass(frozen=True, slots=True)
class Division:
    """The lanes of a task, divided into those for which an operator had finished and those for which it goes on."""

    lanes: range
    ended: frozenset[int]
    #: it had finished for all of them
    over: bool

    @property
    def hull(self) -> range:
        """From the first to the last lane that goes on."""
        left = [lane for lane in self.lanes if lane not in self.ended]
        return range(left[0], left[-1] + 1) if left else self.lanes

    def of_state(self, table: pa.Table | None) -> tuple[pa.Table | None, pa.Table | None]:
        """The state of the lanes that go on, and that of the others. What belongs to no lane goes on."""
        if table is None or not self.ended:
            return table, None
        ended = np.isin(table.column(LANE).to_numpy(), sorted(self.ended))
        goes_on, rest = table.filter(pa.array(~ended)), table.filter(pa.array(ended)).combine_chunks()
        return goes_on if goes_on.num_rows else None, rest if rest.num_rows else None


def with_carried(state: pa.Table | None, carried: pa.Table) -> pa.Table:
    """An operator's state and that of the lanes for which it had finished. In one piece: they may differ in their
    dictionaries, of which a file takes one for a column. Either may say what the other does not (``lane_counts``)."""
    if state is None:
        return carried
    return pa.concat_tables([carried, state], promote_options="default").combine_chunks()


def divide(operator: str, lanes: range, ended: Iterable[EndedLanes]) -> Division:
    """For which of a task's lanes the operator had finished. One of a task without lanes says so, too."""
    mine = [each for each in ended if each.operator == operator]
    over = frozenset(lane for lane in lanes if any(each.start <= lane < each.stop for each in mine))
    return Division(lanes, over, over=bool(mine) and len(over) == len(lanes))


def ended_lanes(operator: str, lanes: Iterable[int]) -> list[EndedLanes]:
    """Lanes as ranges."""
    found: list[EndedLanes] = []
    for lane in sorted(lanes):
        start = found.pop().start if found and found[-1].stop == lane else lane
        found.append(EndedLanes(operator, start, lane + 1))
    return found
