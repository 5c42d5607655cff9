"""Whose an output folder is, which files in it are whose, and how many there should be.

    out/part-<operator>-<subtask>-<checkpoint>-<n>-<uuid>.parquet    committed: the data set; or .csv, .jsonl; or in
                                                                     folders, key=value
    out/_staging/<uuid>/<claim>/…                                    prepared or being written: hidden
    out/_penstock/owners/<n>.json                                    whose the folder is, from then on
    out/_penstock/append/<uuid>/<n>.json                             in a folder to append to: who goes on with a part
    out/_penstock/retired/<uuid>/<n>.json                            up to where a job's files may be gone

Rules:

1. The owners of a folder are a dense sequence of entries, each created if absent and never changed; the newest counts.
   It says whether the folder is one job's (*exclusive*) or any number of jobs add to it (*append*). In the latter each
   job, with those whose snapshots it goes on from, has a sequence of its own, named after the first of them.
2. An owner is a job's UUID, its generation and its coordinator's claim. The name of the job is for people.
3. A file's name ends with the UUID of its job, so nobody's files are taken for somebody else's.
4. What a job has written is known by its *totals*: the number of its files, their bytes, and the sum of the hashes of
   their names. Sinks keep them in their state, so they are part of the cut.
5. Nothing here creates an entry: that takes a store that creates if absent (``ownership`` in ``actors``).
6. Who *overwrites* a folder of its own replaces the files of the owners before it, and nothing else: a file that no
   owner of the folder has written is foreign to it, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from pyarrow import fs

from ..core.errors import ConfigurationError, DamagedFileError, StorageError
from ..core.identity import CheckpointId, JobIdentity
from ..files.paths import is_hidden, is_local, safe_name, storage_error
from ..integrity.checksums import digest, sealed, unsealed

FORMAT = 2
"""Version of the form of owners and of what was retired. 1 was a file ``_penstock.json`` with the name of the job."""
FORMER_MARKER = "_penstock.json"
MARKER = "_penstock"
OWNERS = f"{MARKER}/owners/"
MODULUS = 1 << 64
ENDINGS = (".parquet", *(kind + codec for kind in (".csv", ".jsonl") for codec in ("", ".gz", ".zst")))
"""Of names of files that sinks write."""

Mode = Literal["exclusive", "append"]
WriteMode = Literal["new", "append", "overwrite"]
"""What a sink does with data that are there: it wants none, adds to them, or replaces them."""


@dataclass(frozen=True, slots=True)
class Owner:
    """One entry of a sequence of owners. ``log``: where the log of the job lies; ``lineage``: the job and those whose
    snapshots it goes on from, the oldest first. In the folder's own sequence an entry of mode "append" says only that.
    """

    mode: Mode
    uuid: str = ""
    generation: int = 0
    claim: str = ""
    lineage: tuple[str, ...] = ()
    job: str = ""
    operator: str = ""
    log: str = ""
    format: int = FORMAT

    def is_of(self, identity: JobIdentity) -> bool:
        """Whether it is this coordinator of the job."""
        return (self.uuid, self.generation, self.claim) == (identity.uuid, identity.generation, identity.claim)


@dataclass(frozen=True, slots=True)
class Totals:
    """What some files are in all. ``names``: the sum of the hashes of their names, modulo 2**64."""

    files: int = 0
    bytes: int = 0
    names: int = 0

    def add(self, name: str, size: int) -> Totals:
        """One file more."""
        return Totals(self.files + 1, self.bytes + size, (self.names + int(digest(name.encode())[:16], 16)) % MODULUS)

    def __sub__(self, other: Totals) -> Totals:
        return Totals(self.files - other.files, self.bytes - other.bytes, (self.names - other.names) % MODULUS)

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.files + other.files, self.bytes + other.bytes, (self.names + other.names) % MODULUS)


@dataclass(frozen=True, slots=True)
class Retired:
    """What may be gone: the files of the job ``uuid`` of all checkpoints up to ``up_to``, and all of ``ancestors``,
    whose checkpoints are numbered for themselves. ``totals``: what all that was retired so far came to."""

    uuid: str
    up_to: CheckpointId
    ancestors: tuple[str, ...]
    totals: Totals

    def covers(self, name: str) -> bool:
        """Whether the file of this name may be gone."""
        part = part_of(name, 0)
        if part is None:
            return False
        if part.uuid == safe_name(self.uuid):
            return part.checkpoint <= self.up_to
        return part.uuid in map(safe_name, self.ancestors)


@dataclass(frozen=True, slots=True)
class PartFile:
    """A committed file, by its name, which is its path within the folder."""

    name: str
    size: int
    checkpoint: CheckpointId
    uuid: str


def part_name(
    operator: str, subtask: int, checkpoint: CheckpointId, number: int, uuid: str, ending: str = ENDINGS[0]
) -> str:
    """The name of a committed file. Checkpoints are padded, so that the order of names is theirs."""
    cut = f"{checkpoint.generation:04d}.{checkpoint.number:06d}"
    return f"part-{safe_name(operator)}-{subtask:05d}-{cut}-{number:05d}-{safe_name(uuid)}{ending}"


def _stem(name: str) -> str | None:
    """The name of a file as a sink gave it, without folders and ending."""
    base = name.rpartition("/")[2]
    ending = next((each for each in ENDINGS if base.endswith(each)), None)
    return None if ending is None or not base.startswith("part-") else base.removesuffix(ending)


def part_of(name: str, size: int) -> PartFile | None:
    """What the name of a file says; None if it is not one that a sink gave."""
    stem = _stem(name)
    parts = [] if stem is None else stem.rsplit("-", 4)
    if len(parts) != 5:
        return None
    generation, _, number = parts[2].partition(".")
    if not (generation.isdigit() and number.isdigit()):
        return None
    return PartFile(name, size, CheckpointId(int(generation), int(number)), parts[4])


def writer_of(name: str) -> str:
    """The sink that wrote a committed file, as it stands in the file's name."""
    return (_stem(name) or "").rsplit("-", 4)[0].removeprefix("part-")


class OutputFolder:
    """Reads what a folder says of itself. OSError of the file system comes as StorageError. ``overwrites``: files of
    its former owners are not foreign to who asks (rule 6)."""

    def __init__(self, filesystem: fs.FileSystem, folder: str, overwrites: bool = False) -> None:
        self.filesystem = filesystem
        self.folder = folder.rstrip("/")
        self.overwrites = overwrites

    def owner(self) -> tuple[int, Owner | None]:
        """The newest owner of the folder, and the number of the next entry."""
        return self.newest(OWNERS)

    def newest(self, prefix: str) -> tuple[int, Owner | None]:
        """The newest entry below ``prefix``, and the number of the next one."""
        name, found = self._newest(prefix)
        return (
            (0, None) if found is None else (int(name) + 1, _decode_owner(f"{self.folder}/{prefix}{name}.json", found))
        )

    def next_number(self, prefix: str) -> int:
        """The number of the next entry below ``prefix``."""
        name, found = self._newest(prefix)
        return 0 if found is None else int(name) + 1

    def retired(self, lineage: Sequence[str]) -> Retired | None:
        """What of these jobs may be gone. What a job has retired counts in what its successors had retired before."""
        for uuid in reversed(lineage):
            name, data = self._newest(retired_prefix(uuid))
            if data is not None:
                return _decode_retired(f"{self.folder}/{retired_prefix(uuid)}{name}.json", data)
        return None

    def lineage_of(self, uuid: str) -> tuple[str, ...]:
        """The jobs whose rows are also those of the job ``uuid``, as far as the folder knows them."""
        _, owner = self.owner()
        if owner is not None and owner.mode == "exclusive":
            return owner.lineage if uuid in owner.lineage else (uuid,)
        for root in self._folders(f"{MARKER}/append"):
            _, owner = self.newest(append_prefix(root))
            if owner is not None and uuid in owner.lineage:
                return owner.lineage
        return (uuid,)

    def data_files(self) -> list[tuple[str, int]]:
        """Name and size of every file that a reader of the folder sees, itself or below it."""
        selector = fs.FileSelector(self.folder, recursive=True, allow_not_found=True)
        try:
            found = self.filesystem.get_file_info(selector)
        except OSError as error:
            raise storage_error("list the output folder", self.folder, error) from error
        root = self.folder + "/"
        named = ((each.path.removeprefix(root), each) for each in found if each.type == fs.FileType.File)
        return sorted((name, each.size) for name, each in named if not is_hidden(name))

    def parts(self, lineage: Collection[str]) -> tuple[list[PartFile], list[str]]:
        """The committed files of these jobs, and the names of all that are foreign to them."""
        mine, foreign = list[PartFile](), list[str]()
        wanted = {safe_name(uuid) for uuid in lineage}
        for name, size in self.data_files():
            part = part_of(name, size)
            if part is not None and part.uuid in wanted:
                mine.append(part)
            else:
                foreign.append(name)
        return mine, self.told_apart(foreign, lineage)[1]

    def others(self, lineage: Collection[str]) -> list[str]:
        """The names of all data files that are not of these jobs; cheaper than ``parts``, for each commit asks."""
        ends = tuple(f"-{safe_name(uuid)}{ending}" for uuid in lineage for ending in ENDINGS)
        names = ((name, name.rpartition("/")[2]) for name in self._data_names())
        return [name for name, base in names if not (base.startswith("part-") and base.endswith(ends))]

    def told_apart(self, others: Sequence[str], lineage: Collection[str]) -> tuple[list[str], list[str]]:
        """Of files that are not of these jobs: those that they replace, and those that are foreign to them."""
        if not (others and self.overwrites):
            return [], list(others)
        former = {safe_name(uuid) for uuid in self._former() if uuid not in lineage}
        replaced = [name for name in others if (part := part_of(name, 0)) is not None and part.uuid in former]
        return replaced, sorted(set(others) - set(replaced))

    def _former(self) -> set[str]:
        """All jobs that the folder has belonged to."""
        found = set[str]()
        for name in self._names(f"{self.folder}/{OWNERS}"):
            path = f"{self.folder}/{OWNERS}{name}"
            try:
                found.update(_decode_owner(path, self._read(path)).lineage)
            except OSError as error:
                raise storage_error("read", path, error) from error
        return found

    def _data_names(self) -> list[str]:
        if not is_local(self.filesystem):
            return [name for name, _ in self.data_files()]
        found: list[str] = []
        try:
            for folder, folders, names in os.walk(self.folder):
                folders[:] = [name for name in folders if not is_hidden(name)]
                inside = "" if folder == self.folder else f"{os.path.relpath(folder, self.folder)}/"
                found += [inside + name for name in names if name[0] not in "._"]
        except OSError as error:
            raise storage_error("list the output folder", self.folder, error) from error
        return found

    def has(self, name: str) -> bool:
        """Whether there is a file of this name, relative to the folder."""
        return bool(self._info(f"{self.folder}/{name}").type == fs.FileType.File)

    def refuse_former_marker(self) -> None:
        """Raise ConfigurationError if a version before UUIDs has written here."""
        path = f"{self.folder}/{FORMER_MARKER}"
        if self._info(path).type == fs.FileType.File:
            raise ConfigurationError(
                f"the output folder {self.folder} has a marker of format 1, which knows jobs by their names only; this "
                f"version writes format {FORMAT}",
                f"choose another folder; or, if no job of the older version goes on, delete {FORMER_MARKER} there and "
                'add to its files with mode="append"',
            )

    def _newest(self, prefix: str) -> tuple[str, bytes | None]:
        names = [name for name in self._names(f"{self.folder}/{prefix}") if name.endswith(".json")]
        newest = max(names, default="")
        path = f"{self.folder}/{prefix}{newest}"
        try:
            return newest.removesuffix(".json"), self._read(path) if newest else None
        except OSError as error:
            raise storage_error("read", path, error) from error

    def _read(self, path: str) -> bytes:
        with self.filesystem.open_input_stream(path) as stream:
            data: bytes = stream.read()
        return data

    def _names(self, folder: str) -> list[str]:
        try:
            found = self.filesystem.get_file_info(fs.FileSelector(folder.rstrip("/"), allow_not_found=True))
        except OSError as error:
            raise storage_error("list", folder, error) from error
        return [each.base_name for each in found if not each.base_name.startswith(".")]

    def _folders(self, folder: str) -> list[str]:
        return sorted(self._names(f"{self.folder}/{folder}"))

    def _info(self, path: str) -> fs.FileInfo:
        try:
            return self.filesystem.get_file_info(path)
        except OSError as error:
            raise storage_error("look at", path, error) from error


def append_prefix(root: str) -> str:
    """Where the owners of a part of a folder to append to are, by the first job of their lineage."""
    return f"{MARKER}/append/{safe_name(root)}/"


def retired_prefix(uuid: str) -> str:
    """Where it stands which files of a job may be gone."""
    return f"{MARKER}/retired/{safe_name(uuid)}/"


def entry_name(prefix: str, number: int) -> str:
    """The key of an entry."""
    return f"{prefix}{number:012d}.json"


def encode_owner(owner: Owner) -> bytes:
    """An owner as JSON, with its digest."""
    return _sealed(asdict(owner))


def encode_retired(retired: Retired) -> bytes:
    """What was retired as JSON, with its digest."""
    at = [retired.up_to.generation, retired.up_to.number]
    said = {"uuid": retired.uuid, "up_to": at, "ancestors": retired.ancestors, "totals": asdict(retired.totals)}
    return _sealed({"format": FORMAT, **said})


def _decode_owner(path: str, data: bytes) -> Owner:
    said = _opened(path, data)
    return replace(Owner(**said), lineage=tuple(said["lineage"]))


def _decode_retired(path: str, data: bytes) -> Retired:
    said = _opened(path, data)
    totals = Totals(**said["totals"])
    return Retired(said["uuid"], CheckpointId(*said["up_to"]), tuple(said["ancestors"]), totals)


def _sealed(said: dict[str, Any]) -> bytes:
    return sealed(json.dumps(said).encode())


def _opened(path: str, data: bytes) -> dict[str, Any]:
    remedy = "restore it from a copy; or, if no job is to go on with this output, choose another folder"
    try:
        said: dict[str, Any] = json.loads(unsealed(data))
    except ValueError as error:
        raise DamagedFileError(f"{path} is damaged: {error}", remedy) from error
    if said["format"] != FORMAT:
        raise StorageError(f"{path} has format {said['format']}, and this version knows {FORMAT}", remedy)
    return said


def totals_of(parts: Iterable[PartFile]) -> Totals:
    """The totals of some files."""
    total = Totals()
    for part in parts:
        total = total.add(part.name, part.size)
    return total
