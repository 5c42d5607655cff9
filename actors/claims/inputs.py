"""Which files a job reads, from its first start on, whatever becomes of the folders they lie in. No Ray.

Rules:

1. A job that begins reads what is there, and records it (``input_records``) before it is claimed.
2. A job that goes on, from its own checkpoint, another job's or a savepoint, is planned with what was recorded there:
   the same files at the same positions. Of these none may be gone or another one now; each that is, is named.
3. Files that came since are not read, and this is said; ``include_new=True`` puts them behind all others and makes a
   new record. Cursors of restored lanes stay right by that. It is refused where the end of a source has been
   announced, and, in a deterministic flow, where a lane has come to its end: with the new files there from the
   beginning it would have gone on, and the order would be another one.
4. Before its first checkpoint a job has read nothing that counts: then rule 1 holds again. A job that keeps nothing
   records nothing, but every file is compared when it is opened.
5. The fingerprint of the plan is that of the files that the job began with.
6. A flow that does not say into how many parts it divides rows goes on with as many as its checkpoint was taken with,
   and with the broadcasts and the rows of a round that were chosen for it: they decide whose state a key's is, and the
   order.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from ...coordinator.model.manifest import Manifest, closing_entry
from ...engine.arrow.plain_types import plain_schema
from ...engine.core.errors import ConfigurationError, PenstockError
from ...engine.core.source import SourceConfig
from ...engine.core.traits import traits_of
from ...engine.files.listing import InputFile, difference, paths_now, reason_against
from ...engine.files.paths import DataFile, absolute, content_of, with_content
from ...engine.plan.plan import JobPlan
from ...engine.plan.rounds import LaneCursor, SplitAssignment, cursor_of, lanes_of
from ...engine.planner.graph import Graph, Node
from ...engine.planner.pipelines import fingerprint_of
from ...engine.sources.memory import MemorySource
from ..audit.audit import state_of
from ..storage.input_records import RecordedInputs, inputs_key, read_inputs, store_inputs
from ..storage.log import read_log_in
from ..storage.stores import open_store
from .place import Place
from .savepoints import INPUTS, holds_savepoint, read_savepoint
from .start import newest_checkpoint

NAMED = 20
"""Files that an error or a warning names; of more it gives the number."""
_log = logging.getLogger("penstock.inputs")

G = TypeVar("G", bound=Graph)


@runtime_checkable
class _ReadsFiles(Protocol):
    """A source of files (``sources.parquet`` and its like)."""

    def listed(self) -> tuple[DataFile, ...]:
        """Those that are there now."""

    def over(self, files: Sequence[DataFile]) -> SourceConfig:
        """The source of these files."""


@dataclass(frozen=True)
class Before:
    """What a job goes on from: the manifest, where its state files lie, and what is recorded of the inputs."""

    manifest: Manifest
    root: str
    job: str
    inputs: RecordedInputs


@dataclass(frozen=True)
class Settled(Generic[G]):
    """A flow over the files that it is to read. ``recorded``: these. ``began_with``: the flow over those that the job
    began with, if they are fewer. ``included``: what is taken in now, by source; ``ignored``: what came since and is
    not."""

    flow: G
    recorded: RecordedInputs
    began_with: G | None
    included: Mapping[str, tuple[str, ...]]
    ignored: tuple[str, ...]

    def planned(self, plan: Callable[[G], JobPlan]) -> JobPlan:
        """The plan, with rule 5's fingerprint."""
        made = replace(plan(self.flow), ignored=self.ignored)
        return made if self.began_with is None else replace(made, fingerprint=plan(self.began_with).fingerprint)


def plan_with_inputs(
    flow: G,
    plan: Callable[[G], JobPlan],
    place: Place | None,
    job: str,
    *,
    from_snapshot: str | os.PathLike[str] | None = None,
    include_new: bool = False,
) -> JobPlan:
    """``plan`` over the files that the job is to read; see the module's rules. Raises ConfigurationError that names the
    files that have changed or are gone."""
    kept = place if place is not None and place.stays else None
    feeds = any(traits_of(node.config).epochs is not None for node in flow.nodes)
    newest = _find_newest(None if kept is None else kept.folder, job, from_snapshot, feeds)
    if newest is not None:
        kept_on = newest.manifest
        flow = flow.with_parts_of(kept_on.parts).with_broadcasts(kept_on.broadcasts).with_rounds_of(kept_on.round_rows)
    if kept is None:
        return settle(flow, None, keeps=False).planned(plan)
    before = _recorded(newest)
    known = None if before is None else before.inputs
    settled = settle(flow, known, include_new=include_new)
    made = settled.planned(plan)
    recorded, earlier = settled.recorded, settled.recorded.before
    if before is not None and settled.included:
        _check_includable(made, before, settled.included)
        recorded = replace(recorded, before=(earlier := (before.manifest.inputs, *earlier)))
    if settled.ignored:
        _log.warning("job %s does not read %s; include_new=True would", job, _some(settled.ignored))
    return replace(made, inputs=(store_inputs(open_store(kept.folder), made.name, recorded), *earlier))


def find_before(folder: str, job: str, from_snapshot: str | os.PathLike[str] | None = None) -> Before | None:
    """What the job in ``folder`` goes on from: its own newest checkpoint, or the snapshot; None if it begins, or if
    nothing was recorded."""
    return _recorded(_find_newest(folder, job, from_snapshot))


def newest_manifest(folder: str | None, job: str, from_snapshot: str | os.PathLike[str] | None) -> Manifest | None:
    """What the job in ``folder`` goes on from: its own newest checkpoint, or the snapshot; None if it begins."""
    found = _find_newest(folder, job, from_snapshot)
    return None if found is None else found.manifest


@dataclass(frozen=True)
class _Newest:
    """A manifest, where its state files lie, whose it is, and the record of that job's inputs."""

    manifest: Manifest
    root: str
    job: str
    inputs: str


def _find_newest(
    folder: str | None, job: str, from_snapshot: str | os.PathLike[str] | None, feeds: bool = True
) -> _Newest | None:
    """``feeds``: only a job of feeds may go on when it is over. Any other is refused, whatever its inputs are now."""
    entries = [] if folder is None else read_log_in(folder, job)
    if closing_entry(entries) is not None and not feeds:
        return None
    manifest = next((entry for entry in reversed(entries) if isinstance(entry, Manifest)), None)
    if folder is not None and manifest is not None:
        return _Newest(manifest, manifest.root or folder, job, f"{folder}/{inputs_key(job, manifest.inputs)}")
    if from_snapshot is None:
        return None
    place = absolute(from_snapshot).rstrip("/")
    job = os.path.basename(place)
    if holds_savepoint(place):
        return _Newest(read_savepoint(place), place, job, f"{place}/{INPUTS}")
    manifest, root = newest_checkpoint(place)
    return _Newest(manifest, root, job, f"{place}/inputs/{manifest.inputs}.arrow")


def _recorded(found: _Newest | None) -> Before | None:
    if found is None or not found.manifest.inputs:
        return None
    return Before(found.manifest, found.root, found.job, read_inputs(found.inputs, found.manifest.inputs))


# ---------------------------------------------------------------------- files and data of the sources


def settle(flow: G, known: RecordedInputs | None, *, include_new: bool = False, keeps: bool = True) -> Settled[G]:
    """The flow with sources of the ``known`` files, or of those that are there if nothing is known. ``keeps``: what is
    found is going to be recorded."""
    known = known or RecordedInputs()
    whole: dict[str, Node] = {}
    began_with: dict[str, Node] = {}
    files: dict[str, tuple[InputFile, ...]] = {}
    fingerprints: dict[str, str] = {}
    included: dict[str, tuple[str, ...]] = {}
    ignored: list[str] = []
    for node in (each for each in flow.nodes if not each.inputs):
        try:
            if not isinstance(node.config, _ReadsFiles):
                fingerprints.update(_same_data(node, known.fingerprints.get(node.id, ""), keeps))
                continue
            found = _files_of(node.config.listed(), known.files.get(node.id), include_new, keeps)
            whole[node.id] = began_with[node.id] = _reading(node, found.files)
            late = frozenset(file.id for file in found.recorded if file.added)
            if late:
                began_with[node.id] = _reading(node, [file for file in found.files if file.id not in late])
        except PenstockError as error:
            raise error.at(node.id) from error
        files[node.id] = found.recorded
        if include_new and found.new:
            included[node.id] = found.new
        elif found.new:
            ignored += [f"{node.id}: {id}" for id in found.new]
    fewer = any(file.added for each in files.values() for file in each)
    recorded = RecordedInputs(files, fingerprints, known.before)
    before = flow.with_nodes(began_with.values()) if fewer else None
    return Settled(flow.with_nodes(whole.values()), recorded, before, included, tuple(ignored))


@dataclass(frozen=True)
class _SourceFiles:
    """``files`` to read, ``recorded`` as they are recorded; ``new``: ids of what came since."""

    files: tuple[DataFile, ...]
    recorded: tuple[InputFile, ...]
    new: tuple[str, ...] = ()


def _files_of(
    found: Sequence[DataFile], known: Sequence[InputFile] | None, include_new: bool, keeps: bool
) -> _SourceFiles:
    """The files of a source: as they are, or as they are known. Raises ConfigurationError that names those that have
    changed."""
    if known is None:
        files = with_content(found, kept=keeps)
        return _SourceFiles(files, tuple(file.recorded for file in files))
    there = {file.id: file for file in found}
    differ = difference(known, there)
    wrong = [(f"{file.id} is gone", "") for file in differ.gone]
    kept: list[DataFile] = []
    for file in known:
        if (now := there.get(file.id)) is None:
            continue
        with now.planning():
            reason = reason_against(file, now.recorded, partial(content_of, now), thorough=True)
        if reason is not None:
            wrong.append((f"{now.path} {reason.text}", reason.remedy(now.path) if reason.vouch else ""))
        kept.append(replace(now, content=file.content))
    if wrong:
        raise _reordered(known, found) or _changed(wrong)
    if not include_new or not differ.new:
        return _SourceFiles(tuple(kept), tuple(known), differ.new)
    more = with_content([there[id] for id in differ.new])
    recorded = (*known, *(replace(file.recorded, added=True) for file in more))
    return _SourceFiles((*kept, *more), recorded, differ.new)


def _reordered(known: Sequence[InputFile], found: Sequence[DataFile]) -> ConfigurationError | None:
    """The error if the source's paths are the same ones in another order, which is that of its rows."""
    places = paths_now(known, [file.recorded for file in found])
    if places is None:
        return None
    order = ", ".join(str(place + 1) for place in places)
    return ConfigurationError(
        "the paths of this source are in another order than when the job began, and so would its rows",
        f"give them as they were: those of now in the order {order}",
    )


def _changed(wrong: Sequence[tuple[str, str]]) -> ConfigurationError:
    back = "put the files back as they were, or start over with an empty checkpoint folder and new outputs"
    vouch = next((remedy for _, remedy in wrong if remedy), "")
    return ConfigurationError(
        f"the input is not what the job has begun with: {_some([text for text, _ in wrong])}",
        f"{back}; {vouch}" if vouch else back,
    )


def _reading(node: Node, files: Sequence[DataFile]) -> Node:
    """The source over these files, which still have the columns that the flow was built with."""
    config = cast(_ReadsFiles, node.config).over(files)
    if node.schema is not None and not plain_schema(config.schema).equals(node.schema):
        message = f"{files[0].path} has other columns than the flow was built with:\n{config.schema}"
        raise ConfigurationError(message, f"give the types, or build the flow again; it was built with:\n{node.schema}")
    return replace(node, config=config)


def _same_data(node: Node, known: str, keeps: bool) -> dict[str, str]:
    """What a source that reads no files says of its data, by its id. Raises ConfigurationError if it has said something
    else before."""
    config = node.config
    if isinstance(config, MemorySource):
        data = config.content() if keeps else ""
    else:
        data = fingerprint_of(cast(SourceConfig, config)) or ""
    if known and data != known:
        raise ConfigurationError(
            f"the data of this {config.kind} source are not those that the job has begun with",
            "give it the same data again, or start over with an empty checkpoint folder and new outputs",
        )
    return {node.id: data} if data else {}


# ---------------------------------------------------------------------- taking in new files


def _check_includable(plan: JobPlan, before: Before, included: Mapping[str, Sequence[str]]) -> None:
    """Rule 3's refusals."""
    if plan.epochs is not None:
        raise ConfigurationError(
            "a flow that is read in several epochs has the same files in each", "start another job for the new files"
        )
    cursors = _cursors(before, frozenset(included))
    for source, new in included.items():
        if plan.sources[source].given:
            message = "its splits are read in an order that is drawn of all of them"
            raise ConfigurationError(message, "read the new files with another job", source)
        added = frozenset(new)
        old = sum(split.file.id not in added for split in cast(Any, plan.sources[source].splits))
        ended = {lane for lane, cursor in cursors.get(source, {}).items() if _has_ended(cursor, plan.lanes, old)}
        if plan.deterministic and ended:
            raise ConfigurationError(
                f"{len(ended)} of {plan.lanes} lanes have come to the end of their files: new ones would come later in "
                "the order than if they had been there from the beginning",
                'let the job finish and read the new files with another job, or build the flow with order="arrival"',
                source,
            )
        if any(set(lanes) <= ended for lanes in _shares(plan, source, before.manifest)):
            raise ConfigurationError(
                "a subtask has read all of its files, and has told its consumers that nothing follows",
                "let the job finish and read the new files with another job",
                source,
            )


def _cursors(before: Before, sources: frozenset[str]) -> dict[str, dict[int, LaneCursor]]:
    """The cursors of the lanes of some sources, by source and lane."""
    tables = state_of(before.manifest, before.root, before.job, sources)
    return {id: {row.lane: row for row in map(cursor_of, table.to_pylist())} for id, table in tables.items()}


def _has_ended(cursor: LaneCursor, lanes: int, splits: int) -> bool:
    return cursor.needless or SplitAssignment(lanes, cursor.dealt).position(cursor.lane, cursor.ordinal) >= splits


def _shares(plan: JobPlan, source: str, manifest: Manifest) -> list[range]:
    """The lanes of each subtask that read the source when the checkpoint was taken."""
    stage = next(
        stage
        for stage in plan.stages.values()
        for pipeline in stage.pipelines
        if any(port.kind == "source" and port.id == source for port in pipeline.ports)
    )
    count = manifest.parallelism.get(stage.name, stage.parallelism)
    return [lanes_of(subtask, count, plan.lanes) for subtask in range(count)]


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return "; ".join(names[:NAMED]) + (f"; and {more} more" if more > 0 else "")
