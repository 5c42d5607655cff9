"""The partitions of exchanges: how one producer's elements are divided among the subtasks that consume them.

An :class:`~penstock.engine.exchange.channels.OutputChannel` is the partition of a local edge, of a gather and of a
forward edge. Rules:

1. A partitioned batch is sorted by part, once and stably, and cut into one piece per consumer. A piece carries the part
   of each row in its last column (``PART``) and the tag of the batch; an empty piece is not sent.
2. Every other element goes to all channels, in its place. So whatever one consumer knows of the end of a round or of a
   barrier, all others are about to know.
3. An partition is ready when all its channels are: the slowest consumer sets the pace of its producers.

Rule 3 cannot block a job, because consumers do not wait for each other within a round. The gate of a partitioned
exchange (``UnorderedInputGate``) takes pieces of the open round from whichever producer has some; ``Regroup`` behind it
takes them all and puts nothing out before the round has ended. So a producer in the oldest open round always gets
credit, and by rule 2 that round ends everywhere. What follows, each consumer can do with what it holds: also where an
ordered merge (a gather of a partitioned stage) reads one consumer after the other, the one it waits for needs nothing
more from the producers. An ordered merge directly behind a partitioned exchange would block: producer 1 could wait for
credit of consumer X, which waits for word from producer 2, which waits for credit of Y, which waits for word from
producer 1. A broadcast may be merged in order: every consumer gets every batch, so all of them wait for the same
producer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ..core.elements import Batch, Element
from ..plan.partitioning import Broadcast, Forward, Gather, Partitioner, sorted_by_part, wire_schema
from ..plan.plan import Exchange
from ..plan.rounds import lanes_of
from .channels import OutputChannel, ResultPartition


def result_partition_of(exchange: Exchange, channels: Sequence[OutputChannel]) -> ResultPartition:
    """The partition of one producer of an exchange; ``channels`` lead to the consumers, in the order of their
    subtasks."""
    config = exchange.config
    if isinstance(config, Gather | Forward):
        (channel,) = channels
        return channel
    if isinstance(config, Broadcast):
        return BroadcastPartition(channels)
    return ShuffledPartition(channels, config.partitioner(exchange.schema), config.parts)


class BroadcastPartition:
    """Every element to every channel."""

    def __init__(self, channels: Sequence[OutputChannel]) -> None:
        self.channels = channels

    @property
    def ready(self) -> bool:
        """Whether every channel may take a batch."""
        return all(channel.ready for channel in self.channels)

    def send(self, element: Element) -> None:
        """Send it to all."""
        for channel in self.channels:
            channel.send(element)


class ShuffledPartition(BroadcastPartition):
    """See the module's rules. Channel *n* gets the parts that subtask *n* of the consumers owns."""

    def __init__(self, channels: Sequence[OutputChannel], partitioner: Partitioner, parts: int) -> None:
        super().__init__(channels)
        self._partitioner = partitioner
        #: where the parts of each channel begin, and where those of the last one end
        self._borders = [lanes_of(number, len(channels), parts).start for number in range(len(channels))] + [parts]
        self._schema: pa.Schema | None = None

    def send(self, element: Element) -> None:
        """Divide a batch; send anything else to all."""
        if not isinstance(element, Batch):
            super().send(element)
            return
        # round robin counts all rows, also those that nobody needs any more
        parts = self._partitioner.parts(element)
        if all(channel.cancelled for channel in self.channels):
            return
        if self._schema is None:
            self._schema = wire_schema(element.records.schema)
        records, parts = sorted_by_part(element.records, parts)
        borders = np.searchsorted(parts, self._borders).tolist()
        whole = pa.RecordBatch.from_arrays([*records.columns, pa.array(parts)], schema=self._schema)
        for channel, start, end in zip(self.channels, borders, borders[1:], strict=False):
            if start < end:
                channel.send(Batch(whole.slice(start, end - start), element.tag))
