"""``Flow.from_ray_dataset``: the blocks of a Ray Dataset, in a fixed order, as splits. And results as a Ray Dataset.

Rules:

1. The dataset is computed once, when a job starts, with Ray Data's ``preserve_order``: block ``i`` is split ``i``.
   Which rows a block holds is Ray Data's decision; a job that is started again must not depend on it, so
2. where something outlives this script (a checkpoint folder, a detached job) the blocks are written to the checkpoint
   folder as a staged DataFrame's partitions are (``stage``), by Ray tasks, and read from there ever after;
3. otherwise the splits refer to the blocks, which this script then keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
import ray
from pyarrow import fs
from ray.exceptions import RayError

from ...engine.arrow.nullability import nullable
from ...engine.core.errors import ConfigurationError, TaskLostError
from ...engine.core.source import SourceConfig
from ...engine.files.paths import from_row
from ...engine.flow.handoff import Destination
from ...engine.plan.rounds import CHUNK_ROWS
from ..cluster.calls import short_reason
from .carrying import stage_before
from .stage import describe_frame, stage_with, temporary_folder
from .staged_splits import StagedPartition
from .store_arguments import StoreArguments, store_arguments
from .writing import make_writer

SYSTEM = "ray"
_AT_ONCE = 8
"""Blocks that are written at a time."""


def open_dataset(dataset: Any) -> RayDatasetSource:
    """The source behind ``Flow.from_ray_dataset``."""
    return RayDatasetSource(dataset)


def table_to_dataset(table: pa.Table) -> Any:
    """The rows of a table."""
    import ray.data

    return ray.data.from_arrow(table)


def files_to_dataset(files: Sequence[str], filesystem: fs.FileSystem) -> Any:
    """The rows of Parquet files."""
    import ray.data

    return ray.data.read_parquet(list(files), filesystem=filesystem)


@dataclass(frozen=True, slots=True)
class RayBlockSplit:
    """One block: a reference that must travel inside an argument of a Ray call, so that Ray counts the borrower."""

    id: str
    rows: int
    schema: pa.Schema = field(hash=False)
    block: Any = field(hash=False)
    blocking: ClassVar[bool] = True

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        try:
            table = ray.get(self.block)
        except RayError as error:
            raise TaskLostError(
                f"the block of split {self.id} is gone: {short_reason(error)}",
                "blocks live as long as the script that computed them; run the flow with checkpoints to keep them",
            ) from error
        yield from from_row(iter(_conformed(table, self.schema).to_batches()), start)


class RayDatasetSource:
    """A dataset in a flow: deferred until a job starts (see ``engine.flow.handoff``)."""

    def __init__(self, dataset: Any) -> None:
        if not (hasattr(dataset, "to_arrow_refs") and hasattr(dataset, "schema")):
            found = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
            raise ConfigurationError(f"{found} is no Ray Dataset", "pass a ray.data.Dataset")
        self._schema = _schema_of(dataset)
        self._dataset = dataset
        #: the references to the blocks, once they were computed
        self._blocks: list[Any] | None = None

    @property
    def kind(self) -> str:
        return "ray dataset"

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def describe(self) -> str:
        return describe_frame(self._schema)

    def splits(self) -> Sequence[RayBlockSplit]:
        """The blocks, which are computed now if they were not before."""
        blocks = self._computed()
        rows = ray.get([_count.remote(block) for block in blocks])
        return [
            RayBlockSplit(f"ray/{position}", count, self._schema, block)
            for position, (block, count) in enumerate(zip(blocks, rows, strict=True))
        ]

    def handed_over(self, source: str, to: Destination) -> SourceConfig:
        """The blocks, staged or as they are."""
        staged = stage_before(to, source, SYSTEM, self.kind)
        if staged is not None:
            return staged
        if to.folder is None and to.on_ray and not to.detached:
            return BlocksSource(self._schema, tuple(self.splits()))
        folder = to.folder or temporary_folder()
        return stage_with(self._written, self._schema, folder, to.job, source, SYSTEM, self.kind, to.description)

    def _written(self, place: str) -> tuple[StagedPartition, ...]:
        """Every block as a file in ``place``, a few at a time."""
        blocks, under_way = self._computed(), []
        schema, store = bytes(self._schema.serialize()), store_arguments(place)
        for position, block in enumerate(blocks):
            under_way.append(_write.remote(block, place, schema, position, store))
            ray.wait(under_way, num_returns=max(1, len(under_way) - _AT_ONCE + 1))
        return tuple(StagedPartition(*answer) for answer in ray.get(under_way))

    def _computed(self) -> list[Any]:
        if self._blocks is None:
            options = self._dataset.context.execution_options
            before, options.preserve_order = options.preserve_order, True
            try:
                self._blocks = list(self._dataset.to_arrow_refs())
            finally:
                options.preserve_order = before
        return self._blocks

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigurationError("a Ray Dataset is handed over before the job starts", "ps.run does")


@dataclass(frozen=True)
class BlocksSource:
    """Blocks that this script keeps."""

    #: nothing can be restored over them
    ends_with_script: ClassVar[bool] = True

    schema: pa.Schema = field(hash=False)
    blocks: tuple[RayBlockSplit, ...] = field(hash=False)

    @property
    def kind(self) -> str:
        return "ray dataset"

    def describe(self) -> str:
        return describe_frame(self.schema)

    def splits(self) -> Sequence[RayBlockSplit]:
        return self.blocks

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema, "blocks": ()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def _schema_of(dataset: Any) -> pa.Schema:
    found = dataset.schema()
    schema = getattr(found, "base_schema", found)
    if not isinstance(schema, pa.Schema):
        remedy = 'make its blocks Arrow: dataset.map_batches(lambda table: table, batch_format="pyarrow")'
        raise ConfigurationError(f"the Ray Dataset has no Arrow schema but {schema}", remedy)
    return nullable(schema)


def _conformed(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the schema that was declared."""
    if table.schema.equals(schema):
        return table
    return table.select(schema.names).cast(schema)


@ray.remote(num_cpus=0)
def _count(table: pa.Table) -> int:
    return int(table.num_rows)


@ray.remote(num_cpus=0)
def _write(
    table: pa.Table, place: str, schema: bytes, position: int, store: StoreArguments | None
) -> tuple[str, int, int, str]:
    wanted = pa.ipc.read_schema(pa.py_buffer(schema))
    attempt = ray.get_runtime_context().get_task_id()
    write = make_writer(place, schema, CHUNK_ROWS, (position, attempt), store=store)
    (answer,) = write(iter(_conformed(table, wanted).unify_dictionaries().to_batches()))
    (row,) = answer.to_pylist()
    return row["file"], row["rows"], row["bytes"], row["digest"]
