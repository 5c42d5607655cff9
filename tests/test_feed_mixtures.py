"""Feeds of mixtures whose weights change: the same batches however the job runs, stops and goes on."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps

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
    flow.mix(weights, seed=3, at_end=at_end).feed(32, room=64, epochs=3)
    return flow


def batches_of(reader: Any) -> list[Any]:
    """From where it stands to the end."""
    return [found.to_pylist() for _ in range(reader.epoch, 3) for found in reader]


@pytest.mark.parametrize("at_end", ["stop", "go on"])
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


def test_batch_of_a_changing_mixture_is_rebuilt(tmp_path: Path) -> None:
    flow = flow_of("linear", "go on")
    job = ps.run_local(flow, checkpoints=ps.Checkpoints(tmp_path / "state", every="50ms"))
    with job.feed().reader(timeout=60) as reader:
        expected = batches_of(reader)
    job.wait(60)
    for step in (3, 60, 140):
        again = ps.replay(flow_of("linear", "go on"), checkpoints=tmp_path / "state", step=step)
        assert again.rows.to_pylist() == expected[step]
