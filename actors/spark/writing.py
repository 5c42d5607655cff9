"""What Spark's Python workers do to stage a partition: one Arrow IPC file each, under a name that no other attempt has.

Rules:

1. :func:`make_writer` gives a function that carries everything it needs: it is pickled by value, so the workers need
   pyarrow and not Penstock. Nothing of this package may be used inside it.
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

from collections.abc import Callable, Generator, Iterator
from typing import Any

Writer = Callable[[Iterator[Any]], Iterator[Any]]

BATCH_BYTES = 16 << 20
"""What the rows of one record batch may weigh."""

STEP_ROWS = 1024
"""The most rows that are weighed at a time."""

RETRIED_SECONDS = 15
"""How long pyarrow asks Google's store again; of its own accord 15 minutes, also where nobody has said who asks."""

ANSWER = "partition int, file string, rows long, bytes long, digest string"
"""The schema, in Spark's words, of the one row that a partition answers with."""


def make_writer(  # noqa: PLR0915 rule 1
    folder: str,
    schema: bytes,
    rows: int,
    identity: tuple[int, str] | None = None,
    *,
    by_node: bool = False,
    most: int = BATCH_BYTES,
    longest: int = STEP_ROWS,
) -> Writer:
    """The function for ``DataFrame.mapInArrow``. ``folder``: path or URL; ``schema``: serialised, of the files.
    ``identity``: partition and attempt, where it is not Spark that knows them. ``by_node``: the files are for a moment,
    and go into that folder inside which this machine has (``leased_blocks``)."""
    address = f"{folder}?retry_limit_seconds={RETRIED_SECONDS}" if folder.startswith("gs://") else folder

    def write(batches: Iterator[Any]) -> Iterator[Any]:  # noqa: PLR0915 rule 1
        import contextlib
        import hashlib
        import os
        import sys
        import zipimport

        import numpy as np
        import pyarrow as pa
        from pyarrow import fs, ipc

        hasher: Any
        try:
            from xxhash import xxh3_128

            kind, hasher = "xxh3", xxh3_128()
        except ImportError:
            kind, hasher = "blake2b", hashlib.blake2b(digest_size=16)
        if identity is None:
            from pyspark import TaskContext

            for known, finder in list(sys.path_importer_cache.items()):  # rule 5
                if isinstance(finder, zipimport.zipimporter):
                    del sys.path_importer_cache[known]
            context = TaskContext.get()
            partition, attempt = context.partitionId(), str(context.taskAttemptId())
        else:
            partition, attempt = identity
        wanted = ipc.read_schema(pa.py_buffer(schema))
        names = wanted.names
        filesystem, place = fs.FileSystem.from_uri(address) if "://" in address else (fs.LocalFileSystem(), address)
        file = f"{partition:06d}-{attempt}.arrow"
        if by_node:
            file = f"{sorted(os.listdir(place))[0]}/{file}"
        path = f"{place}/{file}"

        def renew(column: Any, count: int) -> Any:
            return column.take(pa.array(np.arange(count)))

        def declared(records: Any) -> Any:
            """The batch with the columns and types that the files have."""
            if not names:
                return records.select([])  # keeps the number of rows
            columns = [renew(column, records.num_rows) for column in records.columns]
            kinds = [column.type for column in wanted]
            cast = [each if each.type == kind else each.cast(kind) for each, kind in zip(columns, kinds, strict=True)]
            return pa.RecordBatch.from_arrays(cast, schema=wanted)

        def steps() -> Generator[Any, int, None]:
            """The rows, as many at a time as are asked for."""
            held: list[Any] = []
            wanted = count = yield None
            for records in batches:
                whole, begin = declared(records) if records.num_rows else records, 0
                while begin < whole.num_rows:
                    piece = whole.slice(begin, count)
                    held.append(piece)
                    begin, count = begin + piece.num_rows, count - piece.num_rows
                    if not count:
                        wanted = count = yield joined(held)
                        held = []
            if count != wanted:
                yield joined(held)

        def weight_of(records: Any) -> int:
            return max(1, int(ipc.get_record_batch_size(records)))

        def halved(records: Any) -> Iterator[Any]:
            """The rows in pieces that are not too heavy, or a row each."""
            half = records.num_rows // 2
            if not half or weight_of(records) <= most:
                yield records
            else:
                yield from halved(records.slice(0, half))
                yield from halved(records.slice(half))

        def canonical() -> Iterator[Any]:
            """Rule 2."""
            held: list[Any] = []
            count = size = 0
            step, asked = 1, steps()
            next(asked)
            while True:
                try:
                    piece = asked.send(min(step, rows - count))
                except StopIteration:
                    break
                weight = weight_of(piece)
                step = max(1, min(2 * step, longest, most * piece.num_rows // weight))
                for each in halved(piece):
                    held.append(each)
                    count, size = count + each.num_rows, size + weight_of(each)
                    if count == rows or size >= most:
                        yield joined(held)
                        held, count, size = [], 0, 0
            if held:
                yield joined(held)

        def joined(held: list[Any]) -> Any:
            if len(held) == 1:
                return held[0]
            if not names:
                table = pa.Table.from_batches(held)
                return pa.RecordBatch.from_arrays([pa.nulls(table.num_rows)], ["_"]).select([])
            columns = [pa.concat_arrays([each.column(index) for each in held]) for index in range(len(names))]
            return pa.RecordBatch.from_arrays(columns, schema=wanted)

        class Hashing:
            """A file that hashes what is written to it."""

            closed = False

            def __init__(self, stream: Any) -> None:
                self.stream = stream
                self.hash = hasher
                self.size = 0

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

        written = 0
        try:
            with filesystem.open_output_stream(path) as stream:
                sink = Hashing(stream)
                with ipc.new_file(pa.PythonFile(sink, "w"), wanted) as writer:
                    for records in canonical():
                        writer.write_batch(records)
                        written += records.num_rows
            if isinstance(filesystem, fs.LocalFileSystem) and not by_node:
                descriptor = os.open(path, os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                filesystem.delete_file(path)
            raise
        answer = {
            "partition": pa.array([partition], pa.int32()),
            "file": [file],
            "rows": pa.array([written], pa.int64()),
            "bytes": pa.array([sink.size], pa.int64()),
            "digest": [f"{kind}:{sink.hash.hexdigest()}"],
        }
        yield pa.RecordBatch.from_pydict(answer)

    return write
