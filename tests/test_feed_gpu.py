"""A feed whose batches go to a GPU, beside what the loop computes there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
import torch

import penstock as ps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here that torch can use")

ROWS, BATCH = 5_000, 64
SLOW_CYCLES = 50_000_000
"""Tens of milliseconds of a GPU."""


def table() -> pa.Table:
    draw = np.random.default_rng(7)
    pixels = pa.FixedSizeListArray.from_arrays(pa.array(draw.integers(0, 255, ROWS * 12, np.uint8)), 12)
    shaped = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.uint8(), [3, 4]), pixels)
    return pa.table(
        {
            "n": pa.array(range(ROWS), pa.int64()),
            "x": draw.random(ROWS),
            "half": pa.array(draw.random(ROWS).astype(np.float16)),
            "yes": draw.random(ROWS) < 0.5,
            "image": shaped,
        }
    )


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Any]:
    flow = ps.Flow("gpu")
    flow.from_tables([table()], name="rows").feed(BATCH)
    job = ps.run_local(flow, checkpoints=ps.Checkpoints(tmp_path / "state"))
    yield job.feed()
    job.cancel()


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_batches_arrive_as_they_are_in_order(feed: Any, threads: int) -> None:
    rows = table()
    with feed.reader(timeout=60) as reader:
        at = 0
        for found in reader.iter_torch_batches(device="cuda", threads=threads):
            assert {each.device.type for each in found.values()} == {"cuda"}
            wanted = rows.slice(at, BATCH)
            for name in ("n", "x", "half", "yes"):
                assert np.array_equal(found[name].cpu().numpy(), wanted[name].to_numpy()), (name, at)
            images = wanted["image"].combine_chunks().to_numpy_ndarray()
            assert np.array_equal(found["image"].cpu().numpy(), images)
            at += len(found["n"])
    assert at == ROWS


def test_types_are_made_on_the_way(feed: Any) -> None:
    wanted = {"n": torch.float32, "x": torch.bfloat16, "half": torch.float32, "image": torch.float16}
    with feed.reader(timeout=60) as reader:
        found = next(reader.iter_torch_batches(device="cuda", dtypes=wanted))
    assert {name: each.dtype for name, each in found.items()} == {**wanted, "yes": torch.bool}
    rows = table().slice(0, BATCH)
    assert torch.equal(found["x"].cpu(), torch.from_numpy(rows["x"].to_numpy().copy()).to(torch.bfloat16))
    assert found["n"].tolist() == [float(each) for each in range(BATCH)]


def test_what_the_loop_computes_sees_whole_batches_also_when_it_is_slow(feed: Any) -> None:
    """Copies of later batches go on beside a kernel that has yet to read earlier ones, which nobody holds any more."""
    sums = []
    with feed.reader(timeout=60) as reader:
        for found in reader.iter_torch_batches(device="cuda", threads=2):
            torch.cuda._sleep(SLOW_CYCLES // 20)
            sums.append(found["n"].sum())
            del found
    rows = np.arange(ROWS)
    assert [int(each) for each in sums] == [int(rows[at : at + BATCH].sum()) for at in range(0, ROWS, BATCH)]


def test_copies_go_on_beside_the_loop(feed: Any) -> None:
    with feed.reader(timeout=60) as reader:
        batches = reader.iter_torch_batches(device="cuda")
        next(batches)
        torch.cuda._sleep(SLOW_CYCLES)
        busy = torch.cuda.current_stream().record_event()
        own = torch.cuda.Stream()
        with torch.cuda.stream(own):
            found = next(batches)["n"].sum()
            own.synchronize()
        assert not busy.query(), "the batch has come while the default stream was busy"
        assert int(found) == sum(range(BATCH, 2 * BATCH))


class Pair(NamedTuple):
    x: torch.Tensor
    name: str


def test_what_a_function_gives_is_copied_the_same_way(feed: Any) -> None:
    with feed.reader(timeout=60) as reader:
        found = next(
            reader.iter_torch_batches(
                device="cuda", collate_fn=lambda arrays: [Pair(torch.from_numpy(arrays["n"].copy()), "n")], threads=2
            )
        )
    assert isinstance(found[0], Pair)
    assert (found[0].x.device.type, found[0].x.tolist(), found[0].name) == ("cuda", list(range(BATCH)), "n")
