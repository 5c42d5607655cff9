"""The ledger of a driver: what came in at each port, and what became of it up to a cut. Pure.

Rules:

1. A producer counts what it puts into a channel, and sends the tally along with each barrier and with the end of its
   data: everything before that frame, and nothing else. So each channel's consumer knows what should have come, whoever
   has finished meanwhile, and a checkpoint needs no word of the producer about it.
2. A consumer counts what its driver takes out of the gate (behind all queues), and apart from that what it drops
   because nobody needs it. What a barrier has overtaken is in flight; what was in flight at the checkpoint that the
   attempt was restored from is the opening balance. All tallies begin with the attempt.
3. Given + restored = taken + dropped + in flight, at every cut, in rows, batches and checksums (:class:`Account`). The
   coordinator checks that before it stores the manifest (``coordinator/checkpoint/row_accounts.py``).
4. A batch is known by its tag and its rows: one that is lost, repeated, cut or exchanged changes the sum. Its bytes
   are checked where they travel (the transport's frames); within a process a batch is handed over by reference. Edges
   inside a task have no account.
5. A source has given the rows that its cursors moved over in this attempt. A sink has taken what it prepared for
   commits, and, if its state is rows per lane, what that counts; both must be what it was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add

import pyarrow as pa

from ..core.elements import Batch
from ..core.identity import NOTHING, Account, CheckpointId, Tally
from ..core.offering import offers
from ..exchange.channels import InputChannel
from ..integrity.tally import tally_of
from ..sinks.lane_counts import CountingSink
from ..sources.reader import SplitReader
from .input_ports import Port
from .operator_chain import OperatorInstance


class SnapshotLedger:
    """A driver's ledger at one cut: what counts as taken stands when it is made, the rest when all barriers have come.

    ``tables``: the state at the cut, by operator.
    """

    def __init__(
        self, ports: Sequence[Port], sinks: Sequence[OperatorInstance], tables: Mapping[str, pa.Table]
    ) -> None:
        self._ports = [(port, port.taken.tally, port.dropped.tally) for port in ports if port.gate.feeds]
        feeds = [feed for port in ports for feed in port.gate.feeds]
        self._thrown = {feed: feed.dropped for feed in feeds if isinstance(feed, SplitReader)}
        self._sinks = [(sink, sink.rows_in, _counted(sink.running)) for sink in sinks]
        self._tables = tables

    def inputs(
        self,
        checkpoint: CheckpointId,
        in_flight: Mapping[int, list[Batch]],
        sent: Mapping[int, Tally | None] | None = None,
    ) -> tuple[Account, ...]:
        """The accounts of sources and exchanges. ``in_flight``: what barriers have overtaken, by feed of the driver;
        ``sent``: what their producers say, if it was asked before."""
        found: list[Account] = []
        for port, taken, dropped in self._ports:
            feeds = port.gate.feeds
            first = feeds[0]
            held = _sum(tally_of(in_flight.get(port.base + number, [])) for number in range(len(feeds)))
            if isinstance(first, SplitReader):
                found.append(self._source(first, taken, dropped, port.restored.rows, held.rows))
            elif isinstance(first, InputChannel) and not first.is_local:
                channels = [feed for feed in feeds if isinstance(feed, InputChannel)]
                told = [
                    channel.sent_before(checkpoint) if sent is None else sent[port.base + number]
                    for number, channel in enumerate(channels)
                ]
                restored = _sum([port.restored.tally, *(channel.restored.tally for channel in channels)])
                found.append(Account("exchange", first.channel.edge, _given(told), taken, restored, dropped, held))
        return tuple(found)

    def _source(self, reader: SplitReader, taken: Tally, dropped: Tally, restored: int, held: int) -> Account:
        table = self._tables.get(reader.operator)
        stands = reader.rows if table is None else sum(table.column("rows").to_pylist())
        given = Tally(stands - reader.restored_rows)
        thrown = Tally(dropped.rows + self._thrown[reader])
        return Account("source", reader.operator, given, Tally(taken.rows), Tally(restored), thrown, Tally(held))

    def outputs(self) -> tuple[Account, ...]:
        """The accounts of sinks. Only once what they flushed for the cut is prepared, and nothing else."""
        found: list[Account] = []
        for sink, rows, counted in self._sinks:
            if sink.prepares or counted is not None:
                found.append(Account("sink", sink.id, Tally(rows), Tally(sink.prepared)))
            if counted is not None:
                found.append(Account("sink", sink.id, Tally(rows), Tally(counted)))
        return tuple(found)


def _counted(sink: object) -> int | None:
    """Rows that a sink's state has counted in this attempt; None if it counts none."""
    return sink.counts.total - sink.counts.restored if offers(sink, CountingSink) else None


def _given(told: Sequence[Tally | None]) -> Tally | None:
    said = [tally for tally in told if tally is not None]
    return _sum(said) if len(said) == len(told) else None


def _sum(tallies: Iterable[Tally]) -> Tally:
    return reduce(add, tallies, NOTHING)
