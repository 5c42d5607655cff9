"""While a checkpoint is open, ``why`` says what it waits for; one that has failed says it, too."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.operator import OperatorContext, Output

PATIENCE = 60.0
RELEASED = threading.Event()
TABLE = pa.table({"n": range(10)})


@dataclass(frozen=True)
class Holding:
    """An operator whose pieces last until they are released. (A function would be called beside the driver.)"""

    kind: str = "holding"
    traits: ClassVar[ps.Traits] = ps.Traits()

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def build(self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None) -> RunningHolding:
        return RunningHolding()

    def describe(self) -> str:
        return "until it is released"


class RunningHolding(ps.Stateless):
    def process(self, port: int, batch: ps.Batch, out: Output) -> None:
        assert RELEASED.wait(PATIENCE)
        out.emit(batch)


@pytest.fixture(autouse=True)
def release() -> Iterator[None]:
    RELEASED.clear()
    yield
    RELEASED.set()


def held(order: str, folder: Path) -> ps.Flow:
    flow = ps.Flow("held", order=order)
    rows = flow.from_tables([TABLE] * 4, name="rows").rebalance()
    rows.apply(Holding(), name="held").rebalance().write_parquet(folder, name="out")
    return flow


def sentence(job: ps.Job, part: str) -> str:
    """What ``why`` says of open checkpoints, once it has that part."""
    said: list[str] = []
    until = time.monotonic() + PATIENCE / 2
    while time.monotonic() < until:
        said = job.why()
        for words in said:
            if words.startswith("checkpoint ") and part in words:
                return words
    raise AssertionError(f"{part!r} was never said: {said}")


@pytest.mark.parametrize(("order", "alignment"), [("arrival", "aligned"), ("deterministic", "unaligned")])
def test_why_names_the_operator_whose_piece_a_checkpoint_waits_for(tmp_path: Path, order: str, alignment: str) -> None:
    every = ps.Checkpoints(tmp_path / "state", every="50ms", alignment=alignment)
    job = ps.run_local(held(order, tmp_path / "out"), checkpoints=every)
    try:
        pending = job.wait_until(lambda status: status.pending is not None, PATIENCE).pending
        assert pending is not None
        found = sentence(job, "held has been at a piece for")
        assert found.startswith(f"checkpoint {pending.checkpoint} waits for ")
        if alignment == "unaligned":
            assert not any("is missing" in words for words in job.why()), "barriers do not wait for the piece"
    finally:
        RELEASED.set()
    job.wait(PATIENCE)


@pytest.mark.parametrize(("order", "alignment"), [("arrival", "aligned"), ("deterministic", "unaligned")])
def test_failed_checkpoint_names_the_operator_too(tmp_path: Path, order: str, alignment: str) -> None:
    every = ps.Checkpoints(
        tmp_path / "state", every="50ms", timeout="400ms", tolerable_failures=1000, alignment=alignment
    )
    job = ps.run_local(held(order, tmp_path / "out"), checkpoints=every)
    try:
        job.wait_until(lambda status: status.checkpoints_failed > 0, PATIENCE)
        failed = job.checkpoints().failed
        assert failed is not None
        assert "was not complete after 0.4 s; it waited for the snapshots of " in failed.failure
        assert ": held has been at a piece for 0." in failed.failure
    finally:
        RELEASED.set()
    job.wait(PATIENCE)
