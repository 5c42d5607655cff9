"""Batches as bytes and back: one Arrow IPC stream per channel, cut into one piece per batch. No sockets, no threads.

Rules:

1. The schema travels with the first piece, and again when it changes, which begins a new stream. A dictionary travels
   when it differs from the one before: if it only grew, the new values alone.
2. Pieces must be read in the order in which they were written, each once: the reader remembers dictionaries.
3. Nothing is copied that is large: a piece refers to the batch's own buffers (cut to its rows), and the batch that is
   read lies in the one buffer that was received.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import pyarrow as pa

Codec: TypeAlias = Literal["lz4", "zstd"]

Piece: TypeAlias = list[Any]
"""The parts of a piece, ``bytes`` and ``pa.Buffer``, which follow one another on the wire."""

GATHERED_BYTES = 16 * 1024
"""Parts below this size are copied together: a part of its own costs a call."""


class BatchWriter:
    """Writes the batches of one channel."""

    def __init__(self, codec: Codec | None = None) -> None:
        self._options = pa.ipc.IpcWriteOptions(compression=codec, emit_dictionary_deltas=True)
        self._parts = _Parts()
        self._schema: pa.Schema | None = None
        #: writes into ``_buffered``, which fills ``_parts``; both belong to the stream of ``_schema``
        self._writer: Any = None
        self._buffered: Any = None

    def write(self, records: pa.RecordBatch) -> tuple[Piece, bool]:
        """The batch as a piece, and whether the piece begins a new stream."""
        fresh = self._schema is None or not records.schema.equals(self._schema, check_metadata=True)
        if fresh:
            self._schema = records.schema
            self._buffered = pa.BufferedOutputStream(pa.PythonFile(self._parts, mode="w"), GATHERED_BYTES)
            self._writer = pa.ipc.new_stream(self._buffered, self._schema, options=self._options)
        self._writer.write_batch(records)
        self._buffered.flush()
        return self._parts.take(), fresh


class BatchReader:
    """Reads what one :class:`BatchWriter` wrote."""

    def __init__(self) -> None:
        self._source = _Source()
        self._reader: Any = None

    def read(self, piece: pa.Buffer, fresh: bool) -> pa.RecordBatch:
        """The batch of a piece. Raises an Arrow error if the piece is none."""
        self._source.begin(piece)
        if fresh:
            self._reader = pa.ipc.open_stream(pa.PythonFile(self._source, mode="r"))
        elif self._reader is None:
            raise pa.ArrowInvalid("a batch came before its schema")
        try:
            return self._reader.read_next_batch()
        finally:
            self._source.end()


class _File:
    """What pyarrow asks of a Python file."""

    closed = False

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """A stream that ends takes nothing with it."""


class _Parts(_File):
    """Keeps what is written: small parts come as ``bytes``, large ones as the buffers of the batch."""

    def __init__(self) -> None:
        self._parts: Piece = []

    def writable(self) -> bool:
        return True

    def write(self, part: Any) -> int:
        self._parts.append(part)
        return len(part) if isinstance(part, bytes) else int(part.size)

    def take(self) -> Piece:
        parts, self._parts = self._parts, []
        return parts


class _Source(_File):
    """Gives slices of the piece that is being read."""

    def __init__(self) -> None:
        self._piece: Any = None
        self._at = 0

    def readable(self) -> bool:
        return True

    def begin(self, piece: pa.Buffer) -> None:
        self._piece, self._at = piece, 0

    def end(self) -> None:
        self._piece = None

    def read(self, size: int) -> Any:
        part = self._piece.slice(self._at, min(size, self._piece.size - self._at))
        self._at += part.size
        return part
