"""Dictionaries whose values hold null: made plain where rows come in, so that no operator ever meets one.

Arrow allows a dictionary array to say null in two ways: an index that is null, or an index of a value that is null
(``dictionary_encode(null_encoding="encode")``, files that were merged). Of the second kind ``null_count``, the validity
bitmap, kernels, and writers of Parquet know nothing. Rules:

1. Rows enter the engine at three doors: the sources' reader, a user's function, an index's answer. There, and nowhere
   else, the nulls of a dictionary's values become nulls of the indices. Types and values stay.
2. What has no dictionary column, which its schema tells, is not looked at. Dictionaries inside lists and structs are
   left as they are: keys decode them (``key_bytes``).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa


class PlainNulls:
    """Makes the batches of one schema plain."""

    def __init__(self, schema: pa.Schema) -> None:
        self._columns = [place for place, type in enumerate(schema.types) if pa.types.is_dictionary(type)]

    def of(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows; the same object if there is nothing to do."""
        found = [place for place in self._columns if records.column(place).dictionary.null_count]
        if not found:
            return records
        columns = records.columns
        for place in found:
            columns[place] = plain_nulls(columns[place])
        return pa.RecordBatch.from_arrays(columns, schema=records.schema)


def plain_nulls(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The column with a dictionary that holds no null."""
    valid = column.dictionary.is_valid().to_numpy(zero_copy_only=False)
    places = pa.array(np.maximum(np.cumsum(valid) - 1, 0), mask=~valid).cast(column.type.index_type)
    return pa.DictionaryArray.from_arrays(
        places.take(column.indices), column.dictionary.drop_null(), ordered=column.type.ordered
    )
