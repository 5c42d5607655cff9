"""The training loop that both sides of the feed's comparison run, and the user's function of their flows.

Workers import it for that function, so torch is imported where it is used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from side import Answer, digest

COLUMNS = ("auction", "bidder", "price")
SCHEMA = pa.schema([("auction", pa.int64()), ("bidder", pa.int64()), ("euros", pa.float64())])
Batches = Iterator[dict[str, Any]]


def in_euros(bids: pa.RecordBatch | pa.Table) -> Any:
    """The user's function: the price in euros in place of that in cents."""
    euros = pc.multiply(bids.column("price"), 0.01)
    kind = pa.RecordBatch if isinstance(bids, pa.RecordBatch) else pa.Table
    return kind.from_arrays([bids.column("auction"), bids.column("bidder"), euros], schema=SCHEMA)


def warm_torch() -> None:
    """What torch does once in a process is part of no figure."""
    import torch

    torch.as_tensor([1, 2]).sum()


def train(start: Callable[[], Batches], checked: bool) -> Answer:
    """Read all batches of tensors that ``start`` gives, and add up a column. ``checked``: tell the digest of all rows,
    which takes longer. ``first``: seconds from the call to the first batch; ``running``: from there to the last."""
    import ray

    began = first = time.perf_counter()
    batches = rows = total = 0
    kept = []
    for batch in start():
        if not batches:
            first = time.perf_counter()
        batches += 1
        rows += len(batch["auction"])
        total += int(batch["bidder"].sum())
        if checked:
            kept.append(pa.record_batch([pa.array(batch[name].numpy()) for name in SCHEMA.names], schema=SCHEMA))
    ended = time.perf_counter()
    return {
        "seconds": ended - began,
        "first": first - began,
        "running": ended - first,
        "batches": batches,
        "job": ray.get_runtime_context().get_job_id(),
        "digest": digest(kept) if checked else f"{rows}-{total:x}",
    }
