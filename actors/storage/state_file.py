"""One file with what is new of a task in one checkpoint, or no file, if that is little (``snapshots``, rule 2)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa
from msgspec.structs import replace
from pyarrow import fs, ipc

from ...engine.core.identity import Holds, StateHandle
from ...engine.files.durable import make_durable
from ...engine.integrity.checksums import digest

INLINE_BYTES = 4096
"""Up to which size what is new of a task goes into its acknowledgement."""

_ALIGNMENT = 64
"""Bytes of which a part begins at a multiple, as Arrow wants its buffers to."""


class StateFile:
    """Parts, one behind the other. ``make``: makes the folder; ``inline``: up to so many bytes in all there is no file;
    ``wrote``: gets each part that is in the file. Raises OSError."""

    def __init__(
        self,
        filesystem: fs.FileSystem,
        root: str,
        location: str,
        make: Callable[[str], None],
        inline: int,
        wrote: Callable[[StateHandle, pa.Buffer], None] = lambda handle, data: None,
    ) -> None:
        self._wrote = wrote
        self._filesystem = filesystem
        self._location = location
        self._path = f"{root}/{location}"
        self._make = make
        self._inline = inline
        self._stream: pa.NativeFile | None = None
        self._handles: list[StateHandle] = []
        #: the parts, as long as all of them may be inlined
        self._small: list[pa.Buffer] = []
        self._end = 0

    def add_table(self, operator: str, table: pa.Table, holds: Holds = Holds.STATE) -> int:
        """A table as a part; its place among them."""
        data = to_ipc(table)
        return self.add(StateHandle(operator, "", data.size, table.num_rows, holds, digest(data)), data)

    def add(self, handle: StateHandle, data: pa.Buffer) -> int:
        """A part; its place among them. Where it lies its handle does not say yet."""
        self._handles.append(handle)
        self._small.append(data)
        if self._stream is None and sum(each.size for each in self._small) > self._inline:
            self._make(self._path.rsplit("/", 1)[0])
            self._stream = self._filesystem.open_output_stream(self._path)
        if self._stream is not None:
            self._write(self._stream)
        return len(self._handles) - 1

    def _write(self, stream: pa.NativeFile) -> None:
        parts, self._small = self._small, []
        first = len(self._handles) - len(parts)
        for number, data in enumerate(parts, first):
            gap = -self._end % _ALIGNMENT
            stream.write(bytes(gap))
            stream.write(data)
            self._handles[number] = replace(self._handles[number], location=self._location, offset=self._end + gap)
            self._end += gap + data.size
            self._wrote(self._handles[number], data)

    def end(self) -> tuple[StateHandle, ...]:
        """The handles of all parts, which now survive a power cut, or hold their bytes."""
        if self._stream is not None:
            stream, self._stream = self._stream, None
            stream.close()
            make_durable(self._filesystem, self._path)
        pairs = zip(self._handles, self._small, strict=True) if self._small else ()
        return tuple(replace(each, inline=bytes(data)) for each, data in pairs) or tuple(self._handles)

    def remove(self) -> None:
        """Leave nothing."""
        if self._stream is not None:
            with suppress(OSError):
                self._stream.close()
        with suppress(OSError):
            self._filesystem.delete_file(self._path)


def to_ipc(table: pa.Table) -> pa.Buffer:
    """The table as an Arrow IPC file."""
    sink = pa.BufferOutputStream()
    with ipc.new_file(sink, table.schema, options=ipc.IpcWriteOptions(compression="lz4")) as writer:
        # a file takes one dictionary per column, the rows of an operator may have come with several
        writer.write_table(table.unify_dictionaries())
    return sink.getvalue()
