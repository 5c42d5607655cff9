"""What must be there after a power cut: whatever the log says is."""

from __future__ import annotations

from pathlib import Path

from penstock.actors.claims.savepoints import holds_savepoint, prepared_for_savepoints, read_savepoint
from penstock.actors.storage.log import read_log
from penstock.actors.storage.snapshots import SnapshotFiles
from penstock.actors.storage.stores import FileStore
from penstock.coordinator.model.manifest import Manifest


def check_what_the_log_says(state: Path, job: str, outputs: dict[str, Path], savepoint: Path | None = None) -> bool:
    """Every entry can be read; the newest checkpoint has its files, and its sinks theirs; a savepoint that stands is
    whole. ``outputs``: the folder of each sink. Whether there is a checkpoint."""
    manifests = [entry for entry in read_log(FileStore(state), job) if isinstance(entry, Manifest)]
    if manifests:
        _check_files(manifests[-1], str(state), job)
        _check_prepared(manifests[-1], outputs)
    for noted in prepared_for_savepoints(str(state), job):
        assert noted.tasks
    if savepoint is not None and holds_savepoint(str(savepoint)):
        _check_files(read_savepoint(str(savepoint)), str(savepoint), job)
    return bool(manifests)


def _check_files(manifest: Manifest, root: str, job: str) -> None:
    files = SnapshotFiles(root, job, inline=0)
    for task in manifest.tasks:
        files.read(task.state)
        files.read_flights(task.state)


def _check_prepared(manifest: Manifest, outputs: dict[str, Path]) -> None:
    listed = [committable for task in manifest.tasks for committable in task.committables]
    for committable in (*listed, *(committable for _, committable in manifest.uncommitted)):
        folder = outputs[committable.operator]
        for file in committable.payload["files"]:
            staged, final = folder / file["staged"], folder / file["final"]
            found = staged if staged.exists() else final
            assert found.stat().st_size == file["bytes"], found
