"""While a checkpoint is open, ``why`` says what it waits for."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa

import penstock as ps

PATIENCE = 60.0
RELEASED = threading.Event()


class Holding:
    """A function that comes back when it is told to."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        assert RELEASED.wait(PATIENCE)
        return batch


def test_why_names_the_operator_whose_piece_a_checkpoint_waits_for(tmp_path: Path) -> None:
    table = pa.table({"n": range(10)})
    flow = ps.Flow("held", order="arrival")
    rows = flow.from_tables([table] * 4, name="rows").rebalance()
    rows.map_batches(Holding, table.schema, name="held").write_parquet(tmp_path / "out")
    job = ps.run_local(flow, checkpoints=ps.Checkpoints(tmp_path / "state", every="50ms"))
    try:
        pending = job.wait_until(lambda status: status.pending is not None, PATIENCE).pending
        assert pending is not None
        found: list[str] = []
        while not found:
            found = [words for words in job.why() if "held has been at a piece for" in words]
    finally:
        RELEASED.set()
    assert found[0].startswith(f"checkpoint {pending.checkpoint} waits for ")
    job.wait(PATIENCE)
