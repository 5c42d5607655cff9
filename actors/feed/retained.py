"""What a job's folder holds that a batch can be rebuilt from: its checkpoints, read only.

Rules:

1. Nothing is written there, no claim is taken, and what is used is copied first: a job that runs meanwhile deletes
   checkpoints whenever it likes. A checkpoint that is gone by then is passed over.
2. A checkpoint serves for a batch if its feed has kept the batch's first row, or has not come to it. The nearest one is
   the one whose feed has come farthest. Batches are counted over all epochs.
3. A copy is one of the part of the flow that leads to the feed: state of other operators is left out, and so is
   everything that sinks have prepared. Tasks that had finished read their ends again.
4. A checkpoint with rows in flight serves nobody: they belong to the job's own plan, and a batch without them would be
   another one. So a job that takes cuts is replayed from the aligned ones that it has, or from its beginning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from msgspec.structs import replace

from ...coordinator.model.manifest import Claim, LogEntry, Manifest, TaskState, reweights_in
from ...coordinator.restore.finished_check import FinishedState
from ...coordinator.restore.stored_channels import flights
from ...coordinator.restore.stored_state import Snapshot
from ...engine.core.errors import ConfigurationError, StorageError
from ...engine.core.identity import Reweight, StateHandle
from ...engine.feed.state import read_state
from ...engine.integrity.checksums import digest
from ...engine.plan.plan import JobPlan
from ..audit.audit import state_of
from ..storage.digest_files import recorded_feeds
from ..storage.input_records import RecordedInputs, inputs_key, read_inputs
from ..storage.log import read_log_in
from ..storage.snapshots import SnapshotFiles
from ..storage.state_file import to_ipc
from ..storage.stores import checkpoint_folder, is_gone

Start: TypeAlias = Snapshot
"""A copy of a checkpoint that a job of its own can begin with."""

Adapt = Callable[[str, pa.Table], pa.Table | None]
"""The state of an operator for the flow that goes on from it; None: it cannot be used."""


@dataclass(frozen=True, slots=True)
class Retained:
    """A checkpoint. Its feed gives the batches from ``first_batch`` on, and holds no row of ``next_batch`` yet; it has
    come to ``position``."""

    manifest: Manifest
    root: str
    position: int = 0
    first_batch: int = 0
    next_batch: int = 0


class JobFolder:
    """The log of one job, as it was when this was made. Raises ConfigurationError if there is none."""

    def __init__(self, folder: str | os.PathLike[str], job: str) -> None:
        self.folder = checkpoint_folder(folder)
        self.job = job
        if is_gone(self.folder):
            raise ConfigurationError(f"the checkpoint folder {self.folder} does not exist", "check its path")
        self._entries: Sequence[LogEntry] = read_log_in(self.folder, job)
        if not self._entries:
            others = sorted({name for name, _ in recorded_feeds(self.folder)})
            raise ConfigurationError(
                f"the checkpoint folder {self.folder} holds nothing of a job {job!r}",
                f"it has: {', '.join(others) or 'no feeds'}; name the job that was run",
            )

    @property
    def description(self) -> str:
        """Flow and data of the last run, in words."""
        return next((entry.description for entry in reversed(self._entries) if isinstance(entry, Claim)), "")

    @property
    def skipped(self) -> frozenset[tuple[str, str]]:
        """Source and id of the splits that are not read any more."""
        last = next((entry for entry in reversed(self._entries) if isinstance(entry, Manifest)), None)
        return frozenset() if last is None else frozenset((e.name.source, e.name.split) for e in last.skipped)

    @property
    def reweights(self) -> tuple[Reweight, ...]:
        """What was changed of mixtures while the job ran."""
        return reweights_in(self._entries)

    def inputs(self) -> RecordedInputs | None:
        """The inputs as the job reads them; None: they were not recorded. Raises StorageError."""
        found = [entry.inputs for entry in self._entries if isinstance(entry, (Claim, Manifest))]
        return read_inputs(f"{self.folder}/{inputs_key(self.job, found[-1])}", found[-1]) if any(found[-1:]) else None

    @property
    def parts(self) -> int:
        """Into how many parts the flow divides rows; 0: it is not said."""
        signed = [entry for entry in self._entries if isinstance(entry, (Claim, Manifest))]
        return signed[-1].parts if signed else 0

    def check(self, plan: JobPlan) -> None:
        """Raise ConfigurationError unless the job was of this flow over these data."""
        signed = [entry for entry in self._entries if isinstance(entry, (Claim, Manifest))]
        if not signed or signed[-1].fingerprint == plan.fingerprint:
            return
        same_flow = signed[-1].fingerprint.split("-")[0] == plan.fingerprint.split("-")[0]
        what = "other data: files have come, gone or changed since" if same_flow else "another flow"
        remedy = "put the files back as they were" if same_flow else "replay the flow as it was when the job ran"
        before, now = self.description.splitlines(), plan.description.splitlines()
        differ = [f"  then: {line}" for line in before if line not in now]
        differ += [f"  now:  {line}" for line in now if line not in before]
        raise ConfigurationError(
            "\n".join([f"job {self.job!r} in {self.folder} was one of {what}", *differ[:20]]), remedy
        )

    def checkpoints(self, feed: str, schema: pa.Schema, batch_size: int, drop_last: bool) -> list[Retained]:
        """Those that are there and have nothing in flight, the one whose feed has come farthest first. ``schema``: of
        the feed's rows."""
        found = []
        for entry in self._entries:
            if isinstance(entry, Manifest) and not flights(entry):  # rule 4
                try:
                    found.append(self._retained(entry, feed, schema, batch_size, drop_last))
                except StorageError:
                    continue  # a running job has deleted it
        return sorted(found, key=lambda each: (each.position, each.manifest.number), reverse=True)

    def _retained(self, manifest: Manifest, feed: str, schema: pa.Schema, batch_size: int, drop_last: bool) -> Retained:
        root = manifest.root or self.folder
        tasks = tuple(
            replace(task, state=tuple(each for each in task.state if each.operator == feed)) for task in manifest.tasks
        )
        table = state_of(replace(manifest, tasks=tasks), root, self.job).get(feed)
        if table is None:
            return Retained(manifest, root)
        state = read_state(table, schema)
        grid = batch_size, drop_last
        return Retained(manifest, root, state.position, state.first_batch(*grid), state.next_batch(*grid))


def copied(kept: Retained, job: str, operators: frozenset[str], folder: str, adapt: Adapt) -> Start | None:
    """The checkpoint, copied into ``folder`` for the flow of these operators (rule 3). None: it cannot be adapted.
    Raises StorageError if it is gone."""
    files = SnapshotFiles(kept.root, job)
    tasks: list[TaskState] = []
    for task in kept.manifest.tasks:
        state: list[StateHandle] = []
        known = [handle for handle in task.state if not handle.is_flight and handle.operator in operators]
        for operator, stored in files.read(known).items():
            table = adapt(operator, stored)
            if table is None:
                return None
            state.append(_written(folder, f"{len(tasks)}-{len(state)}.arrow", operator, table))
        tasks.append(TaskState(task=task.task, state=tuple(state)))
    running = FinishedState.ALL_RUNNING.value
    manifest = replace(
        kept.manifest,
        tasks=tuple(tasks),
        uncommitted=(),
        operators=tuple(
            replace(entry, finished=running) for entry in kept.manifest.operators if entry.operator in operators
        ),
        root="",
        claimed=False,
        savepoint="",
        request="",
        skipped=(),
    )
    return Start(manifest, folder, allow_left_behind=True)


def _written(folder: str, location: str, operator: str, table: pa.Table) -> StateHandle:
    """The handle of a file in this folder, which is a temporary one."""
    data = to_ipc(table)
    with open(os.path.join(folder, location), "wb") as file:
        file.write(data)
    return StateHandle(operator, location, data.size, table.num_rows, digest=digest(data))
