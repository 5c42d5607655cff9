"""Damaged pages: an array or DoubtfulPage comes of them, never a crash, a read beyond their memory, or another error.

The sanitizers watch a million of them where the decoder is compiled with its harness (``make chaos``); some thousand go
through the whole reader here. Where pyarrow reads a damaged column as well, both read the same.
"""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from penstock.engine.kernels.page_stream import DoubtfulPage
from penstock.engine.kernels.pages import list_reader
from support.page_seeds import write_page_seeds
from support.parquet_pages import fetch_of, flat_columns, plain, random_file, reader_of, same_bits
from support.sweeps import seeds

FUZZ = Path(__file__).parents[2] / "support" / "fuzz_pages.c"
FLAGS = ["-O1", "-g", "-std=c11", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
EACH = 40


def compiled(folder: Path) -> Path:
    """The harness, by the first compiler that has the sanitizers."""
    program = folder / "fuzz_pages"
    for compiler in ("cc", "gcc", "clang"):
        try:
            subprocess.run([compiler, *FLAGS, str(FUZZ), "-o", program], check=True, capture_output=True)
            subprocess.run([program], check=False)
        except (OSError, subprocess.CalledProcessError):
            continue
        return program
    pytest.skip("no C compiler with sanitizers")


@pytest.mark.chaos
def test_million_of_damaged_pages_touch_no_memory_but_their_own(tmp_path: Path) -> None:
    count = write_page_seeds(tmp_path / "seeds", (random_file(seed, 400) for seed in range(150)))
    assert count > 1000
    program = compiled(tmp_path)
    done = subprocess.run(
        [program, tmp_path / "seeds", "1500000", "1"], check=False, capture_output=True, text=True, timeout=280
    )
    assert (done.returncode, done.stderr) == (0, "")


def damaged(content: bytes, begin: int, end: int, rng: random.Random) -> bytes:
    """The same file with something wrong between two places."""
    made = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(begin, min(end, begin + rng.choice([40, 1 << 20])))
        match rng.randrange(3):
            case 0:
                made[at] ^= 1 << rng.randrange(8)
            case 1:
                made[at] = rng.randrange(256)
            case _:
                made[at : min(end, at + 4)] = b"\xff" * (min(end, at + 4) - at)
    return bytes(made)


@pytest.mark.parametrize("seed", seeds(12, of=300))
def test_damaged_column_is_read_as_pyarrow_reads_it_or_left_to_it(seed: int) -> None:
    content, rng = random_file(seed, 300), random.Random(seed)
    metadata = parquet.read_metadata(pa.BufferReader(content))
    columns = list(flat_columns(parquet.ParquetFile(pa.BufferReader(content))))
    for _ in range(EACH if metadata.num_rows else 0):
        group, leaf, name, type = rng.choice(columns)
        chunk = metadata.row_group(group).column(leaf)
        begin = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
        hurt = damaged(content, begin, begin + chunk.total_compressed_size, rng)
        reader = reader_of(hurt, metadata, group, leaf, type)
        assert reader is not None
        try:
            found = plain(reader.take(chunk.num_values, None, rng.random() < 0.5), type)
        except DoubtfulPage:
            continue
        found.validate()
        wanted = read_by_pyarrow(hurt, group, name)
        assert wanted is None or same_bits(found, wanted.cast(type) if wanted.type != type else wanted), (name, type)


@pytest.mark.parametrize("seed", seeds(6, of=100))
def test_damaged_column_of_lists_is_read_as_pyarrow_reads_it_or_left_to_it(seed: int) -> None:
    rng = random.Random(seed)
    length, kind = rng.choice([1, 3, 9, 100]), rng.choice([pa.uint8(), pa.int64(), pa.float32()])
    values = pa.array([rng.randrange(200) for _ in range(300 * length)], kind)
    sink = pa.BufferOutputStream()
    parquet.write_table(
        pa.table({"x": pa.FixedSizeListArray.from_arrays(values, length)}),
        sink,
        compression=rng.choice(["none", "snappy", "lz4"]),
        data_page_size=rng.choice([100, 5000]),
        use_dictionary=rng.random() < 0.5,
    )
    content = sink.getvalue().to_pybytes()
    metadata = parquet.read_metadata(pa.BufferReader(content))
    chunk, type = metadata.row_group(0).column(0), pa.list_(kind, length)
    begin = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
    for _ in range(EACH):
        hurt = damaged(content, begin, begin + chunk.total_compressed_size, rng)
        reader = list_reader(fetch_of(hurt), metadata, 0, 0, type)
        assert reader is not None
        try:
            found = reader.take(300)
        except DoubtfulPage:
            continue
        found.validate()
        wanted = read_by_pyarrow(hurt, 0, "x")
        assert wanted is None or same_bits(found.values, wanted.flatten())


def read_by_pyarrow(content: bytes, group: int, name: str) -> pa.Array | None:
    try:
        file = parquet.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
        return file.read_row_group(group, columns=[name], use_threads=False).column(0).combine_chunks()
    except (OSError, pa.ArrowException, UnicodeDecodeError, MemoryError):
        return None
