"""The holder of leased blocks: who waits for what, and what is dropped. Its calls to Spark are tried in tests/spark."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray
from pyarrow import parquet
from ray.exceptions import RayActorError

from penstock.actors.spark.leased_blocks import (
    BlockHolder,
    LeasedSplit,
    Parcel,
    make_spool,
    parcels_of,
    remove_spool,
    spool_folder,
    start_holder,
)
from penstock.actors.spark.writing import make_writer
from penstock.engine.core.errors import ConfigurationError, InternalError

pytestmark = pytest.mark.ray

TABLE = pa.table({"n": range(1000)})


def come(holder: BlockHolder, *partitions: int) -> None:
    for partition in partitions:
        holder._keep(partition, TABLE)
    holder.publish()


def test_credit_holds_back_unless_somebody_waits_for_what_has_not_come(cluster: str) -> None:
    holder = BlockHolder(TABLE.schema, credit=TABLE.nbytes)
    come(holder, 0)
    assert holder.await_credit(0.0)
    come(holder, 1)
    assert not holder.await_credit(0.0)
    found: list[object] = []
    reader = threading.Thread(target=lambda: found.append(holder.block(2, 60.0)))
    reader.start()
    assert holder.await_credit(60.0)
    come(holder, 2)
    reader.join()
    assert ray.get(found[0][0]).equals(TABLE)  # type: ignore[index]
    assert not holder.await_credit(0.0)
    assert holder.block(0, 0.0)
    assert holder.await_credit(0.0)


def test_readers_get_what_has_come_and_are_told_that_the_rest_will_not(cluster: str) -> None:
    holder = BlockHolder(TABLE.schema, credit=0)
    come(holder, 0)
    assert holder.block(1, 0.0) is None
    holder.fail(ConfigurationError("Spark is gone", "start it again"))
    assert holder.block(0, 0.0) is not None
    with pytest.raises(ConfigurationError, match="Spark is gone"):
        holder.block(1, 0.0)


def test_nobody_reads_what_was_fetched_before_it_is_known_to_be_of_the_one_evaluation(cluster: str) -> None:
    holder = BlockHolder(TABLE.schema, credit=0)
    holder._keep(0, TABLE)
    holder._keep(1, TABLE)
    assert holder.missing([0, 1, 2]) == [2]
    assert holder.block(0, 0.0) is None
    holder.forget()
    assert holder.missing([0, 1, 2]) == [0, 1, 2]
    come(holder, 0)
    assert holder.block(0, 0.0) is not None
    assert holder.block(1, 0.0) is None


def test_partitions_are_fetched_from_the_nodes_where_they_lie_and_one_that_is_gone_is_told(cluster: str) -> None:
    folder = spool_folder()
    make_spool(folder)
    (node,) = Path(folder).iterdir()
    writer = make_writer(folder, bytes(TABLE.schema.serialize()), 400, (3, "7"), by_node=True)
    (answer,) = writer(iter(TABLE.to_batches()))
    parcels = parcels_of(folder, answer.to_pylist(), [2, 3])
    assert parcels == [Parcel(2, ""), Parcel(3, f"{node}/000003-7.arrow", node.name)]
    holder = BlockHolder(TABLE.schema, credit=0)
    assert holder.take(parcels) == ""
    holder.publish()
    assert [ray.get(holder.block(each, 0.0)[0]).num_rows for each in (2, 3)] == [0, 1000]  # type: ignore[index]
    assert not list(node.iterdir())
    assert "partition 3: " in holder.take(parcels)
    remove_spool(folder)
    assert not node.exists()


def written(folder: Path, partition: int) -> Parcel:
    """As Spark's JVM writes it, which calls columns by their position."""
    path = folder / f"part-{partition:05d}.snappy.parquet"
    parquet.write_table(TABLE.rename_columns(["c0"]), path, row_group_size=300, write_page_checksum=True)
    return Parcel(partition, str(path), rows=TABLE.num_rows)


def test_file_that_the_jvm_wrote_is_a_block_and_is_read_from_any_row_on(cluster: str, tmp_path: Path) -> None:
    actor = start_holder(TABLE.schema, 0)
    parcel = written(tmp_path, 5)
    size = Path(parcel.path).stat().st_size
    assert ray.get(actor.take.remote([parcel, Parcel(6, "")])) == ""
    assert not list(tmp_path.iterdir())
    ray.get(actor.publish.remote())
    for start in (0, 299, 300, 901, 1000, 1001):
        split = LeasedSplit("spark/5", 5, TABLE.schema, actor)
        assert pa.Table.from_batches(split.open(start), TABLE.schema) == TABLE.slice(start)
    assert not list(LeasedSplit("spark/6", 6, TABLE.schema, actor).open(0))
    assert ray.get(actor.held.remote()).bytes == size
    ray.kill(actor)


def test_file_that_has_not_the_rows_that_spark_counted_has_not_come(cluster: str, tmp_path: Path) -> None:
    holder = BlockHolder(TABLE.schema, credit=0)
    whole, other, torn, gone = (written(tmp_path, partition) for partition in range(4))
    Path(torn.path).write_bytes(Path(torn.path).read_bytes()[:-20])
    Path(gone.path).unlink()
    told = holder.take([whole, replace(other, rows=999), torn, gone])
    assert told == "partition 1: Spark has written 999 rows, and its file has 1000"
    assert holder.missing(range(4)) == [1, 2, 3]
    assert holder.take([gone, written(tmp_path, 1)]) == "partition 3: no node has its file"
    assert holder.missing(range(4)) == [2, 3]


def test_reader_of_a_lease_that_failed_raises_the_leases_own_error(cluster: str) -> None:
    actor = start_holder(TABLE.schema, 0)
    ray.get(actor.fail.remote(ConfigurationError("Spark could not compute the rows: ValueError: bad row 42", "see it")))
    with pytest.raises(ConfigurationError, match="bad row 42") as caught:
        list(LeasedSplit("spark/0", 0, TABLE.schema, actor).open(0))
    assert caught.value.remedy == "see it"
    ray.kill(actor)


def test_dropped_blocks_are_gone_and_nobody_waits_for_them(cluster: str) -> None:
    holder = BlockHolder(TABLE.schema, credit=0)
    come(holder, 0, 1, 2)
    holder.drop([0, 1, 7])
    held = holder.held()
    assert (held.blocks, held.bytes, held.unread, held.dropped) == (1, TABLE.nbytes, 1, 2)
    with pytest.raises(InternalError, match="was dropped"):
        holder.block(0, 60.0)


def ask_for_ever(actor: Any) -> None:
    while True:
        ray.get(actor.publish.remote())


def test_split_reads_from_the_row_it_is_asked_for_and_says_when_its_holder_has_ended(cluster: str) -> None:
    actor = start_holder(TABLE.schema, 0)
    split = LeasedSplit("spark/0", 0, TABLE.schema, actor)
    ray.get([actor._keep.remote(0, TABLE), actor.publish.remote()])
    assert pa.Table.from_batches(split.open(990)).equals(TABLE.slice(990))
    ray.kill(actor)
    with pytest.raises(RayActorError):  # it may answer for a moment
        ask_for_ever(actor)
    with pytest.raises(ConfigurationError, match="the holder of split spark/0 is gone"):
        list(split.open(0))
