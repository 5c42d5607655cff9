"""Shuffles behind drawn splits: how well they mix, and that their order is a function of data, flow and seed alone."""

from __future__ import annotations

import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock as ps
from penstock.engine.core.errors import FlowError
from penstock.engine.kernels.counter_random import FULL, words
from penstock.engine.operators.sequence.full_shuffle import BLOCK
from penstock.jobs.shuffle_quality import shuffle_quality
from support.feeds import batches_of, chunked, plain, read_group, tables

ROWS, SPLITS, BATCH = 1_000_000, 100, 256


def numbers(flow, rows=ROWS, splits=SPLITS):
    size = rows // splits
    return flow.from_tables([pa.table({"n": np.arange(at, at + size)}) for at in range(0, rows, size)])


def epochs_of(shuffle, epochs=2, seed=0):
    flow = ps.Flow("mixing")
    numbers(flow).feed(BATCH, shuffle=shuffle, seed=seed, epochs=epochs)
    with ps.run_local(flow, parallelism=2) as job, job.feed().reader(0, 1) as reader:
        return [np.concatenate([records.column(0).to_numpy() for records in reader]) for _ in range(epochs)]


@pytest.mark.parametrize("shuffle", [True, 10_000, "full"])
def test_a_million_rows_of_a_hundred_splits_are_mixed(shuffle):
    first, second = epochs_of(shuffle)
    for each in (first, second):
        assert np.array_equal(np.sort(each), np.arange(ROWS))
        assert abs(np.corrcoef(each, np.arange(ROWS))[0, 1]) <= 0.05
        batches = (each // (ROWS // SPLITS))[: ROWS // BATCH * BATCH].reshape(-1, BATCH)
        assert min(len(set(batch)) for batch in batches.tolist()) >= 60
    part = ROWS // 100
    assert len(np.intersect1d(first[:part], second[:part])) / part <= 0.03


def shuffled(flow, epoch):
    return plain(flow).shuffle(ps.Shuffle(window=90, interleave=5), seed=5, epoch=epoch)


def packed(flow, epoch):
    lists = plain(flow).map_batches(with_lists, pa.schema([("tokens", pa.list_(pa.int64()))]))
    return lists.pack(7, segments=None, positions=None).shuffle(ps.Shuffle(window=10, interleave=3), epoch=epoch)


def with_lists(batch):
    return pa.record_batch({"tokens": pa.array([list(range(n, n + n % 4)) for n in batch.column("n").to_pylist()])})


def mixed(flow, epoch):
    other = flow.from_tables(tables(3, 40), name="other")
    mixture = flow.mix({plain(flow): 2, other: 1}, seed=4, epoch=epoch, at_end="go on")
    return mixture.shuffle(True, seed=2, epoch=epoch)


def joined(flow, epoch):
    right = flow.from_tables(tables(30, 20), name="other").filter("n % 2 = 0")
    return plain(flow).hash_join(right, ["n"], exchange="key").shuffle(True, epoch=epoch)


def full(flow, epoch):
    return plain(flow).shuffle("full", seed=3, epoch=epoch)


def full_of_packed(flow, epoch):
    """The last packed row comes when the epoch ends."""
    lists = plain(flow).map_batches(with_lists, pa.schema([("tokens", pa.list_(pa.int64()))]))
    return lists.pack(7, segments=None, positions=None).shuffle("full", epoch=epoch)


SHAPES = [shuffled, packed, mixed, joined, full, full_of_packed]


def flow_of(shape, epochs=1, **options):
    flow = ps.Flow("drawn", lanes=4, parts=6)
    shape(flow, 0).feed(50, epochs=epochs, keep=10_000, **options)
    return flow


def rows_of(shape, epoch=0):
    flow = ps.Flow("drawn", lanes=4, parts=6)
    shape(flow, epoch).gather().collect("all")
    return ps.run_local(flow, parallelism=1).result("all").to_pylist()


@pytest.mark.parametrize("shape", SHAPES)
def test_an_epoch_is_what_a_job_of_its_own_gives(shape):
    expected = [batch for epoch in range(3) for batch in chunked(rows_of(shape, epoch), 50)]
    job = ps.run_local(flow_of(shape, 3), parallelism=2)
    found = read_group(job.feed(), 2)
    if shape is not joined:  # of a join the rows of the first epoch come in another order
        assert found == expected
    assert job.wait(60).audit().clean


def test_two_epochs_have_other_orders_and_another_seed_has_one_too():
    orders = [rows_of(shuffled, epoch) for epoch in range(2)]
    assert orders[0] != orders[1]
    assert sorted(map(repr, orders[0])) == sorted(map(repr, orders[1]))


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    shape=st.sampled_from(SHAPES),
    epochs=st.integers(1, 2),
    stretches=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 6)), min_size=1, max_size=3),
    last=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_resumes_at_any_step_with_any_ranks_and_parallelism_give_one_order(shape, epochs, stretches, last):
    expected = batches_of(flow_of(shape, epochs), parallelism=1)
    size = len(expected) // epochs
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for parallelism, ranks, batches in stretches:
            wanted = min(batches, len(expected) - len(found) - 1)
            job = ps.run_local(flow_of(shape, epochs, room=200), parallelism=parallelism, checkpoints=folder)
            if wanted:
                found += read_group(job.feed(), ranks, len(found), wanted, close=False, epoch=len(found) // size)
            job.checkpoint(60)
            job.shutdown()
        job = ps.run_local(flow_of(shape, epochs, room=200), parallelism=last[0], checkpoints=folder)
        found += read_group(job.feed(), last[1], len(found), epoch=len(found) // size)
        assert job.wait(60).audit().clean
        assert job.audit_feed().clean or shape is not shuffled
    assert found == expected


@pytest.mark.parametrize("budget", [None, 200_000])
def test_a_full_shuffle_sorts_by_numbers_that_are_drawn_by_position(budget):
    flow = ps.Flow("full")
    numbers(flow, 100_000, 10).shuffle("full", seed=4, epoch=1).collect("all")
    drawn = np.concatenate([words(4, 1, FULL, block, BLOCK) for block in range(2)]).view(np.int64)[:100_000]
    inputs = ps.Flow("inputs")
    numbers(inputs, 100_000, 10).gather().collect("all")
    before = ps.run_local(inputs).result("all").column("n").to_numpy()
    found = ps.run_local(flow, memory_budget=budget).result("all").column("n").to_numpy()
    assert np.array_equal(found, before[np.argsort(drawn, kind="stable")])


def test_row_groups_of_one_file_are_splits_and_rows_say_where_they_are_from(tmp_path):
    table = pa.table({"n": np.arange(6000)})
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=500)

    def flow():
        flow = ps.Flow("groups", lanes=4)
        flow.read_parquet(tmp_path / "one.parquet").feed(100, shuffle=ps.Shuffle(window=1000), seed=3)
        return flow

    job = ps.run_local(flow(), parallelism=2, checkpoints=str(tmp_path / "state"))
    found = read_group(job.feed(), 1)
    assert min(len({row["n"] // 500 for row in batch}) for batch in found) >= 10
    assert job.wait(60).audit().clean
    assert job.audit_feed().clean
    replayed = ps.replay(flow(), step=7, checkpoints=str(tmp_path / "state"))
    assert replayed.rows.to_pylist() == found[7]
    lines = [(line["row_group"], line["row"]) for line in replayed.lineage.to_pylist()]
    assert lines == [(row["n"] // 500, row["n"]) for row in found[7]]


def limited(stream):
    return stream.limit(300)


def merged(stream):
    return stream.merge_join(stream.flow.from_tables(tables(), name="other").project(m="n", n="n"), on=["n"])


@pytest.mark.parametrize("before", [limited, merged])
def test_what_looks_at_the_order_of_its_rows_gets_the_splits_as_they_are(before):
    found = []
    for shuffle in (True, None):
        flow = ps.Flow("undrawn", lanes=4)
        before(flow.from_tables(tables(), name="rows")).feed(50, shuffle=shuffle)
        assert "read in a drawn order" not in flow.explain()
        found.append([row["n"] for batch in batches_of(flow, parallelism=2) for row in batch])
    assert sorted(found[0]) == sorted(found[1])
    assert found[0] != found[1]


def test_another_sink_of_the_same_source_gets_its_rows_as_they_are():
    flow = ps.Flow("two", lanes=4)
    rows = flow.from_tables(tables(), name="rows")
    rows.feed(50, shuffle=True)
    rows.gather().collect("all")
    assert "read in a drawn order" not in flow.explain()


@pytest.mark.parametrize("drawn", [True, False])
def test_a_replay_reads_as_the_job_did_though_it_leaves_other_sinks_out(tmp_path, drawn):
    def flow():
        flow = ps.Flow("replayed", lanes=4)
        rows = flow.from_tables(tables(), name="rows")
        rows.feed(50, shuffle=ps.Shuffle(window=100))
        (flow.from_tables(tables(), name="other") if drawn else rows).gather().collect("all")
        return flow

    assert ("read in a drawn order" in flow().explain()) is drawn
    job = ps.run_local(flow(), checkpoints=str(tmp_path / "state"), parallelism=2)
    found = read_group(job.feed(), 1)
    job.wait(60)
    assert ps.replay(flow(), step=7, checkpoints=str(tmp_path / "state")).rows.to_pylist() == found[7]
    quality = shuffle_quality(flow())
    numbers = [[row["n"] // 100 for row in batch] for batch in found]
    assert quality.splits_a_batch == np.mean([len(set(batch)) for batch in numbers[:-1]])


def test_explain_says_which_splits_are_drawn():
    flow = flow_of(shuffled)
    assert "rows: memory, 12 splits, read in a drawn order" in flow.explain()
    assert "asks for drawn splits, 5 at once" in flow.explain()


def test_a_number_for_a_stream_is_a_window_alone_as_before():
    flow = ps.Flow("before", lanes=4)
    plain(flow).shuffle(90, seed=5).feed(50)
    assert "drawn" not in flow.explain()


def test_options_are_checked_where_they_are_given():
    with pytest.raises(FlowError, match="interleave=0"):
        ps.Shuffle(interleave=0)
    with pytest.raises(FlowError, match="window=0"):
        plain(ps.Flow("none")).feed(50, shuffle=0)
