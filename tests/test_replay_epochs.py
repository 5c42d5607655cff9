"""Batches of a job that reads its sources several times, replayed by their steps, which count over all epochs."""

from __future__ import annotations

import pyarrow as pa

import penstock as ps
from support.feeds import tables

LISTS = pa.list_(pa.int64())


def flow_of() -> ps.Flow:
    """Tokens are the numbers of their rows, so each packed row names the rows that it is of."""
    flow = ps.Flow("epochs", lanes=4)
    tokens = [pa.array([[n] * (n % 5) for n in table.column("n").to_pylist()], LISTS) for table in tables(6)]
    given = [table.append_column("tokens", each) for table, each in zip(tables(6), tokens, strict=True)]
    packed = flow.from_tables(given, name="rows").filter("n % 3 <> 0").shuffle(64, seed=3).pack(16, segments=None)
    packed.feed(7, room=10, epochs=3)
    return flow


def test_batches_of_all_epochs_are_replayed_by_their_steps(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", 20)
    found = []
    state = None
    for parallelism in (1, 2):
        kept = ps.Checkpoints(tmp_path, every=None, retained=9)
        job = ps.run_local(flow_of(), checkpoints=kept, parallelism=parallelism)
        reader = job.feed().reader(timeout=60)
        if state is not None:
            reader.load_state_dict(state)
        while len(found) < (8 if state is None else 18):
            epoch = reader.epoch
            batch = next(reader.iter_batches(), None)
            found += [] if batch is None else [(epoch, batch.to_pylist())]
        state = reader.state_dict()
        job.checkpoint(60)
        reader.close(0.0)
        job.shutdown()
    assert {epoch for epoch, _ in found} == {0, 1, 2}
    for step, (epoch, batch) in enumerate(found):
        again = ps.replay(flow_of(), checkpoints=tmp_path, step=step)
        assert (again.rows.to_pylist(), again.epoch, again.verified) == (batch, epoch, True)
        shown = [set() for _ in batch]
        for line in again.lineage.to_pylist():
            shown[line["position"] - again.first].add(int(line["split"][-1]) * 100 + line["row"])
        assert shown == [{token for token in row["tokens"] if token} for row in batch]
    assert f"batch {step} (epoch {epoch}) of feed feed" in str(again)
    plain = ps.replay(flow_of(), checkpoints=tmp_path, step=len(found) - 1, trace=False)
    assert (plain.rows.to_pylist(), plain.epoch, plain.verified) == (found[-1][1], found[-1][0], True)
    assert plain.start.startswith("checkpoint "), "which one serves a traced batch depends on how far the sources were"
