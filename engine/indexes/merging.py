"""Answers that come in parts: from several row groups, or several statements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ..core.schemas import no_rows
from ..kernels.pieces import Positions
from ..operators.join.index_protocol import Found
from ..operators.join.matching import Matches


@dataclass(frozen=True, slots=True)
class PartialAnswer:
    """An answer to some of the keys: ``found`` for those with the numbers ``keys`` (None: for all of them)."""

    keys: Positions | None
    found: Found


def merged(parts: Sequence[PartialAnswer], rows: int, schema: pa.Schema) -> Found:
    """One answer for ``rows`` keys. The matches of a key come in the order of the parts; only matched rows are kept."""
    numbers, picked = [np.zeros(0, dtype=np.int64)], [no_rows(schema)]
    for part in parts:
        key_numbers, row_numbers = _pairs(part)
        numbers.append(key_numbers)
        picked.append(part.found.records.take(pa.array(row_numbers)))
    all_numbers = np.concatenate(numbers)
    counts = np.bincount(all_numbers, minlength=rows)
    order = np.argsort(all_numbers, kind="stable")
    return Found(Matches(np.cumsum(counts) - counts, counts, order), pa.concat_batches(picked))


def _pairs(part: PartialAnswer) -> tuple[Positions, Positions]:
    """The number of the key and of the row of each match, key by key."""
    matches = part.found.matches
    counts = matches.counts
    starts = np.cumsum(counts) - counts
    places = np.arange(int(counts.sum())) + np.repeat(matches.first - starts, counts)
    rows = places if matches.rows is None else matches.rows[places]
    numbers = np.arange(len(counts)) if part.keys is None else part.keys
    return np.repeat(numbers, counts), rows
