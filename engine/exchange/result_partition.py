"""The partitions of exchanges: how one producer's elements are divided among the subtasks that consume them.

An :class:`~penstock.engine.exchange.channels.OutputChannel` is the partition of a local edge, of a gather and of a
forward edge. Rules:

1. A partitioned batch is sorted by part, once and stably, and cut into one piece per consumer. A piece carries the part
   of each row in its last column (``PART``) and the tag of the batch; an empty piece is not sent.
2. Every other element goes to all channels, in its place. So whatever one consumer knows of the end of a round or of a
   barrier, all others are about to know.
3. An partition is ready when all its channels are: the slowest consumer sets the pace of its producers.
4. Small batches that follow one another in a lane and round become one, under the tag of the first, before they are
   divided: dividing costs much the same for a few rows as for some thousands. They wait for the next element that does
   not join them, which is the end of their round at the latest: till then consumers hold back what has come of it.

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

from ..buffers.stored_rows import concatenated
from ..core.elements import Batch, Element
from ..plan.partitioning import Broadcast, Forward, Gather, Partitioner, sorted_by_part, wire_schema
from ..plan.plan import Exchange
from ..plan.rounds import lanes_of
from .channels import OutputChannel, ResultPartition

SMALL_ROWS, SMALL_BYTES = 8 * 1024, 512 * 1024
"""A batch of at most so many rows and bytes waits for others to be divided with."""
MOST_ROWS, MOST_BYTES = 16 * 1024, 1024 * 1024
"""So many become one, at most."""


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
        #: the schema of the rows that came last, and of what is sent of them
        self._schemas: tuple[pa.Schema, pa.Schema] | None = None
        #: small batches of one lane, round and schema that wait for more (rule 4), their rows and their bytes
        self._small: list[Batch] = []
        self._rows = self._bytes = 0

    def send(self, element: Element) -> None:
        """Divide a batch; send anything else to all."""
        if not isinstance(element, Batch):
            self._flush()
            super().send(element)
        elif element.records.num_rows <= SMALL_ROWS and element.size <= SMALL_BYTES:
            self._put(element)
        else:
            self._flush()
            self._divide(element)

    def snapshot(self) -> pa.Table | None:
        """What the division of the next rows depends on (``Partitioner.snapshot``). Rows that wait are sent first, as
        ahead of any control element."""
        self._flush()
        return self._partitioner.snapshot()

    def restore(self, table: pa.Table) -> None:
        """Go on dividing behind these snapshots."""
        self._partitioner.restore(table)

    def _put(self, batch: Batch) -> None:
        """Let a small batch wait, with those before it if they belong together."""
        rows, small = batch.records.num_rows, self._small
        too_many = self._rows + rows > MOST_ROWS or self._bytes + batch.size > MOST_BYTES
        if small and (too_many or not _belong_together(small[-1], batch)):
            self._flush()
        self._small.append(batch)
        self._rows, self._bytes = self._rows + rows, self._bytes + batch.size

    def _flush(self) -> None:
        """Divide the batches that wait."""
        small, size = self._small, self._bytes
        if not small:
            return
        self._small, self._rows, self._bytes = [], 0, 0
        first = small[0]
        if len(small) > 1:
            first = Batch(concatenated(first.records.schema, [each.records for each in small]), first.tag, size)
        self._divide(first)

    def _divide(self, batch: Batch) -> None:
        # round robin counts all rows, also those that nobody needs any more
        parts = self._partitioner.parts(batch)
        if all(channel.cancelled for channel in self.channels):
            return
        records, parts = sorted_by_part(batch.records, parts)
        borders = np.searchsorted(parts, self._borders).tolist()
        whole = pa.RecordBatch.from_arrays([*records.columns, pa.array(parts)], schema=self._schema_of(records))
        rows, size = records.num_rows, batch.size + parts.nbytes
        for channel, start, end in zip(self.channels, borders, borders[1:], strict=False):
            if start < end:
                # its share of the bytes: measuring takes longer than sending
                channel.send(Batch(whole.slice(start, end - start), batch.tag, size * (end - start) // rows))

    def _schema_of(self, records: pa.RecordBatch) -> pa.Schema:
        schema = records.schema
        if self._schemas is None or not self._schemas[0].equals(schema):
            self._schemas = (schema, wire_schema(schema))
        return self._schemas[1]


def _belong_together(one: Batch, other: Batch) -> bool:
    """Whether their rows follow one another in one lane and round, as columns of the same types."""
    mine, theirs = one.records.schema, other.records.schema
    same = one.tag.lane == other.tag.lane and one.tag.round == other.tag.round
    return same and len(mine) > 0 and (mine is theirs or bool(mine.equals(theirs)))
