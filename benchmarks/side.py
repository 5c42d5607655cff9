"""One side of a comparison, as a process that the house starts and asks to run, again and again.

A side is a script that ends in ``serve(run, …)``. It runs in whatever environment its engine needs, so this module
wants only what is named here, and pyarrow where outputs are digested. The protocol, one JSON value a line:

1. The script is called with one argument, a JSON object of settings, prepares itself (starts its cluster or session,
   loads what is in memory) and answers ``{"ready": {name: version, …}}``.
2. For each line on its standard input it runs once and answers ``{"seconds": …, "rows": …, "digest": …, …}``. ``run``
   says the seconds itself, so that reading back what it wrote, for the digest, is not counted.
3. At the end of its input it leaves.

Whatever else a side prints goes to its standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Answer = dict[str, Any]


def settings() -> dict[str, Any]:
    """What the house has asked for."""
    return dict(json.loads(sys.argv[1]))


def serve(run: Callable[[], Answer], *distributions: str) -> None:
    """Answer until nobody asks any more. ``distributions``: whose versions are told."""
    answers = _own_standard_output()

    def answer(value: Answer) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    answer({"ready": versions(distributions)})
    for _ in sys.stdin:
        try:
            answer(run())
        except Exception:
            answer({"error": traceback.format_exc()})


def _own_standard_output() -> Any:
    """The standard output, for the answers alone: everybody else's words go to the standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Those that are installed."""
    found = {}
    for name in distributions:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def digest(batches: Iterable[Any]) -> str:
    """The same for the same rows, in whatever order and batches they come.

    Each value becomes 64 bits, each row a mixture of its values by position (the finaliser of SplitMix64), and rows are
    added modulo 2⁶⁴. Whole numbers of all widths are equal; floats are multiplied by π, so that no tidy sum lies where
    digits are cut, and rounded to 6 digits, as sums of floats depend on their order; texts are mixed byte by byte.
    """
    import numpy as np

    total, rows = np.uint64(0), 0
    with np.errstate(over="ignore"):
        for batch in batches:
            if not batch.num_rows:
                continue
            mixed = np.zeros(batch.num_rows, dtype=np.uint64)
            for column in batch.columns:
                mixed = _mix(mixed + _as_bits(column))
            total += mixed.sum(dtype=np.uint64)
            rows += batch.num_rows
    return f"{rows}-{int(total):016x}"


def _mix(bits: Any) -> Any:
    import numpy as np

    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _as_bits(column: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if pa.types.is_floating(kind):
        values = column.to_numpy(zero_copy_only=False).astype(np.float64) * np.pi
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = 10.0 ** (6 - np.ceil(np.log10(np.abs(np.where(values == 0, 1.0, values)))))
        return (np.round(values * scale)).astype(np.int64).view(np.uint64) + scale.view(np.uint64)
    if pa.types.is_integer(kind):
        return column.cast(pa.int64()).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us")).cast(pa.int64()).to_numpy(zero_copy_only=False).view(np.uint64)
    codes = column.cast(pa.string()).dictionary_encode()
    words = [sum((byte + 1) * 257**place for place, byte in enumerate(str(word).encode())) % 2**64
             for word in codes.dictionary.to_pylist()]  # fmt: skip
    return np.array(words, dtype=np.uint64)[codes.indices.to_numpy(zero_copy_only=False)]


def read_folder(folder: str | Path) -> Iterable[Any]:
    """The batches of all Parquet files of a folder whose names begin neither with "." nor with "_"."""
    from pyarrow import parquet

    for path in sorted(Path(folder).rglob("*.parquet")):
        if not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts):
            yield from parquet.ParquetFile(path).iter_batches()
