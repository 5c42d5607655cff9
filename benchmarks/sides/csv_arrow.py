"""The floor under every job over CSV: two threads that do nothing but parse the files with pyarrow, half each."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import csv
from side import Answer, serve, settings

BLOCK_BYTES = 4 * 1024 * 1024


def scan(paths: Sequence[Path], found: list[int]) -> None:
    types = {"auction": pa.int64(), "bidder": pa.int64(), "price": pa.int64(), "channel": pa.string(), "at": pa.int64()}
    convert = csv.ConvertOptions(column_types=types)
    read = csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
    for path in paths:
        with csv.open_csv(path, read, convert_options=convert) as reader:
            found.append(sum(batch.num_rows for batch in reader))


def main() -> None:
    paths = sorted(Path(settings()["folder"]).glob("*.csv"))

    def run() -> Answer:
        found: list[int] = []
        threads = [threading.Thread(target=scan, args=(paths[part::2], found)) for part in range(2)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"seconds": time.perf_counter() - started, "rows": sum(found)}

    serve(run, "pyarrow")


if __name__ == "__main__":
    main()
