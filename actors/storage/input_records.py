"""What a job recorded of its inputs when it began: ``<job>/inputs/<digest>.arrow``, a compressed Arrow file. No Ray.

Rules:

1. It is written, durably, before the claim that names it. Its name is its digest, which is checked when it is read: it
   is never changed, and writing it again does nothing.
2. Of sources of files it holds one row a file, in the order in which they are dealt; of other sources a text that they
   give for their data, if they can (``sources.protocol``, rule 4).
3. A record that only adds files to an earlier one names that and those before it: a job may go on with it from their
   checkpoints, because no file has another position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
from pyarrow import ipc

from ...coordinator.model.store import Store
from ...engine.core.errors import StorageError
from ...engine.files.listing import InputFile
from ...engine.files.paths import resolve, safe_name, storage_error
from ...engine.integrity.checksums import digest
from .damage import GO_ON, check_bytes, unreadable

FORMAT = 2
"""Of records that have versions of objects. Others are still written as 1, so that they keep their digests."""
_HEADER = b"penstock.inputs"
_FILES = pa.schema(
    [
        ("source", pa.string()),
        ("id", pa.string()),
        ("size", pa.int64()),
        ("modified", pa.int64()),
        ("content", pa.string()),
        ("added", pa.bool_()),
        ("version", pa.string()),
    ]
)
_FORMER = _FILES.remove(_FILES.get_field_index("version"))


@dataclass(frozen=True)
class RecordedInputs:
    """``files``: of each source that reads files; ``fingerprints``: of others. ``before``: rule 3."""

    files: Mapping[str, tuple[InputFile, ...]] = field(default_factory=dict)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    sources: tuple[str, ...]
    fingerprints: dict[str, str]
    before: tuple[str, ...]


_HEADERS = msgspec.json.Decoder(_Header)


def inputs_key(job: str, digest: str) -> str:
    """Where the record is, below the checkpoint folder."""
    return f"{safe_name(job)}/inputs/{digest}.arrow"


def encode_inputs(recorded: RecordedInputs) -> bytes:
    """The file's bytes."""
    rows = [(source, file) for source, files in recorded.files.items() for file in files]
    has_versions = any(file.version for _, file in rows)
    fields = _FILES if has_versions else _FORMER
    columns = [
        [source for source, _ in rows],
        *([getattr(file, name) for _, file in rows] for name in fields.names[1:]),
    ]
    header = _Header(
        format=FORMAT if has_versions else 1,
        sources=tuple(recorded.files),
        fingerprints=dict(recorded.fingerprints),
        before=tuple(recorded.before),
    )
    schema = fields.with_metadata({_HEADER: msgspec.json.encode(header)})
    arrays = [pa.array(column, each.type) for column, each in zip(columns, fields, strict=True)]
    sink = pa.BufferOutputStream()
    with ipc.new_file(sink, schema, options=ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
    return bytes(sink.getvalue())


def decode_inputs(data: bytes, place: str) -> RecordedInputs:
    """The record read back. Raises StorageError that names the ``place``."""
    try:
        table = ipc.open_file(data).read_all()
        header = _HEADERS.decode((table.schema.metadata or {})[_HEADER])
    except (pa.ArrowInvalid, KeyError, msgspec.MsgspecError) as error:
        raise unreadable(place, error, GO_ON) from error
    if header.format not in (1, FORMAT):
        message = f"{place} has format {header.format}, and this version knows {FORMAT}"
        raise StorageError(message, "use the version of Penstock that wrote it")
    files: dict[str, list[InputFile]] = {source: [] for source in header.sources}
    for source, *fields in zip(*(column.to_pylist() for column in table.columns), strict=True):
        files[source].append(InputFile(*fields))
    return RecordedInputs({source: tuple(found) for source, found in files.items()}, header.fingerprints, header.before)


def store_inputs(store: Store, job: str, recorded: RecordedInputs) -> str:
    """Write the record unless it is there; its digest. OSError becomes StorageError."""
    data = encode_inputs(recorded)
    name = digest(data)
    try:
        store.create(inputs_key(job, name), data)
    except OSError as error:
        raise storage_error("record the inputs of a job in", inputs_key(job, name), error) from error
    return name


def read_inputs(location: str, digest: str) -> RecordedInputs:
    """The record in the file at ``location``. Raises StorageError."""
    return decode_inputs(read_record(location, digest), location)


def read_record(location: str, expected: str) -> bytes:
    """The bytes of a record, which have this digest. Raises StorageError."""
    filesystem, path = resolve(location)
    try:
        with filesystem.open_input_stream(path) as stream:
            data: bytes = stream.read()
    except OSError as error:
        raise storage_error("read what was recorded of the inputs in", location, error) from error
    check_bytes(location, data, len(data), expected, GO_ON)
    return data
