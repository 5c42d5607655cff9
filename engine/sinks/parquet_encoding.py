"""Which columns of a Parquet file get a dictionary: those for which it pays. Pure.

Parquet's writer begins one for every column and gives it up when it has grown to a MiB: the time is lost, and the row
group keeps what was written with it. Of a column of mostly different values a dictionary that is not given up makes the
file larger. Rules:

1. From the first rows it is estimated how many different values the row group has (Chao, "Nonparametric estimation of
   the number of classes in a population", 1984: it does not mind that some values are frequent). It is a lower bound,
   which the more rows it sees the less it is below the truth; so it is given more of large row groups.
2. A dictionary that would be given up, or with its positions takes more than three quarters of the values' bytes, is
   not begun: what it would save is not worth the time, which is half as much again.
3. Columns of lists, maps and structs, those of few rows, and types that cannot be counted are left to the writer.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log2

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SAMPLE_ROWS, MOST_SAMPLE_ROWS, ROWS_PER_SAMPLED = 8 * 1024, 64 * 1024, 8
WORTH = 0.75
"""What a dictionary and its positions may take at most, of the bytes of the values."""
LEAST_ROWS = 1024
GIVEN_UP_BYTES = 1024 * 1024
"""A dictionary of this size is given up (``dictionary_pagesize_limit``)."""


def dictionary_columns(table: pa.Table) -> bool | list[str]:
    """What ``use_dictionary`` is to be for a file whose first row group this is."""
    if table.num_rows < LEAST_ROWS:
        return True
    without = {field.name for field in table.schema if not _pays(field.type, table.column(field.name))}
    if not without:
        return True
    paths = [list(_leaves(field.name, field.type)) for field in table.schema if field.name not in without]
    return [path for each in paths for path in each]


def _pays(type: pa.DataType, column: pa.ChunkedArray) -> bool:
    if pa.types.is_nested(type) or pa.types.is_dictionary(type) or pa.types.is_boolean(type):
        return True
    wanted = min(MOST_SAMPLE_ROWS, max(SAMPLE_ROWS, len(column) // ROWS_PER_SAMPLED))
    sample = column.slice(0, wanted).drop_null().combine_chunks()
    if len(sample) < LEAST_ROWS:
        return True
    try:
        counts, width = pc.value_counts(sample).field("counts").to_numpy(), _width(type, sample)
    except pa.ArrowNotImplementedError:
        return True
    rows = len(column) - column.null_count
    values = min(rows, estimated_values(counts))
    positions = rows * ceil(log2(max(2, values))) / 8
    return bool(values * width < min(GIVEN_UP_BYTES, WORTH * rows * width - positions))


def estimated_values(counts: np.ndarray) -> float:
    """How many different values there are, some of which occurred so often in a sample: Chao's estimate."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return len(counts) + once * (once - 1) / (2 * (twice + 1))


def _width(type: pa.DataType, sample: pa.Array) -> float:
    """Bytes of a value as the writer counts them: those of a text have their length with them."""
    try:
        return float(max(4, type.bit_width / 8))  # there is no smaller number in Parquet
    except ValueError:
        return 4 + float(pc.mean(pc.binary_length(sample)).as_py())


def _leaves(path: str, type: pa.DataType) -> Iterator[str]:
    """The columns of the file that a column is written as."""
    if pa.types.is_map(type):
        yield from _leaves(f"{path}.key_value.key", type.key_type)
        yield from _leaves(f"{path}.key_value.value", type.item_type)
    elif pa.types.is_struct(type):
        for field in type:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif pa.types.is_nested(type):
        yield from _leaves(f"{path}.list.element", type.value_type)
    else:
        yield path
