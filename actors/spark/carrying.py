"""Carries what was staged into savepoints, and into the folder of a job that starts from one.

Rules:

1. A stage lies at the same place below a job's folder and below a savepoint's (``<system>/<source>/<run>``). It is
   never changed, so its files are linked where that is possible, and else copied. The manifest comes last.
2. A job that starts from a snapshot does not ask Spark: the rows are those that the snapshot was taken over. Where that
   had leased them, or staged nothing for a source that it knew, nothing can be restored.
3. Carrying again does no harm: files that are there already, in their size, stay.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from pyarrow import fs

from ...coordinator.model.records import encode_record
from ...engine.core.errors import ConfigurationError, StorageError
from ...engine.files.durable import make_durable, make_folder, put_file
from ...engine.files.paths import is_local, resolve, safe_name, storage_error
from ...engine.flow.handoff import Destination
from .stage import LEASED, STAGED, StagedSource, decode_stage, find_stage, stage_in

SYSTEMS = ("spark", "ray")
"""Whose rows are staged: the names of the folders."""


def carry_stages(root: str, target: str, fingerprints: Mapping[str, str]) -> None:
    """All stages that these fingerprints of sources speak of, from one job's folder to a savepoint's. Raises
    StorageError."""
    for source, told in fingerprints.items():
        if told.startswith(STAGED):
            found = ((system, stage_in(root, source, told, system)) for system in SYSTEMS)
            system, staged = next(((name, each) for name, each in found if each is not None), ("", None))
            if staged is None:
                raise StorageError(f"what was staged for {source} is gone from {root}", "restore it from a copy")
            _carry(staged, target, source, system)


def remove_stages(filesystem: fs.FileSystem, folder: str) -> None:
    """Those below a savepoint's folder that is not one any more: what their manifests name, and folders that are empty
    then. The folder is a user's, and may hold other things."""
    for system in SYSTEMS:
        root = f"{folder}/{system}"
        infos = filesystem.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
        for info in infos:
            if info.is_file and info.extension == "json":
                _remove_stage(filesystem, info.path)
        folders = sorted((each.path for each in infos if each.type == fs.FileType.Directory), reverse=True)
        for each in (*folders, root):
            with suppress(FileNotFoundError):
                if not filesystem.get_file_info(fs.FileSelector(each)):
                    filesystem.delete_dir(each)


def _remove_stage(filesystem: fs.FileSystem, path: str) -> None:
    """The stage of which this is the manifest, if it is one."""
    with filesystem.open_input_stream(path) as stream:
        data = stream.read()
    try:
        manifest = decode_stage(path, data)
    except StorageError:
        return
    run = f"{os.path.dirname(path)}/{manifest.run}"
    for name in (path, *(f"{run}/{each.file}" for each in manifest.partitions if each.file)):
        with suppress(FileNotFoundError):
            filesystem.delete_file(name)


def stage_before(to: Destination, source: str, system: str = "spark", kind: str = "spark") -> StagedSource | None:
    """What was staged for the run, or the snapshot, that this job goes on from; None: there is none, and rows may be
    handed over anew. Raises ConfigurationError if there must be one."""
    if to.folder is None:
        return None
    found = find_stage(to.folder, to.job, source, to.description, system, kind)
    if found is not None:
        return found
    told = to.recorded.get(source, "")
    if to.snapshot and told.startswith(STAGED):
        found = stage_in(to.snapshot, source, told, system, kind)
        if found is not None:
            return _carry(found, f"{to.folder.rstrip('/')}/{safe_name(to.job)}", source, system)
        gone = f"what was staged for {source} is not in the snapshot {to.snapshot}"
    elif told.startswith(LEASED):
        origin = to.snapshot or f"the checkpoint of job {to.job!r}"
        gone = f"{origin} was taken while {source} was leased: its rows ended with that script"
    elif to.resuming and not to.snapshot:
        gone = f"job {to.job!r} has a checkpoint, and what was staged for it is gone from {to.folder}"
    else:
        return None
    remedy = "restore the folder from a copy, or start over with an empty checkpoint folder and new outputs"
    raise ConfigurationError(gone, remedy)


def _carry(staged: StagedSource, target: str, source: str, system: str) -> StagedSource:
    """The same stage below ``target``."""
    origin, place = resolve(staged.place)
    filesystem, folder = resolve(target)
    above = f"{folder.rstrip('/')}/{system}/{safe_name(source)}/{staged.manifest.run}"
    try:
        make_folder(filesystem, above)
        paths = []
        for each in staged.manifest.partitions:
            if each.file:
                paths.append(f"{above}/{each.file}")
                _copy(origin, f"{place}/{each.file}", filesystem, paths[-1], each.bytes)
        make_durable(filesystem, *paths)
        put_file(filesystem, f"{above}.json", encode_record(staged.manifest))
    except OSError as error:
        raise storage_error("carry what was staged into", target, error) from error
    shown = above if is_local(filesystem) else f"{target.rstrip('/')}{above.removeprefix(folder.rstrip('/'))}"
    return StagedSource(staged.schema, staged.manifest, shown, staged.kind)


def _copy(origin: fs.FileSystem, source: str, filesystem: fs.FileSystem, target: str, size: int) -> None:
    there = filesystem.get_file_info(target)
    if there.type == fs.FileType.File and there.size == size:
        return
    if is_local(origin) and is_local(filesystem):
        with suppress(OSError):  # another disk, or one without links
            os.link(source, target)
            return
    with origin.open_input_stream(source) as read, filesystem.open_output_stream(target) as written:
        while piece := read.read(1 << 24):
            written.write(piece)
