"""What Spark's Python workers do to stage a partition: one Arrow IPC file each, under a name that no other attempt has.

Rules:

1. Spark pickles all of this module by value (``register_pickle_by_value``), so the workers need pyarrow and not
   Penstock: nothing of this package may be imported here.
2. Rows come in canonical record batches, made anew: equal rows in equal order give equal bytes, however Spark cut them,
   and arrays that Arrow for Java left without offsets are whole (see ``blocks``). A batch has ``rows`` rows, or fewer
   if these would be more than some ``BATCH_BYTES``. Rows are weighed in steps that double as long as they are light,
   and a step that is too heavy is halved: little more than a batch is ever held, and cuts depend on the rows alone.
3. The digest of a file is that of the package (XXH3) where the worker has its library, and else one of Python's own; it
   says which.
4. An attempt that fails removes its file, if it still can. Which attempts count is not decided here: Spark returns the
   answer of exactly one attempt for each partition, and only the files that those name are accepted.
5. Before each task PySpark has all finders of modules look anew at what there is, and those of a zip file, of which
   each of PySpark's packages has one, read its directory again: 70 of 110 ms of processor time for a small partition.
   So they are forgotten; the next import from a zip file makes another one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import zipimport
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyarrow import fs, ipc

Writer = Callable[[Iterator[Any]], Iterator[Any]]

BATCH_BYTES = 16 << 20
"""What the rows of one record batch may weigh."""

STEP_ROWS = 1024
"""The most rows that are weighed at a time."""

RETRIED_SECONDS = 15
"""How long pyarrow asks Google's store again; of its own accord 15 minutes, also where nobody has said who asks."""

ANSWER = "partition int, file string, rows long, bytes long, digest string"
"""The schema, in Spark's words, of the one row that a partition answers with."""


def make_writer(
    folder: str,
    schema: bytes,
    rows: int,
    identity: tuple[int, str] | None = None,
    *,
    by_node: bool = False,
    store: dict[str, Any] | None = None,
    most: int = BATCH_BYTES,
    longest: int = STEP_ROWS,
) -> Writer:
    """The function for ``DataFrame.mapInArrow``. ``folder``: path or URL; ``schema``: serialised, of the files.
    ``identity``: partition and attempt, where it is not Spark that knows them. ``by_node``: the files are for a moment,
    and go into that folder inside which this machine has (``leased_blocks``). ``store``: how S3 is reached, where it is
    not the environment that says so."""
    address = f"{folder}?retry_limit_seconds={RETRIED_SECONDS}" if folder.startswith("gs://") else folder
    if identity is None:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[__name__])  # rule 1

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        partition, attempt = identity or identity_in_spark()
        wanted = ipc.read_schema(pa.py_buffer(schema))
        filesystem, place = reached(address, store)
        file = f"{partition:06d}-{attempt}.arrow"
        if by_node:
            file = f"{sorted(os.listdir(place))[0]}/{file}"
        cut = canonical(batches, wanted, rows, most, longest)
        try:
            written, size, digest = write_file(filesystem, f"{place}/{file}", wanted, cut)
            if isinstance(filesystem, fs.LocalFileSystem) and not by_node:
                make_durable(f"{place}/{file}")
        except BaseException:
            with contextlib.suppress(OSError):
                filesystem.delete_file(f"{place}/{file}")
            raise
        answer = {
            "partition": pa.array([partition], pa.int32()),
            "file": [file],
            "rows": pa.array([written], pa.int64()),
            "bytes": pa.array([size], pa.int64()),
            "digest": [digest],
        }
        yield pa.RecordBatch.from_pydict(answer)

    return write


def reached(address: str, store: dict[str, Any] | None) -> tuple[Any, str]:
    """The file system of a path or URL, and the path in it."""
    if store is not None:
        return fs.S3FileSystem(**store), unquote(address.partition("://")[2])
    found: tuple[Any, str] = fs.FileSystem.from_uri(address) if "://" in address else (fs.LocalFileSystem(), address)
    return found


def identity_in_spark() -> tuple[int, str]:
    """Partition and attempt of the task of Spark in which this runs."""
    from pyspark import TaskContext

    for known, finder in list(sys.path_importer_cache.items()):  # rule 5
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[known]
    context = TaskContext.get()
    return context.partitionId(), str(context.taskAttemptId())


# ------------------------------------------------------------------ rows


def declared(records: Any, schema: Any) -> Any:
    """The batch, made anew, with the columns and types that the files have."""
    if not schema.names:
        return records.select([])  # keeps the number of rows
    every = pa.array(np.arange(records.num_rows))
    columns = [column.take(every) for column in records.columns]
    kinds = [column.type for column in schema]
    cast = [each if each.type == kind else each.cast(kind) for each, kind in zip(columns, kinds, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


def joined(held: Sequence[Any], schema: Any) -> Any:
    """One batch of the rows of several."""
    if len(held) == 1:
        return held[0]
    if not schema.names:
        table = pa.Table.from_batches(held)
        return pa.RecordBatch.from_arrays([pa.nulls(table.num_rows)], ["_"]).select([])
    columns = [pa.concat_arrays([each.column(index) for each in held]) for index in range(len(schema.names))]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def steps(batches: Iterator[Any], schema: Any) -> Generator[Any, int, None]:
    """The rows, as many at a time as are asked for."""
    held: list[Any] = []
    wanted = count = yield None
    for records in batches:
        whole, begin = declared(records, schema) if records.num_rows else records, 0
        while begin < whole.num_rows:
            piece = whole.slice(begin, count)
            held.append(piece)
            begin, count = begin + piece.num_rows, count - piece.num_rows
            if not count:
                wanted = count = yield joined(held, schema)
                held = []
    if count != wanted:
        yield joined(held, schema)


def weight_of(records: Any) -> int:
    """What they take in a file."""
    return max(1, int(ipc.get_record_batch_size(records)))


def halved(records: Any, most: int) -> Iterator[Any]:
    """The rows in pieces that are not too heavy, or a row each."""
    half = records.num_rows // 2
    if not half or weight_of(records) <= most:
        yield records
    else:
        yield from halved(records.slice(0, half), most)
        yield from halved(records.slice(half), most)


def canonical(batches: Iterator[Any], schema: Any, rows: int, most: int, longest: int) -> Iterator[Any]:
    """Rule 2."""
    held: list[Any] = []
    count = size = 0
    step, asked = 1, steps(batches, schema)
    next(asked)
    while True:
        try:
            piece = asked.send(min(step, rows - count))
        except StopIteration:
            break
        step = max(1, min(2 * step, longest, most * piece.num_rows // weight_of(piece)))
        for each in halved(piece, most):
            held.append(each)
            count, size = count + each.num_rows, size + weight_of(each)
            if count == rows or size >= most:
                yield joined(held, schema)
                held, count, size = [], 0, 0
    if held:
        yield joined(held, schema)


# ------------------------------------------------------------------ the file


class Hashing:
    """A file that hashes what is written to it (rule 3)."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.size = 0
        self.hash: Any
        try:
            from xxhash import xxh3_128

            self.kind, self.hash = "xxh3", xxh3_128()
        except ImportError:
            self.kind, self.hash = "blake2b", hashlib.blake2b(digest_size=16)

    def write(self, data: Any) -> int:
        self.hash.update(data)
        self.stream.write(data)
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        self.stream.flush()

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self.size

    def close(self) -> None:
        self.closed = True


def write_file(filesystem: Any, path: str, schema: Any, batches: Iterator[Any]) -> tuple[int, int, str]:
    """Write them; the file's rows, bytes and digest."""
    written = 0
    with filesystem.open_output_stream(path) as stream:
        sink = Hashing(stream)
        with ipc.new_file(pa.PythonFile(sink, "w"), schema) as writer:
            for records in batches:
                writer.write_batch(records)
                written += records.num_rows
    return written, sink.size, f"{sink.kind}:{sink.hash.hexdigest()}"


def make_durable(path: str) -> None:
    """See ``engine.files.durable``."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
