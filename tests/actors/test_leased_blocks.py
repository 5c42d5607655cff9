"""The holder of leased blocks: who waits for what, and what is dropped. Its calls to Spark are tried in tests/spark."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest
import ray

from penstock.actors.spark.holder import BlockHolder, LeasedSplit, start_holder
from penstock.engine.errors import ConfigurationError, InternalError

pytestmark = pytest.mark.ray

TABLE = pa.table({"n": range(1000)})


def test_credit_holds_back_unless_somebody_waits_for_what_has_not_come(cluster: str) -> None:
    holder = BlockHolder(TABLE.schema, credit=TABLE.nbytes)
    holder._keep(0, TABLE)
    assert holder.await_credit(0.0)
    holder._keep(1, TABLE)
    assert not holder.await_credit(0.0)
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.append(holder.block(2, 60.0)))
    reader.start()
    assert holder.await_credit(60.0)
    holder._keep(2, TABLE)
    reader.join()
    assert ray.get(found[0][0]).equals(TABLE)  # type: ignore[index]
    assert not holder.await_credit(0.0)
    assert holder.block(0, 0.0)
    assert holder.await_credit(0.0)


def test_readers_get_what_has_come_and_are_told_that_the_rest_will_not(cluster: str) -> None:
    holder = BlockHolder(TABLE.schema, credit=0)
    holder._keep(0, TABLE)
    assert holder.block(1, 0.0) is None
    holder.fail(ConfigurationError("Spark is gone", "start it again"))
    assert holder.block(0, 0.0) is not None
    with pytest.raises(ConfigurationError, match="Spark is gone"):
        holder.block(1, 0.0)


def test_dropped_blocks_are_gone_and_nobody_waits_for_them(cluster: str) -> None:
    holder = BlockHolder(TABLE.schema, credit=0)
    for partition in range(3):
        holder._keep(partition, TABLE)
    holder.drop([0, 1, 7])
    held = holder.held()
    assert (held.blocks, held.bytes, held.unread, held.dropped) == (1, TABLE.nbytes, 1, 2)
    with pytest.raises(InternalError, match="was dropped"):
        holder.block(0, 60.0)


def test_split_reads_from_the_row_it_is_asked_for_and_says_when_its_holder_has_ended(cluster: str) -> None:
    actor = start_holder(TABLE.schema, 0)
    split = LeasedSplit("spark/0", 0, TABLE.schema, actor)
    ray.get(actor._keep.remote(0, TABLE))
    assert pa.Table.from_batches(split.open(990)).equals(TABLE.slice(990))
    ray.kill(actor)
    with pytest.raises(ConfigurationError, match="the holder of split spark/0 is gone"):
        list(split.open(0))
