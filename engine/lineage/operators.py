"""Operators that make other rows of theirs, in a flow whose rows say where they are from (``origins``).

Rules:

1. What they do to the rows is done by the operator that they stand for, from which the origins are kept.
2. *Numbers* (pack): a row is of the rows that it numbers, in order: a span for each. Those that came before a
   checkpoint that was gone on from are from NOWHERE.
3. *Batches* (map batches): a row is of some row of the batch that the operator was given: a span for each split in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

import numpy as np
import pyarrow as pa

from ..core.elements import Batch
from ..core.operator import OperatorConfig, OperatorContext, Output, RunningOperator, Stateless, Steps, run_at_once
from ..core.traits import Traits, traits_of
from .origins import NOWHERE, ORIGIN, SPANS, spans_of, united_spans

DOCUMENTS = "__penstock_documents"


def _without_origin(schema: pa.Schema) -> pa.Schema:
    return schema.remove(schema.get_field_index(ORIGIN))


class _Origins:
    """Adds origins to what an operator emits. ``of``: the lists of spans of a batch that it emits."""

    def __init__(self, out: Output, running: RunningTracedNumbers | RunningTracedBatches) -> None:
        self._out = out
        self._running = running

    def emit(self, batch: Batch) -> None:
        self._out.emit(Batch(self._running.with_origins(batch.records), batch.tag))


@dataclass(frozen=True)
class _Traced:
    """An operator whose rows have a column of origins more."""

    config: OperatorConfig

    @property
    def kind(self) -> str:
        return self.config.kind

    @property
    def traits(self) -> Traits:
        return traits_of(self.config)

    def output_schema(self, inputs: Sequence[pa.Schema]) -> pa.Schema:
        made = self.config.output_schema([_without_origin(each) for each in inputs])
        return made.append(pa.field(ORIGIN, SPANS))

    def describe(self) -> str:
        return self.config.describe()


class _Numbering(RunningOperator, Protocol):
    """See ``Lineage.numbering``."""

    @property
    def count(self) -> int: ...

    @property
    def oldest(self) -> int: ...


@dataclass(frozen=True)
class TracedNumbers(_Traced):
    """An operator that numbers the rows it makes others of: ``numbering`` does, in the column ``numbers``."""

    numbering: OperatorConfig
    numbers: str

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningTracedNumbers:
        running = cast(_Numbering, self.numbering.build(context, [_without_origin(inputs[0])], restored))
        return RunningTracedNumbers(running, self.numbers, self.output_schema(inputs))


class RunningTracedNumbers(Stateless):
    """See rule 2."""

    def __init__(self, running: _Numbering, numbers: str, schema: pa.Schema) -> None:
        self._running = running
        self._numbers, self._schema = numbers, schema
        #: the row that comes first in ``_counts`` and ``_spans``: of each, how many spans, and the spans
        self._first = running.count
        self._counts = np.zeros(0, dtype=np.int64)
        self._spans = np.zeros((0, 2), dtype=np.int64)

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        counts, spans = spans_of(batch.records.column(ORIGIN))
        self._counts = np.concatenate([self._counts, counts])
        self._spans = np.concatenate([self._spans, spans])
        plain = Batch(batch.records.drop_columns([ORIGIN]), batch.tag)
        return self._then_forget(self._running.process(port, plain, _Origins(out, self)))

    def _then_forget(self, steps: Steps) -> Iterator[None]:
        yield from steps or ()
        self._forget()

    def _forget(self) -> None:
        """Keep the sequences whose tokens are held; none if they are counted anew."""
        if self._running.count != self._first + len(self._counts):
            self._first, self._counts, self._spans = self._running.count, self._counts[:0], self._spans[:0]
        done = max(0, self._running.oldest - self._first)
        self._spans = self._spans[int(self._counts[:done].sum()) :].copy()
        self._counts = self._counts[done:].copy()
        self._first += done

    def with_origins(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Packed rows with the spans of their sequences."""
        found = records.column(self._numbers)
        rows = found.flatten().to_numpy().reshape(len(found), -1)
        begins = np.ones(rows.shape, dtype=np.bool_)
        np.not_equal(rows[:, 1:], rows[:, :-1], out=begins[:, 1:])
        begins &= rows >= 0
        numbers = rows[begins] - self._first
        # one more, for what is not known
        counts = np.append(self._counts, 1)
        spans = np.append(self._spans, [[NOWHERE, NOWHERE]], axis=0)
        where = np.where(numbers < 0, len(counts) - 1, numbers)
        counts, starts = counts[where], (np.cumsum(counts) - counts)[where]
        ends = np.cumsum(counts)
        taken = spans[np.repeat(starts - (ends - counts), counts) + np.arange(counts.sum())]
        borders = np.append(0, np.cumsum(begins.sum(axis=1)))
        offsets = np.append(0, 2 * ends)[borders]
        column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(taken.ravel()))
        columns = {name: records.column(name) for name in self._schema.names if name != ORIGIN}
        return pa.RecordBatch.from_arrays([*columns.values(), column], schema=self._schema)

    def end_round(self, port: int, round: int, out: Output) -> Steps:
        return self._then_forget(self._running.end_round(port, round, _Origins(out, self)))

    def drain(self, out: Output) -> Steps:
        return self._then_forget(self._running.drain(_Origins(out, self)))

    def finish(self, out: Output) -> Steps:
        return self._then_forget(self._running.finish(_Origins(out, self)))

    def snapshot(self) -> pa.Table | None:
        return self._running.snapshot()

    def close(self) -> None:
        self._running.close()


@dataclass(frozen=True)
class TracedBatches(_Traced):
    """An operator without state whose rows are made of those of a batch, with the origins of the batch."""

    def build(
        self, context: OperatorContext, inputs: Sequence[pa.Schema], restored: pa.Table | None
    ) -> RunningTracedBatches:
        inner = self.config.build(
            replace(context, elsewhere=None, background=run_at_once), [_without_origin(inputs[0])], restored
        )
        return RunningTracedBatches(inner, self.output_schema(inputs))


class RunningTracedBatches(Stateless):
    """See rule 3."""

    def __init__(self, running: RunningOperator, schema: pa.Schema) -> None:
        self._running, self._schema = running, schema
        self._spans = np.zeros(0, dtype=np.int64)

    def process(self, port: int, batch: Batch, out: Output) -> Steps:
        self._spans = united_spans(spans_of(batch.records.column(ORIGIN))[1]).ravel()
        plain = Batch(batch.records.drop_columns([ORIGIN]), batch.tag)
        return self._running.process(port, plain, _Origins(out, self))

    def with_origins(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Rows that the function gave, with the spans of those that it was given."""
        rows = records.num_rows
        offsets = np.arange(0, (rows + 1) * len(self._spans), len(self._spans), dtype=np.int32)
        column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.tile(self._spans, rows)))
        return pa.RecordBatch.from_arrays([*records.columns, column], schema=self._schema)

    def close(self) -> None:
        self._running.close()
