"""Feeds of mixtures whose weights change: the same batches however the job runs, stops and goes on."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import FlowError

SIZES = (900, 500, 120)
SCHEDULES: dict[str, tuple[Any, ...]] = {
    "steps": (ps.Schedule.steps({0: 5, 700: 1, 2000: 4}), 1, ps.Schedule.steps({0: 0, 150: 1})),
    "linear": (ps.Schedule.linear({0: 1, 2500: 9}), ps.Schedule.linear({0: 6, 1000: 1}), 0.5),
    "by epoch": (1, ps.Schedule.by_epoch([4, 0, 1]), ps.Schedule.by_epoch([0, 3])),
}


def flow_of(kind: str, at_end: Any) -> ps.Flow:
    flow, weights = ps.Flow("mixed", lanes=4), {}
    for number, (size, weight) in enumerate(zip(SIZES, SCHEDULES[kind], strict=True)):
        tables = [pa.table({"of": [number] * 20, "n": list(range(at, at + 20))}) for at in range(0, size, 20)]
        weights[flow.from_tables(tables, name=f"s{number}").shuffle(50, seed=1)] = weight
    if isinstance(at_end, tuple):
        at_end = dict(zip(weights, at_end, strict=True))
    flow.mix(weights, seed=3, at_end=at_end).feed(32, room=64, epochs=3)
    return flow


def batches_of(reader: Any) -> list[Any]:
    """From where it stands to the end."""
    return [found.to_pylist() for _ in range(reader.epoch, 3) for found in reader]


@pytest.mark.parametrize("at_end", ["stop", "go on", "begin again", ("stop", "go on", "begin again")], ids=str)
@pytest.mark.parametrize("kind", SCHEDULES)
def test_run_that_goes_on_from_a_model_has_the_batches_of_one_that_does_not_stop(
    kind: str, at_end: Any, tmp_path: Path
) -> None:
    with ps.run_local(flow_of(kind, at_end), parallelism=2) as whole, whole.feed().reader(timeout=60) as reader:
        expected = batches_of(reader)
    found, model, cuts = [], None, (len(expected) // 5, len(expected) // 2, len(expected) - 3, None)
    for cut in cuts:
        job = ps.run_local(flow_of(kind, at_end), checkpoints=tmp_path / "state", resume_model=model)
        feed = job.feed() if model is None else job.feed().resume(model)
        reader = feed.reader(timeout=60)
        for _ in range(reader.epoch, 3):
            for records in reader:
                found.append(records.to_pylist())
                if reader.step == cut:
                    break
            if reader.step == cut:
                break
        if cut is not None:
            model = f"model {cut}"
            reader.commit(model)
            reader.flush(60)
            reader.close(0.0)
        else:
            reader.close()
            job.wait(60)
        job.shutdown()
    assert found == expected
    if at_end == "go on":
        epochs = [sum(SIZES) * epoch for epoch in range(4)]
        rows = [row["of"] for batch in found for row in batch]
        assert [sorted(rows[a:b]) for a, b in pairwise(epochs)] == [
            [number for number, size in enumerate(SIZES) for _ in range(size)]
        ] * 3


@pytest.mark.parametrize("at_end", ["go on", "begin again"])
def test_batch_of_a_changing_mixture_is_rebuilt(at_end: str, tmp_path: Path) -> None:
    flow = flow_of("linear", at_end)
    job = ps.run_local(flow, checkpoints=ps.Checkpoints(tmp_path / "state", every="50ms"))
    with job.feed().reader(timeout=60) as reader:
        expected = batches_of(reader)
    job.wait(60)
    for step in (3, 60, 140):
        again = ps.replay(flow_of("linear", at_end), checkpoints=tmp_path / "state", step=step)
        assert again.rows.to_pylist() == expected[step]


def test_streams_are_counted_with_the_turns_that_they_have_begun(tmp_path: Path) -> None:
    flow, weights = ps.Flow("again", lanes=4), {}
    for name, size in (("web", 400), ("chat", 20)):
        tables = [pa.table({"of": [name] * 10, "n": list(range(at, at + 10))}) for at in range(0, size, 10)]
        weights[flow.from_tables(tables, name=name)] = 1.0
    web, chat = weights
    flow.mix(weights, seed=3, at_end={web: "stop", chat: "begin again"}).feed(32, epochs=2)
    job = ps.run_local(flow, checkpoints=tmp_path / "state")
    with job.feed().reader(timeout=60) as reader:
        rows = [row for _ in range(2) for records in reader for row in records.to_pylist()]
    audit = job.wait(60).audit_feed()
    given = {name: sum(row["of"] == name for row in rows) for name in ("web", "chat")}
    assert {each.sources: each.rows for each in audit.streams} == {("web",): 800, ("chat",): given["chat"]}
    turns = {each.sources[0]: each.again for each in audit.streams}
    assert turns["web"] == 0
    assert given["chat"] - 80 <= 20 * turns["chat"] <= given["chat"]
    assert f"begun again {turns['chat']} times" in str(audit)
    assert audit.clean


def test_at_end_names_each_stream() -> None:
    flow = ps.Flow("named")
    one, two = (flow.from_tables([pa.table({"n": [1]})], name=name) for name in ("one", "two"))
    with pytest.raises(FlowError, match="at_end names other streams"):
        flow.mix({one: 1, two: 1}, at_end={one: "stop"})
