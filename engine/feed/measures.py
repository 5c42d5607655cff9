"""What each row of a feed costs: a whole number that is computed of the row alone."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import DataError, FlowError
from ..core.schemas import is_list, no_rows
from ..expressions.evaluator import Evaluator, types_of
from ..expressions.expressions import as_expression

Given: TypeAlias = pc.Expression | str
"""A column, of lists (their length counts) or of whole numbers; an expression or SQL text that gives one."""

LARGEST_COST = 2**40
"""So a sum over the rows of a chunk stays within 64 bits."""


class Measure:
    """``given``, over rows of this schema. Raises FlowError if it is no whole number. ``kind`` and ``what``: for
    errors."""

    def __init__(self, kind: str, what: str, given: Given, schema: pa.Schema) -> None:
        self._shown = f"{kind}: {what} ({given})"
        self._column = given if isinstance(given, str) and given in schema.names else None
        expression = pc.field(given) if self._column else as_expression(kind, given, schema)
        (type,) = types_of(kind, schema, [(what, expression)])
        self.is_length = is_list(type)
        if not (self.is_length or pa.types.is_integer(type)):
            raise FlowError(
                f"{self._shown} is {type}",
                "give a column of lists, whose length counts, or an expression that is a whole number: cast it",
            )
        self._evaluator = Evaluator([(what, expression)], [given], schema)

    def of(self, records: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """The number of each row. Raises DataError for a null, and for a number that is no cost."""
        found = records.column(self._column) if self._column else self._evaluator.evaluate(records)[0]
        values = pc.list_value_length(found).fill_null(0) if self.is_length else found
        if values.null_count:
            raise DataError(f"{self._shown} is null for a row", "drop such rows, or say what they cost: coalesce")
        if not len(values):
            return np.zeros(0, np.int64)
        least, most = (each.as_py() for each in pc.min_max(values).values())
        if least < 0 or most > LARGEST_COST:
            wrong = least if least < 0 else most
            raise DataError(f"{self._shown} is {wrong:,} for a row", f"it is a number from 0 to {LARGEST_COST:,}")
        costs: npt.NDArray[np.int64] = values.to_numpy(zero_copy_only=False).astype(np.int64)
        return costs


def check_measure(kind: str, what: str, given: Given, schema: pa.Schema) -> None:
    """Raises FlowError if the rows cannot be measured so."""
    Measure(kind, what, given, schema).of(no_rows(schema))
