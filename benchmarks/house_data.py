"""The data of the house: generated once, from a seed, into ``build/bench``; later runs find it there.

*Bids* follow Nexmark's: an auction, a bidder, a price, a channel and a time, with half of the bids on a few popular
auctions. *Operator tables* are what the operators alone are measured on.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, feather, parquet

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "build" / "bench"
AUCTIONS = 300_000
CHANNELS = ("apple", "baidu", "facebook", "google", "channel-1", "channel-2", "channel-3", "channel-4")
CHUNK = 500_000
BATCH = 64 * 1024


def bids(rows: int, auctions: int, seed: int) -> pa.Table:
    """So many bids in order of their time; the prices are in cents."""
    chance = np.random.default_rng(seed)
    popular = chance.integers(0, max(1, auctions // 100), rows) * 100
    auction = np.where(chance.random(rows) < 0.5, popular, chance.integers(0, auctions, rows)) + 1000
    return pa.table(
        {
            "auction": auction,
            "bidder": chance.integers(0, max(1, rows // 10), rows) + 1000,
            "price": np.exp(chance.random(rows) * 13.8).astype(np.int64) + 1,
            "channel": pa.array(CHANNELS).take(pa.array(chance.integers(0, len(CHANNELS), rows))),
            "at": 1_700_000_000_000 + np.arange(rows, dtype=np.int64) // 10,
        }
    )


def bid_chunks(rows: int, seed: int) -> Iterator[pa.Table]:
    auctions = min(AUCTIONS, max(1, rows // 10))
    for number, start in enumerate(range(0, rows, CHUNK)):
        yield bids(min(CHUNK, rows - start), auctions, seed * 100_003 + number)


def bid_files(rows: int, form: str, files: int = 4) -> Path:
    """A folder with so many bids in all, in ``files`` Parquet or CSV files."""

    def write(folder: Path) -> None:
        for number in range(files):
            share = rows // files + (number < rows % files)
            path = folder / f"bids-{number:03}.{form}"
            chunks = bid_chunks(share, number + 1)
            first = next(chunks)
            writer = parquet.ParquetWriter(path, first.schema) if form == "parquet" else csv.CSVWriter(
                path, first.schema, write_options=csv.WriteOptions(quoting_style="none"))  # fmt: skip
            with writer:
                writer.write_table(first)
                for chunk in chunks:
                    writer.write_table(chunk)

    return made(f"bids-{form}-{rows}-{files}", write)


def operator_files(rows: int) -> Path:
    """The tables that operators alone are measured on, as uncompressed Arrow files of batches of 64 Ki rows.

    ``rows``: sorted by ``k`` (10 rows each), with keys ``few`` (1,000 values) and ``many`` (half as many as rows),
    whole numbers ``v`` and floats ``x``. ``left`` and ``right``: unique sorted keys, of which half match.
    """

    def write(folder: Path) -> None:
        chance = np.random.default_rng(1)
        tables = {
            "rows": pa.table(
                {
                    "k": np.arange(rows) // 10,
                    "few": chance.integers(0, min(1_000, rows), rows),
                    "many": chance.integers(0, max(rows // 2, 1), rows),
                    "v": chance.integers(0, 1000, rows),
                    "x": chance.random(rows),
                }
            ),
            "left": pa.table({"k": np.arange(rows), "v": np.arange(rows) % 1000}),
            "right": pa.table({"rk": np.arange(0, 2 * rows, 2), "w": np.arange(rows) % 777}),
        }
        for name, table in tables.items():
            feather.write_feather(table, folder / f"{name}.arrow", compression="uncompressed", chunksize=BATCH)

    return made(f"operators-{rows}", write)


def made(name: str, write: Callable[[Path], None]) -> Path:
    """The folder of that name; ``write`` fills it if it is not there. It gets its name when it is complete."""
    folder = DATA / name
    if not folder.exists():
        partial = DATA / f".{name}-{os.getpid()}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        write(partial)
        (partial / ".made.json").write_text(json.dumps({"name": name}))
        try:
            partial.rename(folder)
        except OSError:  # somebody else was as quick
            shutil.rmtree(partial, ignore_errors=True)
    return folder
