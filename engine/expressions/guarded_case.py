"""CASE whose branches may fail: each is computed for the rows that reach it, and for no others.

Arrow computes all branches of all rows, so ``CASE WHEN a <> 0 THEN 10 // a END`` would divide by zero. Where a part of
a CASE may fail for a value, it is one function of the columns that it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .own_kernels import own_call, whole


def guarded(
    text: str,
    columns: Sequence[tuple[str, pa.DataType]],
    tests: Sequence[pc.Expression],
    results: Sequence[pc.Expression],
    type: pa.DataType,
) -> pc.Expression:
    """The result of the first test that holds, the last result if none does. ``text``: all of it, over ``columns``, and
    of nothing else; tests are conditions, results may be cast to ``type``."""
    kernel = _GuardedCase([name for name, _ in columns], tests, results, type)
    return own_call(f"case[{text}]", kernel, [(pc.field(name), column) for name, column in columns], type)


class _GuardedCase:
    def __init__(
        self, names: list[str], tests: Sequence[pc.Expression], results: Sequence[pc.Expression], type: pa.DataType
    ) -> None:
        from .evaluator import Evaluator

        self._names, self._type = names, type
        self._tests = [Evaluator([("test", each)]) for each in tests]
        self._results = [Evaluator([("result", each)]) for each in results]

    def __call__(self, context: Any, *columns: Any) -> pa.Array:
        given = [whole(each, context.batch_length) for each in columns]
        records = pa.RecordBatch.from_arrays(given, self._names)
        left = np.arange(context.batch_length)
        rows, values = [], []
        for number, result in enumerate(self._results):
            taken = left
            if number < len(self._tests):
                holds = self._holds(number, records, left)
                taken, left = left[holds], left[~holds]
            if len(taken):
                rows.append(taken)
                values.append(self._computed(result, records, taken))
        if not values:
            return pa.nulls(0, self._type)
        order = np.empty(context.batch_length, np.int64)
        order[np.concatenate(rows)] = np.arange(context.batch_length)
        return pa.concat_arrays(values).take(pa.array(order))

    def _holds(self, number: int, records: pa.RecordBatch, left: Any) -> Any:
        if not len(left):
            return np.zeros(0, bool)
        (found,) = self._tests[number].evaluate(_only(records, left))
        return found.fill_null(False).to_numpy(zero_copy_only=False)

    def _computed(self, result: Any, records: pa.RecordBatch, taken: Any) -> pa.Array:
        (found,) = result.evaluate(_only(records, taken))
        return found if found.type == self._type else found.cast(self._type)


def _only(records: pa.RecordBatch, rows: Any) -> pa.RecordBatch:
    return records if len(rows) == records.num_rows else records.take(pa.array(rows))
