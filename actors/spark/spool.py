"""Where executors leave the partitions of a lease for a moment, and how they are fetched from there.

Rules:

1. Every node of the cluster has a folder of its own in Ray's session folder, whose name is the node's id. An executor's
   Python worker writes into the one that it sees: so it needs to know no address, and whoever fetches knows the node.
2. A file is removed when it was fetched. What is left when a lease ends goes with its folder, at the latest with Ray's
   session folder.
3. A node that joins the cluster later has no folder, and the lease of whose frame an executor runs there fails.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PREPARE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Parcel:
    """A partition that an executor has written: ``file`` is ``<node>/<name>`` in ``folder``; empty: it has no rows."""

    partition: int
    folder: str
    file: str


def make_spool() -> str:
    """The folder, made on all nodes that there are. Raises RayError."""
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    folder = str(session / f"penstock-lease-{uuid.uuid4().hex}")
    made = [_make.options(scheduling_strategy=_at(node)).remote(f"{folder}/{node}") for node in _nodes()]
    ray.get(made, timeout=PREPARE_SECONDS)
    return folder


def remove_spool(folder: str) -> None:
    """Remove what is left, without waiting for it."""
    with suppress(RayError, ValueError):
        for node in _nodes():
            _remove.options(scheduling_strategy=_at(node)).remote(f"{folder}/{node}")


def fetch(parcel: Parcel) -> Any:
    """The reference to its table, which is made on the node where it lies; the caller owns it."""
    node = parcel.file.partition("/")[0]
    return _fetch.options(scheduling_strategy=_at(node)).remote(f"{parcel.folder}/{parcel.file}")


def parcels_of(folder: str, answers: Sequence[Any], partitions: Sequence[int]) -> list[Parcel]:
    """One for each partition; Spark asks no Python worker about one without rows, in some plans."""
    files = {int(row["partition"]): str(row["file"]) for row in answers if row["rows"]}
    return [Parcel(each, folder, files.get(each, "")) for each in partitions]


def _nodes() -> list[str]:
    return sorted(node["NodeID"] for node in ray.nodes() if node["Alive"])


def _at(node: str) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node, soft=False)


@ray.remote(num_cpus=0)
def _make(folder: str) -> None:
    os.makedirs(folder, exist_ok=True)


@ray.remote(num_cpus=0)
def _remove(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        os.rmdir(os.path.dirname(folder))


@ray.remote(num_cpus=0, max_retries=0)
def _fetch(path: str) -> pa.Table:
    with pa.memory_map(path) as file:
        table = pa.ipc.open_file(file).read_all()
    os.unlink(path)  # the table keeps what it maps
    return table
