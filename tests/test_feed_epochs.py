"""Several epochs in one job: each is what a job of its own would give, whatever reads it and whatever dies."""

from __future__ import annotations

import threading
from itertools import accumulate

import pyarrow as pa
import pytest

import penstock as ps
from penstock.coordinator.model.events import TaskLost
from penstock.engine.core.errors import ConfigurationError, FlowError
from penstock.engine.sources.memory import MemorySource
from penstock.jobs.verify_order import verify_order
from support.feeds import chunked, plain, read_group, tables, take, wait_for

EPOCHS = 3
NUMBERS = pa.schema([("n", pa.int64()), ("key", pa.int64())])
LISTS = pa.schema([("tokens", pa.list_(pa.int64()))])


def shuffled(flow, epoch):
    return plain(flow).shuffle(90, seed=5, epoch=epoch).shuffle(31, seed=6, epoch=epoch)


def packed(flow, epoch):
    lists = plain(flow).map_batches(with_lists, LISTS)
    return lists.pack(7, segments=None, positions=None).shuffle(10, epoch=epoch).unnest("tokens").project(n="tokens")


def with_lists(batch):
    values = batch.column("n").to_pylist()
    return pa.record_batch({"tokens": pa.array([list(range(n, n + n % 4)) for n in values], LISTS.field(0).type)})


def mixed(flow, epoch, at_end="go on"):
    other = flow.from_tables(tables(3, 40), name="other")
    return flow.mix({plain(flow): 2, other: 1}, seed=4, epoch=epoch, at_end=at_end)


def mixed_to_the_first_end(flow, epoch):
    return mixed(flow, epoch, "stop")


def joined(flow, epoch, how="inner", exchange="key"):
    """The right side is longer than the left one, and is aggregated."""
    other = flow.from_tables(tables(30, 20), name="other").filter("n % 2 = 0")
    sums = other.aggregate(["key"], total=("n", "sum"), exchange="key")
    return plain(flow).hash_join(sums, on=["key"], how=how, exchange=exchange)


def joined_in_one(flow, epoch):
    return joined(flow, epoch, "left", "gather")


def joined_everywhere(flow, epoch):
    other = flow.from_tables(tables(30, 20), name="other").filter("n % 2 = 0").broadcast()
    return plain(flow).rebalance().hash_join(other, on=["n"], how="anti")


def united(flow, epoch):
    return plain(flow).union(flow.from_tables(tables(3, 40), name="other"))


def merged(flow, epoch):
    other = flow.from_tables(tables(), name="other").filter("n % 2 = 0").project("n", m="n")
    return plain(flow).merge_join(other, on=["n"])


SHAPES = [shuffled, packed, mixed, mixed_to_the_first_end, united, merged]
JOINS = [joined, joined_in_one, joined_everywhere]


def flow_of(shape=shuffled, batch_size=50, epochs=EPOCHS, **options):
    flow = ps.Flow("epochs", lanes=4, parts=6)
    shape(flow, 0).feed(batch_size, epochs=epochs, **options)
    return flow


def by_jobs(shape=shuffled, batch_size=50, epochs=EPOCHS):
    """The batches of each epoch, from a job for each."""
    found = []
    for epoch in range(epochs):
        flow = ps.Flow("one-epoch", lanes=4, parts=6)
        shape(flow, epoch).gather().collect("list")
        found.append(chunked(ps.run_local(flow).result("list").to_pylist(), batch_size))
    return found


def flat(epochs):
    return [batch for epoch in epochs for batch in epoch]


@pytest.fixture(scope="module")
def expected():
    return by_jobs()


@pytest.mark.parametrize("shape", SHAPES)
def test_every_epoch_is_what_a_job_of_its_own_gives(shape, monkeypatch):
    monkeypatch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", 30)
    found = flat(by_jobs(shape))
    assert len(found) > EPOCHS
    for parallelism, ranks in ((1, 2), (4, 3)):
        job = ps.run_local(flow_of(shape), parallelism=parallelism)
        assert read_group(job.feed(), ranks) == found
        check(job.wait(60).audit())


def check(audit):
    """Every split was read once in every epoch."""
    assert audit.clean
    rows = next(source for source in audit.sources if source.id == "rows")
    assert len({split.id for split in rows.splits}) == len(rows.splits) == EPOCHS * 12
    assert all(split.read == 100 for split in rows.splits)


@pytest.mark.parametrize("shape", JOINS)
def test_build_side_of_a_join_is_read_once_and_stays(shape, monkeypatch):
    """Left rows of the first epoch wait for it, which changes their order; later ones need not."""
    monkeypatch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", 30)
    first = by_jobs(shape, epochs=1)[0]
    assert len(first) > 5
    orders = []
    for parallelism, ranks in ((1, 2), (4, 3)):
        job = ps.run_local(flow_of(shape), parallelism=parallelism)
        found = read_group(job.feed(), ranks)
        epochs = [found[at : at + len(first)] for at in range(0, len(found), len(first))]
        assert epochs[0] == first
        assert sorted(row["n"] for batch in epochs[1] for row in batch) == sorted(
            row["n"] for batch in first for row in batch
        )
        assert epochs[1:] == [epochs[1]] * (EPOCHS - 1)
        orders.append(found)
        audit = job.wait(60).audit()
        check(audit)
        assert next(source for source in audit.sources if source.id == "other").rows == 600
    assert orders[0] == orders[1]


def test_iteration_ends_with_its_epoch_and_the_next_one_goes_on(expected):
    job = ps.run_local(flow_of())
    with job.feed().reader(timeout=60) as reader:
        for epoch in range(EPOCHS):
            assert reader.epoch == epoch
            assert [records.to_pylist() for records in reader] == expected[epoch]
            assert reader.step == (epoch + 1) * len(expected[epoch])
        assert reader.epoch == EPOCHS
        assert list(reader) == []
    job.wait(60)


def test_loop_that_was_left_at_its_last_batch_is_followed_by_the_next_epoch(expected):
    job = ps.run_local(flow_of())
    reader = job.feed().reader(timeout=60)
    assert take(reader, 3) == expected[0][:3]
    assert take(reader, len(expected[0]) - 3) == expected[0][3:]
    assert reader.epoch == 1
    assert take(reader, 1) == expected[1][:1]
    reader.close(0.0)
    job.shutdown()


@pytest.mark.parametrize(("drop_last", "room"), [(False, None), (True, None), (False, 50), (True, 50)])
def test_last_batch_of_an_epoch_is_short_or_left_out_and_the_length_is_known(drop_last, room, tmp_path):
    flow = ps.Flow("short", lanes=2)
    flow.from_tables(tables(5, 33), name="rows").feed(50, epochs=2, drop_last=drop_last, room=room)
    job = ps.run_local(flow, checkpoints=tmp_path)
    reader = job.feed().reader(timeout=60)
    sizes = [50, 50, 50] if drop_last else [50, 50, 50, 15]
    for epoch in range(2):
        assert len(reader) == len(sizes), epoch
        assert [records.num_rows for records in reader] == sizes
    reader.close()
    audit = job.wait(60).audit_feed()
    assert audit.clean
    assert [(each.rows, each.same) for each in audit.epochs] == [(165, True)] * 2


def test_epoch_that_ends_with_a_whole_batch_has_no_empty_one():
    for drop_last in (False, True):
        flow = ps.Flow("even", lanes=2)
        flow.from_tables(tables(5, 20), name="rows").feed(50, epochs=2, drop_last=drop_last)
        job = ps.run_local(flow, parallelism=2)
        assert [len(batch) for batch in read_group(job.feed(), 3)] == [50] * 4
        job.wait(60)


def test_feed_without_rows_ends_in_every_epoch():
    flow = ps.Flow("nothing", lanes=2)
    flow.from_tables([pa.table({"n": pa.array([1, 2])})]).filter("n > 5").feed(10, epochs=5)
    job = ps.run_local(flow)
    assert read_group(job.feed(), 2) == []
    assert job.wait(60).status().state == "finished"


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_that_resume_behind_the_last_batch_have_none_and_the_job_ends(ranks, tmp_path):
    def flow():
        flow = ps.Flow("end", lanes=2)
        flow.from_tables([pa.table({"n": list(range(50))})]).filter("n >= 0").feed(10, room=20, epochs=2)
        return flow

    job = ps.run_local(flow(), checkpoints=tmp_path)
    reader = job.feed().reader(timeout=60)
    assert len(take(reader, 5) + take(reader, 5)) == 10
    reader.commit("last")
    reader.flush(60)
    reader.close(0.0)
    job.shutdown()
    again = ps.run_local(flow(), checkpoints=tmp_path, resume_model="last")
    feed = again.feed().resume("last")
    threads = [threading.Thread(target=loop_as_documented, args=(feed, rank, ranks)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert again.wait(60).status().state == "finished"
    with feed.reader(timeout=60) as late:  # one that comes when all is over has all of it, too
        assert list(late) == []


def loop_as_documented(feed, rank, ranks):
    with feed.reader(rank, ranks, timeout=60) as reader:
        for _ in range(reader.epoch, feed.epochs):
            assert list(reader) == []


@pytest.mark.parametrize("known", [True, False])
def test_epoch_that_does_not_fit_its_step_is_refused(known):
    flow = ps.Flow("places", lanes=2)
    rows = flow.from_tables([pa.table({"n": list(range(100))})])
    (rows if known else rows.filter("n >= 0")).feed(10, epochs=3)
    job = ps.run_local(flow)
    state = job.feed().reader().state_dict()
    for step, epoch, at_once in ((0, 2, True), (12, 0, known), (12, 4, True), (30, 1, known)):
        reader = job.feed().reader(timeout=60)
        if not at_once:
            reader.load_state_dict({**state, "step": step, "epoch": epoch})
        with pytest.raises(ConfigurationError, match=f"names epoch {epoch} and step {step}"):
            reader.load_state_dict({**state, "step": step, "epoch": epoch}) if at_once else list(reader)
        reader.close(0.0)
    job.shutdown()


def test_run_dies_in_every_epoch_and_goes_on_with_other_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", 30)
    found = []
    expected = by_jobs()
    whole = flat(expected)

    def epoch_at(read):
        return len([end for end in accumulate(map(len, expected)) if end <= len(read)])

    # in the middle of epochs, at the end of one, and just behind it
    for number, most in enumerate((5, len(expected[0]) - 5, 1, len(expected[1]) + 3)):
        job = ps.run_local(flow_of(room=100, keep=2000), checkpoints=tmp_path, parallelism=1 + number)
        found += read_group(job.feed(), 3 - number % 3, len(found), most, close=False, epoch=epoch_at(found))
        assert found == whole[: len(found)]
        job.checkpoint(60)
        lose(job)
        found += read_group(job.feed(), 2, len(found), 1, close=False, epoch=epoch_at(found))
        job.checkpoint(60)
        job.shutdown()
    job = ps.run_local(flow_of(room=100, keep=2000), checkpoints=tmp_path)
    found += read_group(job.feed(), 4, len(found), epoch=epoch_at(found))
    assert found == whole
    assert job.wait(60).audit().clean
    audit = job.audit_feed()
    assert audit.clean
    assert [each.same for each in audit.epochs] == [True] * EPOCHS
    again = ps.run_local(flow_of(), checkpoints=tmp_path / "again", parallelism=4)
    read_group(again.feed(), 2)
    again.wait(60)
    assert verify_order(tmp_path, tmp_path / "again").same


def lose(job):
    restarts = job.status().restarts
    task, counts = list(job.statistics().items())[-1]
    job._request(TaskLost(task, counts.attempt, "the test says so", 0.0))
    job.wait_until(lambda status: status.restarts > restarts and status.state == "running", 60)


def test_model_of_the_second_epoch_is_gone_on_from_by_another_number_of_ranks(tmp_path, expected):
    def start(**options):
        checkpoints = ps.Checkpoints(tmp_path, every="50ms", retained=1)
        return ps.run_local(flow_of(room=100), checkpoints=checkpoints, **options)

    first = len(expected[0])
    job = start(parallelism=2)
    reader = job.feed().skip(range(first - 1, first + 2)).skip(range(first + 6, first + 7)).reader(timeout=60)
    assert [records.to_pylist() for records in reader] == expected[0][:-1], "the last batch of the epoch is skipped"
    assert (reader.epoch, reader.step) == (1, first)
    assert take(reader, 3) == expected[1][2:5]
    reader.commit("m")
    reader.flush(60)
    state = reader.state_dict()
    assert (state["epoch"], state["step"]) == (1, first + 5)
    take(reader, 100)
    assert reader.epoch == 2
    reached = job.status().pins["model m of feed feed"]
    wait_for(lambda: job.status().latest_completed > reached)
    reader.close(0.0)
    job.shutdown()
    again = start(parallelism=3, resume_model="m")
    readers = [again.feed().resume("m").reader(rank, 2, timeout=60) for rank in range(2)]
    readers[1].load_state_dict(state)
    assert [reader.epoch for reader in readers] == [1, 1]
    for reader in readers:
        reader.close(0.0)
    assert read_group(again.feed().resume("m"), 3) == [expected[1][5], *expected[1][7:], *expected[2]]
    assert again.wait(60).audit().clean


def refused(build, match):
    def run():
        flow = ps.Flow("refused", lanes=4)
        build(flow)
        ps.run_local(flow)

    with pytest.raises(FlowError, match=match):
        run()


@pytest.mark.parametrize(
    ("shape", "match"),
    [
        (lambda rows: rows.sort("n"), "sort-1: sort: what it holds"),
        (lambda rows: rows.aggregate(["key"], count="count"), "what it holds or remembers .* run a job for each epoch"),
        (lambda rows: rows.distinct(), "distinct"),
        (lambda rows: rows.limit(5), "limit"),
        (
            lambda rows: rows.hash_join(rows.flow.from_tables(tables()), ["n"], how="full"),
            "a full join gives right rows",
        ),
        (
            lambda rows: rows.hash_join(rows.filter("n > 5"), ["n"]),
            "filter-1: its rows come in every epoch, and are also",
        ),
    ],
)
def test_operator_that_cannot_tell_epochs_apart_is_refused_by_name(shape, match):
    refused(lambda flow: shape(plain(flow)).feed(50, epochs=2), f"(?s){match}")


def test_flows_that_cannot_have_epochs_are_refused(tmp_path):
    def two(flow):
        rows = plain(flow)
        rows.feed(50, epochs=2, name="one")
        rows.feed(50, name="two")

    def written(flow):
        rows = plain(flow)
        rows.feed(50, epochs=2)
        rows.write_parquet(tmp_path / "out", name="files")

    class Leased(MemorySource):
        reads_once = True

    leased = Leased(tuple(tables()))
    refused(lambda flow: flow.from_source(leased, name="rows").feed(50, epochs=2), 'handoff="stage"')
    refused(two, "different epochs: one of 2, two of 1")
    refused(written, "files: it would be given every row 2 times")
    refused(lambda flow: plain(flow).feed(50, epochs=0), "epochs=0")
    refused(lambda flow: flow.from_split_sets(NUMBERS, name="rows").feed(50, epochs=2), "2 epochs of split sets")


def test_two_feeds_of_as_many_epochs_are_read_side_by_side():
    flow = ps.Flow("two", lanes=2)
    rows = flow.from_tables(tables(), name="rows")
    rows.filter("n % 10 > 0").feed(50, epochs=2, name="training")
    rows.filter("n % 10 = 0").feed(7, epochs=2, name="validation", room=1000)
    job = ps.run_local(flow, parallelism=2)
    training, validation = (job.feed(name).reader(timeout=60) for name in ("training", "validation"))
    for _ in range(2):
        assert sum(records.num_rows for records in training) == 1080
        assert sum(records.num_rows for records in validation) == 120
    training.close()
    validation.close()
    job.wait(60)


def test_files_whose_rows_are_not_known_are_read_whole(tmp_path):
    for name, count in (("a", 70), ("b", 3), ("c", 40)):
        (tmp_path / f"{name}.csv").write_text("n\n" + "".join(f"{name}{number}\n" for number in range(count)))
    flow = ps.Flow("csv", lanes=2)
    flow.read_csv(tmp_path, name="files").feed(50, epochs=2)
    assert "it is read 2 times, each in 2 rounds" in flow.explain()
    job = ps.run_local(flow)
    batches = read_group(job.feed(), 1)
    assert [len(batch) for batch in batches] == [50, 50, 13] * 2
    assert batches[:3] == batches[3:]
    job.wait(60)
