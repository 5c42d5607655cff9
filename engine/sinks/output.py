"""The sink of a serial task: hands each batch to a function of this process. It commits nothing and keeps nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from ..core.elements import Batch
from ..core.errors import ConfigurationError
from ..core.identity import CheckpointId, Committable
from ..core.operator import Committer, OperatorContext, Output, Stateless


@dataclass(frozen=True, slots=True)
class OutputSink:
    """Hands every batch to ``take``, at least once: whoever takes them keeps no promise beyond this process.

    ``has_room``: whether another batch is welcome; who makes room wakes the driver.
    """

    take: Callable[[pa.RecordBatch], None]
    has_room: Callable[[], bool]

    @property
    def kind(self) -> str:
        return "output"

    @property
    def guarantee(self) -> str:
        return "at least once"

    @property
    def place(self) -> str:
        return ""

    def describe(self) -> str:
        return "hand over to the caller"

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        return inputs[0]

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningOutputSink:
        return RunningOutputSink(self.take, self.has_room)

    def visible_rows(self, job: str) -> int | None:
        """Unknown: the rows are gone."""
        return None

    def committer(self, job: str) -> Committer:
        raise ConfigurationError("rows handed to the caller cannot be committed", "use a sink that writes files")

    def check(self, job: str, resuming: bool = False) -> None:
        """Nothing can be wrong."""


class RunningOutputSink(Stateless):
    """Gives each batch away as it comes."""

    def __init__(self, take: Callable[[pa.RecordBatch], None], has_room: Callable[[], bool]) -> None:
        self._take, self._has_room = take, has_room

    def accepts(self, port: int) -> bool:
        return self._has_room()

    def process(self, port: int, batch: Batch, out: Output) -> None:
        self._take(batch.records)

    def flush(self, checkpoint: CheckpointId) -> None: ...

    def prepare(self, checkpoint: CheckpointId) -> list[Committable]:
        return []
