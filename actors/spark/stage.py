"""Stage: a DataFrame's partitions as Arrow IPC files in the checkpoint folder, written by Spark's executors.

They lie in ``<checkpoint folder>/<job>/spark/<source>/<run>/<partition>-<task attempt>.arrow``, and beside that folder
the manifest ``<run>.json``: what was accepted, in the order of the partitions.

Rules:

1. The manifest is created whole, once, after Spark has said that all partitions are done: it is what makes a stage
   exist. Files that it does not name are nobody's (attempts that failed, or that a faster one overtook).
2. Reading needs the files alone: no Spark, no Ray, no script that is still there.
3. A stage that the log refers to is never changed, and never deleted while its checkpoint folder stays: it does so by
   the fingerprint, which is made of the schema and of the rows of every partition. Each staging has a run of its own,
   so two scripts that start one job do not disturb each other. Orphaned ones are removed (rule 7).
4. A file is compared with the digest in the manifest before it is read.
5. It is plain PySpark: any session will do, if its executors can write where the tasks read.
6. A stage is one evaluation of the frame, like a lease: what was shuffled or kept before is compared when all
   partitions have been written, and if any of it was lost the frame is planned and written anew (``evaluation``). Spark
   Connect and Spark 4 do not tell what a frame is computed from; there it is Spark's decision which rows it computes
   again.
7. A script that stages keeps a file beside its run's folder locked for as long as its process lives. A run whose file
   is not locked is orphaned: no process may still start a job with it. It is removed unless the job's log has its rows,
   whether it was completed or not. It is not used: the script may have been changed since. Runs without such a file,
   and folders whose file system knows no locks, are left alone.
"""

from __future__ import annotations

import atexit
import base64
import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, ClassVar, Generic, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import fs

from ...coordinator.model.records import decode_record, encode_record
from ...coordinator.model.store import Store
from ...engine.core.errors import ConfigurationError, PenstockError, StorageError
from ...engine.core.source import Split
from ...engine.files.durable import make_folder, sync_folder
from ...engine.files.object_store import escaped
from ...engine.files.paths import DataFile, absolute, is_local, resolve, safe_name, storage_error
from ...engine.plan.rounds import CHUNK_ROWS
from ..storage.damage import FROM_A_COPY, decoding
from ..storage.stores import open_store
from .evaluation import ATTEMPTS, OTHER_ROWS, Evaluation, bounded_batches, can_be_planned_before, planned_before
from .failures import cause_of, detail_of, remedy_of, watched
from .parquet_stage import why_not, written_by_spark
from .staged_splits import StagedPartition, split_of
from .store_arguments import store_arguments
from .types import by_position
from .writing import ANSWER, make_writer

_locks: list[IO[str]] = []
"""Locked until this process ends: the system gives such locks to processes."""


def lock_run(above: str, run: str) -> None:
    """The run in the folder ``above`` belongs to this process."""
    place = _lock_file(Path(above), run)
    begun = place.with_suffix(".begun")
    file = open(begun, "w")  # noqa: SIM115 rule 7
    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    begun.rename(place)  # not before it is locked, or another run would take it for an orphan
    _locks.append(file)


def unlock_run(above: str, run: str) -> None:
    """The run has failed, and left nothing."""
    with suppress(OSError):
        _lock_file(Path(above), run).unlink()


def remove_orphans(above: str, is_needed: Callable[[str], bool]) -> None:
    """Remove orphaned runs; ``is_needed``: whether the log refers to this one."""
    for path in Path(above).glob(".*.alive"):
        run = path.name.removeprefix(".").removesuffix(".alive")
        with suppress(OSError), open(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_needed(run):
                Path(above, f"{run}.json").unlink(missing_ok=True)  # which is what makes a stage exist
                shutil.rmtree(Path(above, run), ignore_errors=True)
                path.unlink()


def _lock_file(above: Path, run: str) -> Path:
    return above / f".{run}.alive"


STAGED = "staged:"
"""What the fingerprint of a staged source begins with."""

LEASED = "leased:"
"""And that of a leased one."""

FORMAT = 2
"""Version of the manifest's form. 2: sealed."""

_log = logging.getLogger("penstock.spark")


class StageManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one staging came to. ``schema``: as Arrow serialises it, in base64."""

    format: int = FORMAT
    run: str
    source: str
    schema: str
    partitions: tuple[StagedPartition, ...]
    fingerprint: str

    @property
    def rows(self) -> int:
        """Of all partitions."""
        return sum(each.rows for each in self.partitions)

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(each.bytes for each in self.partitions)


_MANIFESTS = msgspec.json.Decoder(StageManifest)


@dataclass(frozen=True)
class StagedSource:
    """A staged DataFrame: one partition, one split."""

    schema: pa.Schema = field(hash=False)
    manifest: StageManifest = field(hash=False)
    place: str
    """The address of the run's folder."""
    kind: str = "spark"
    prunable: ClassVar[bool] = True

    @property
    def fingerprint(self) -> str:
        """Equal for equal rows in equal partitions."""
        return _reference(self.manifest.fingerprint)

    def describe(self) -> str:
        return describe_frame(self.schema)

    def splits(self) -> Sequence[Split]:
        """Raises StorageError if a file is gone or has another size."""
        filesystem, folder = resolve(self.place)
        infos = filesystem.get_file_info(fs.FileSelector(folder, allow_not_found=True))
        sizes = {info.base_name: info.size for info in infos}
        for each in self.manifest.partitions:
            if each.file and sizes.get(each.file) != each.bytes:
                found = "is gone" if each.file not in sizes else f"has {sizes[each.file]} bytes instead of {each.bytes}"
                remedy = "restore the checkpoint folder from a copy, or start over with an empty one"
                raise StorageError(f"the staged partition {self.place}/{each.file} {found}", remedy)
        files = [
            DataFile(filesystem, f"{folder}/{each.file}", each.bytes, f"{self.kind}/{position}")
            for position, each in enumerate(self.manifest.partitions)
        ]
        return [split_of(each, file, self.schema) for file, each in zip(files, self.manifest.partitions, strict=True)]


def describe_frame(schema: pa.Schema) -> str:
    """A frame for ``explain`` and the flow's fingerprint: however it is handed over."""
    return f"frame with {', '.join(schema.names)}"


def stage(
    frame: Any, schema: pa.Schema, folder: str, job: str, source: str, description: str | None = None
) -> StagedSource:
    """Let Spark write the frame's partitions. ``description``: as in :func:`stage_with`. Raises ConfigurationError if
    it cannot compute or write them."""

    def write(place: str) -> tuple[StagedPartition, ...]:
        return _written(frame, schema, place, source)

    return stage_with(write, schema, folder, job, source, description=description)


def stage_with(
    write: Callable[[str], tuple[StagedPartition, ...]],
    schema: pa.Schema,
    folder: str,
    job: str,
    source: str,
    system: str = "spark",
    kind: str = "spark",
    description: str | None = None,
) -> StagedSource:
    """Stage what ``write`` writes into the folder that it is given. ``description``: what the job's log says of its
    data; stages that it does not speak of, and whose scripts are gone, are removed. None: nothing is."""
    store = open_store(folder)
    run, root = uuid.uuid4().hex, _root(job, source, system)
    url = absolute(folder)
    address = f"{url.rstrip('/')}/{root}/{run}"
    store_arguments(address)  # or it is refused before anything is computed
    filesystem, place = resolve(address)
    above = os.path.dirname(place)
    started = time.monotonic()
    try:
        make_folder(filesystem, place)
        if is_local(filesystem):  # elsewhere nothing tells whose script is gone
            if description is not None:
                remove_orphans(above, lambda run: _is_in_log(store, f"{root}/{run}.json", description))
            lock_run(above, run)
        partitions = write(escaped(address))
        _check_seen(filesystem, place, partitions)
    except BaseException as error:
        with suppress(OSError):
            filesystem.delete_dir(place)
        unlock_run(above, run)
        if isinstance(error, OSError):
            raise storage_error("stage partitions in", place, error) from error
        raise
    accepted = {each.file for each in partitions}
    for info in filesystem.get_file_info(fs.FileSelector(place, allow_not_found=True)):
        if info.base_name not in accepted:
            with suppress(OSError):  # an attempt that is being killed may remove it itself
                filesystem.delete_file(info.path)
    text = base64.b64encode(bytes(schema.serialize())).decode()
    manifest = StageManifest(
        run=run, source=source, schema=text, partitions=partitions, fingerprint=_fingerprint(schema, partitions)
    )
    try:
        sync_folder(filesystem, place)
        store.create(f"{root}/{run}.json", encode_record(manifest))
    except OSError as error:
        raise storage_error("write the manifest of a stage into", url, error) from error
    seconds = time.monotonic() - started
    _log.info("staged %d partitions, %.1f MB, in %.1f s", len(partitions), manifest.bytes / 1e6, seconds)
    return StagedSource(schema, manifest, address, kind)


def find_stage(
    folder: str, job: str, source: str, description: str, system: str = "spark", kind: str = "spark"
) -> StagedSource | None:
    """The stage that a job's log speaks of in ``description``, if there is one."""
    return stage_in(f"{absolute(folder).rstrip('/')}/{safe_name(job)}", source, description, system, kind)


def stage_in(
    root: str, source: str, description: str, system: str = "spark", kind: str = "spark"
) -> StagedSource | None:
    """The same, below a job's folder or a savepoint's. Raises StorageError."""
    if not description:
        return None
    filesystem, inner = resolve(root)
    above = f"{system}/{safe_name(source)}"
    place = f"{(inner if is_local(filesystem) else root).rstrip('/')}/{above}"
    try:
        infos = filesystem.get_file_info(fs.FileSelector(f"{inner.rstrip('/')}/{above}", allow_not_found=True))
        for info in infos:
            if not info.is_file or info.base_name.startswith(".") or info.extension != "json":
                continue
            with filesystem.open_input_stream(info.path) as stream:
                manifest = decode_stage(f"{above}/{info.base_name}", stream.read())
            if _reference(manifest.fingerprint) in description:
                schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(manifest.schema)))
                return StagedSource(schema, manifest, f"{place}/{manifest.run}", kind)
    except OSError as error:
        raise storage_error("look for what was staged in", root, error) from error
    return None


def _is_in_log(store: Store, key: str, description: str) -> bool:
    data = store.read(key)
    return data is not None and _reference(decode_stage(key, data).fingerprint) in description


def _root(job: str, source: str, system: str) -> str:
    return f"{safe_name(job)}/{system}/{safe_name(source)}"


def _reference(fingerprint: str) -> str:
    return f"{STAGED}{fingerprint}"


def decode_stage(key: str, data: bytes) -> StageManifest:
    """The manifest under this key. Raises DamagedFileError."""
    with decoding(f"{key} in the checkpoint folder", f"{FROM_A_COPY}, or start over with an empty checkpoint folder"):
        return decode_record(data, _MANIFESTS, FORMAT)


def _fingerprint(schema: pa.Schema, partitions: Sequence[StagedPartition]) -> str:
    digest = hashlib.sha256(schema.to_string().encode())
    for each in partitions:
        digest.update(f"\n{each.rows} {each.digest}".encode())
    return digest.hexdigest()[:32]


def _written(frame: Any, schema: pa.Schema, place: str, source: str) -> tuple[StagedPartition, ...]:
    """What each partition came to, by the answers of the attempts that Spark accepted."""
    if not schema.names:  # PySpark would lose the number of rows
        from pyspark.sql import functions

        frame = frame.select(functions.lit(True).alias("rows"))
    reason = why_not(frame, schema, place)
    try:
        return watched(frame, partial(_rows_in, frame, schema, place, reason), f"staged the rows of {source}")
    except PenstockError:
        raise
    except Exception as error:
        spark = (
            "see the message; the frame must compute in Spark (try frame.count()), and its executors must have pyarrow "
            f"and be able to write to {place}{_who_asks(place)}"
        )
        message, remedy = f"Spark could not stage the DataFrame: {cause_of(error)}", remedy_of(error, otherwise=spark)
        raise ConfigurationError(message, remedy, detail=detail_of(error)) from error


def _rows_in(frame: Any, schema: pa.Schema, place: str, reason: str) -> tuple[StagedPartition, ...]:
    """The partitions, written by Spark itself, or by its Python workers for this ``reason``."""
    if reason:
        _log.debug("the frame is staged through Python workers: %s", reason)
        found = _by_workers(frame, schema, place)
    else:
        found = _in_one_evaluation(
            frame, lambda planned: _Work(planned, partial(written_by_spark, planned, schema, place))
        )
    # where all partitions are empty, Spark may find out that there is nothing to do and ask nobody
    return found or (StagedPartition("", 0, 0, ""),) * _partitions_of(frame)


def _by_workers(frame: Any, schema: pa.Schema, place: str) -> tuple[StagedPartition, ...]:
    """What each partition came to, by the answers of the attempts that Spark accepted."""
    writer = make_writer(place, bytes(schema.serialize()), CHUNK_ROWS, store=store_arguments(place))

    def begun(planned: Any) -> _Work[list[Any]]:
        answers = planned.mapInArrow(writer, ANSWER)
        return _Work(answers, lambda: list(answers.collect()), lambda: bounded_batches(frame, schema))

    found = {
        row["partition"]: StagedPartition(row["file"], row["rows"], row["bytes"], row["digest"])
        for row in _in_one_evaluation(frame, begun)
    }
    return tuple(found.get(partition, StagedPartition("", 0, 0, "")) for partition in range(1 + max(found, default=-1)))


def _who_asks(place: str) -> str:
    """How executors are told who they are to a store, where it is not we who tell them."""
    if store_arguments(place) is not None:
        return ""
    names = {"gs": "GOOGLE_APPLICATION_CREDENTIALS", "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"}
    name = names.get(place.partition("://")[0])
    return f": set {name} where they run, for this script's environment is not theirs" if name else ""


def _partitions_of(frame: Any) -> int:
    """How many partitions a frame without rows has; 0 where Spark Connect does not tell."""
    return int(frame.rdd.getNumPartitions()) if hasattr(frame, "_jdf") else 0


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Work(Generic[T]):
    """What is to be evaluated, how it is computed, and what holds while both are done."""

    evaluated: Any
    compute: Callable[[], T]
    during: Callable[[], AbstractContextManager[None]] = nullcontext


def _in_one_evaluation(frame: Any, begun: Callable[[Any], _Work[T]]) -> T:
    """What the work on the frame's rows gives, all of one evaluation (rule 6)."""
    for _ in range(ATTEMPTS):
        work = begun(planned_before(by_position(frame)))
        with work.during():
            if not can_be_planned_before(frame):
                return work.compute()
            evaluation = Evaluation(frame.sparkSession.sparkContext, work.evaluated.rdd._jrdd.rdd())
            evaluation.begin()
            found = work.compute()
        if evaluation.is_whole():
            return found
        if evaluation.keeps_rows:
            raise ConfigurationError(
                OTHER_ROWS.format("some of them are kept (cache, persist)"),
                "run the same command again; if executors go on dying, write what is kept to files and hand those over",
            )
        evaluation.discard()
        _log.warning("an executor of Spark died amid a stage, and rows that it had shuffled: all is computed anew")
    raise ConfigurationError(
        "executors of Spark died again and again amid a stage", "give them more memory, or use more partitions"
    )


def _check_seen(filesystem: fs.FileSystem, place: str, partitions: Sequence[StagedPartition]) -> None:
    """The files that the executors wrote are here, too."""
    seen = {info.base_name for info in filesystem.get_file_info(fs.FileSelector(place, allow_not_found=True))}
    missing = [each.file for each in partitions if each.file and each.file not in seen]
    if missing:
        raise ConfigurationError(
            f"Spark has staged {len(partitions)} partitions, and {len(missing)} of them are not in {place}",
            "the checkpoint folder must be on storage that Spark's executors and this process share",
        )


def temporary_folder() -> str:
    """For a job that keeps nothing: a folder that goes with this process."""
    folder = tempfile.mkdtemp(prefix="penstock-stage-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
