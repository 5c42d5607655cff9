"""Dates in milliseconds as whole days: what files that store days would hold, and no other day.

Arrow's cast and Parquet's writer cut towards 1970, so a moment of the last day of 1969 becomes the first day of 1970,
and days beyond 32 bits become other days without a word.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import DataError

_DAY = 86_400_000
_LEAST, _MOST = -(2**31), 2**31 - 1


def whole_days(column: pa.Array, name: str) -> pa.Array:
    """A column of date64 with the beginnings of its days. Raises DataError for days that date32 has not."""
    given = pc.fill_null(column.view(pa.int64()), 0).to_numpy(zero_copy_only=False)
    days = np.floor_divide(given, _DAY)
    if len(days) and (days.min() < _LEAST or days.max() > _MOST):
        raise DataError(
            f"column {name!r} has dates that are farther than 32 bits of days from 1970",
            f"cast {name!r} to a timestamp before the sink, or filter such rows out",
        )
    if bool((days * _DAY == given).all()):
        return column
    return pa.array(days * _DAY, pa.int64(), mask=column.is_null().to_numpy(zero_copy_only=False)).view(pa.date64())
