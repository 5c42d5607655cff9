"""The plan of a job: stages of pipelines, the exchanges between them, sources with their splits, and sinks.

Everything here is immutable data that travels to the tasks; ``pipelines.plan_job`` makes it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, cast

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from ..core.epochs import Epochs
from ..core.errors import ConfigurationError, PenstockError, StorageError, UserCodeError, as_penstock_error
from ..core.identity import CommitPermit, Reweight, TaskId
from ..core.operator import Committer, OperatorConfig, SinkConfig
from ..core.source import SourceConfig, Split
from ..core.traits import traits_of
from ..core.user_code import is_users_object, story_of, text_of
from ..files.nesting import check_nesting, check_savepoint, linked
from ..files.paths import DataFile
from ..files.store_options import StoreAccess
from ..state.memory import DEFAULT_BUDGET
from .partitioning import Exchanging
from .resources import NOTHING, Resources
from .rounds import lanes_of

Audited = Literal["counts", "content"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """A source and its splits. ``quota``: most rows that a lane reads in one round; None: always whole splits.
    ``repeats``: it is read in every epoch; else once. ``given``: the source's own splits, where others have taken their
    place (``sources.drawn_splits``); else none."""

    id: str
    config: SourceConfig
    schema: pa.Schema
    splits: tuple[Split, ...]
    quota: int | None
    rate: float
    repeats: bool = False
    given: tuple[Split, ...] = ()

    @property
    def own_splits(self) -> tuple[Split, ...]:
        """As the source gives them."""
        return self.given or self.splits

    @property
    def rows(self) -> int | None:
        """Rows of all splits, if all know."""
        known = [split.rows for split in self.splits]
        return None if None in known else sum(rows or 0 for rows in known)


@dataclass(frozen=True, slots=True)
class KeyFilterPlan:
    """A source whose reader leaves out rows that a join drops, once that knows the keys of its other input.

    ``columns`` of the source are those of the join's ``keys`` (their places there) at its input ``port``; ``stage``: of
    the join. ``scattered``: an exchange that may bring a row to another subtask lies between. ``waits``: the
    join takes no row before it knows the keys.
    """

    join: str
    port: int
    stage: str
    source: str
    keys: tuple[int, ...]
    columns: tuple[str, ...]
    scattered: bool
    waits: bool


@dataclass(frozen=True, slots=True)
class EarlyFilterPlan:
    """A condition that the reader of a source asks of its rows: others do not get through the operators ``by`` further
    down, which ask again."""

    source: str
    by: tuple[str, ...]
    condition: pc.Expression


@dataclass(frozen=True, slots=True)
class PortPlan:
    """Where a pipeline's input comes from: ``kind`` is "source", "local" or "exchange"; ``id`` of source or edge.

    ``spooled``: another port gets rows of the same forked stream, so what this one does not want yet must be put aside.
    """

    kind: str
    id: str
    schema: pa.Schema
    spooled: bool = False


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """One operator of a pipeline's chain and the schemas of its ports. ``hold``: at a task barrier it goes on with what
    it holds, instead of emitting and forgetting it. ``read_first``: the port that a join reads before the other one;
    ``reads_whole``: those that it reads to the end even where it needs no more: what fails there is seen, always."""

    id: str
    config: OperatorConfig
    inputs: tuple[pa.Schema, ...]
    is_sink: bool
    hold: bool = False
    read_first: int | None = None
    reads_whole: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """An edge that a pipeline feeds."""

    kind: str
    id: str


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """A chain of operators between ports and outputs; the first operator has one port for each of ``ports``."""

    name: str
    ports: tuple[PortPlan, ...]
    operators: tuple[OperatorPlan, ...]
    outputs: tuple[OutputPlan, ...]


@dataclass(frozen=True, slots=True)
class StagePlan:
    """Pipelines that need no exchange between them, run by ``parallelism`` subtasks. Upstream pipelines come first.

    ``lanes``: how many lanes the subtasks share: the flow's, or behind a partitioned exchange its parts. ``resources``:
    what each subtask asks of the cluster.
    """

    name: str
    parallelism: int
    pipelines: tuple[PipelinePlan, ...]
    lanes: int
    resources: Resources = NOTHING

    def lanes_of(self, subtask: int) -> range:
        """The lanes that a subtask owns."""
        return lanes_of(subtask, self.parallelism, self.lanes)

    @property
    def paced(self) -> bool:
        """Whether somebody outside sets the pace of one of its operators (``pacing``)."""
        return any(traits_of(operator.config).throttled for each in self.pipelines for operator in each.operators)


@dataclass(frozen=True, slots=True)
class Exchange:
    """An edge between two stages. ``pattern``: "all_to_all" or "pointwise". ``schema``: of the rows that go in; in a
    partitioned exchange they travel with their part (``partitioning.wire_schema``)."""

    id: str
    source: str
    target: str
    pattern: Literal["all_to_all", "pointwise"]
    config: Exchanging
    schema: pa.Schema

    def peers_of(self, subtask: int, parallelism: int) -> range:
        """With which subtasks of the stage at the other end, which has so many, a subtask shares a channel."""
        return range(subtask, subtask + 1) if self.pattern == "pointwise" else range(parallelism)

    @property
    def is_partitioned(self) -> bool:
        """Whether rows are divided by part, and so must be put together by round (``UnorderedInputGate``,
        ``Regroup``)."""
        return self.config.is_partitioned


@dataclass(frozen=True)
class JobPlan:
    """What a job is made of. ``fingerprint`` stands for the flow and its data; ``description`` says both in words."""

    name: str
    fingerprint: str
    description: str
    lanes: int
    stages: dict[str, StagePlan]
    exchanges: tuple[Exchange, ...]
    sources: dict[str, SourcePlan]
    #: into how many parts rows are divided by key, or in turn
    parts: int = 0
    #: the joins by key whose right side is broadcast instead, as a job that goes on must have them
    broadcasts: tuple[str, ...] = ()
    #: rows of a lane's round, as a job that goes on must have them
    round_rows: int = 0
    #: for joins the rows of their inputs, guessed; none where nothing is known
    guesses: Mapping[str, Sequence[int]] = field(default_factory=dict)
    #: barriers stand at the same round in all channels, and merges go by tag; else whatever comes first is read first
    deterministic: bool = True
    #: bytes that the operators of one task hold before they spill; None: no bound
    memory_budget: int | None = DEFAULT_BUDGET
    #: threads that run the drivers of one process; None: as it has CPUs; 0: those that take its messages
    threads: int | None = None
    #: which readers leave out what which joins drop
    key_filters: tuple[KeyFilterPlan, ...] = ()
    #: what else readers leave out: rows that operators further down drop
    early_filters: tuple[EarlyFilterPlan, ...] = ()
    #: how often the sources are read that repeat; None: once
    epochs: Epochs | None = None
    #: the job's identity, known once its checkpoint folder has been looked at (``identify``)
    uuid: str = ""
    #: that of the coordinator whose order an attempt follows, in the process of the task
    claim: str = ""
    #: digests of what is recorded of the inputs: first as the job reads them, then earlier ones that this one only adds
    #: files to; empty: nothing is recorded
    inputs: tuple[str, ...] = ()
    #: files that came after the inputs were recorded, and are not read
    ignored: tuple[str, ...] = ()
    #: of the plan and the newest checkpoint, if it was another one of the same flow whose tasks' places are here
    former_shape: str = ""
    #: of a run that only repeats another one: what that one's log says of changed weights
    reweights: tuple[Reweight, ...] = ()
    #: what the audit compares at the end: numbers of rows, or also what they are
    audit: Audited = "counts"
    #: how the user says that buckets are reached
    access: StoreAccess = field(default_factory=StoreAccess, repr=False, compare=False)

    @property
    def parallelism(self) -> dict[str, int]:
        """Stage to number of subtasks."""
        return {name: stage.parallelism for name, stage in self.stages.items()}

    @cached_property
    def fed(self) -> tuple[str, ...]:
        """The sources that the caller feeds (``Flow.from_split_sets``)."""
        return tuple(id for id, source in self.sources.items() if getattr(source.config, "fed", False))

    @cached_property
    def sinks(self) -> dict[str, tuple[str, SinkConfig]]:
        """Sink id to (stage, config)."""
        return {
            operator.id: (stage.name, cast(SinkConfig, operator.config))
            for stage in self.stages.values()
            for pipeline in stage.pipelines
            for operator in pipeline.operators
            if operator.is_sink
        }

    @cached_property
    def feeds(self) -> tuple[str, ...]:
        """The ids of the feeds, which end in a sequencer."""
        return tuple(id for id, (_, config) in self.sinks.items() if traits_of(config).throttled)

    def tasks(self) -> list[TaskId]:
        """All tasks, stage by stage."""
        return [TaskId(name, subtask) for name, stage in self.stages.items() for subtask in range(stage.parallelism)]

    @property
    def key(self) -> str:
        """What the job's rows are found by, in places that several jobs share: never a name that a user chose, but
        in a task that stands alone."""
        return self.uuid or self.name

    def committer(self, operator: str) -> Committer:
        """The committer of a sink. Raises UserCodeError if that is none."""
        config = self.sinks[operator][1]
        found = config.committer(self.key)
        if not callable(getattr(found, "commit", None)):
            message = f"the committer() of {type(config).__name__} gave {found!r:.100}, which has no commit"
            raise UserCodeError(message, "give an object with commit(permit)", operator)
        return found

    def commit(self, permit: CommitPermit) -> None:
        """Make a permit's committables visible, sink by sink. Idempotent, as every committer is. Raises PenstockError
        that names the sink which could not."""
        for operator in {committable.operator: None for committable in permit.committables}:
            if operator not in self.sinks:  # of a snapshot whose flow had it; the user has allowed to leave it out
                _log.warning(
                    "what sink %s had prepared stays where it is: the flow does not have it any more", operator
                )
                continue
            own = tuple(each for each in permit.committables if each.operator == operator)
            try:
                self.committer(operator).commit(replace(permit, committables=own))
            except Exception as error:
                raise self._of_commit(error, operator) from error

    def _of_commit(self, error: Exception, operator: str) -> PenstockError:
        """What a user's sink raises that is no error of storage is retried like one: it may come from a database."""
        config = self.sinks[operator][1]
        if isinstance(error, PenstockError | OSError) or not is_users_object(config):
            return as_penstock_error(error).at(operator)
        message = f"the commit of {type(config).__name__} failed: {type(error).__name__}: {text_of(error)}"
        remedy = "see what it raised; the job can go on from its last checkpoint"
        return StorageError(message, remedy, operator, story_of(error))

    def check(self, resuming: bool = False, checkpoints: str = "") -> None:
        """Ask every sink whether it can be written; ``checkpoints``: the folder for them. Raises ConfigurationError
        that names the sink."""
        check_fed(self)
        check_nesting(*self._data(), checkpoints)
        places: dict[str, str] = {}
        for id, (_, config) in self.sinks.items():
            try:
                config.check(self.key, resuming)
            except PenstockError as error:
                raise error.at(id) from error
            place = config.place
            if place and place in places:
                message = f"writes to {place}, and so does {places[place]}"
                raise ConfigurationError(message, "give each sink a folder of its own", id)
            places[place] = id

    def check_savepoint(self, place: str, folder: str) -> None:
        """Whether a savepoint may lie in ``place``; ``folder``: the job's own. Raises ConfigurationError."""
        sinks, sources = self._data()
        check_savepoint(place, (*sinks, *sources), folder)

    def _data(self) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
        """What is written and what is read: ids and places."""
        written = _places((id, sink) for id, (_, sink) in self.sinks.items())
        read = _places((id, source.config) for id, source in self.sources.items())
        return written, [*read, *(self._linked() if written else ()), *self._looked_up()]

    def _linked(self) -> Iterator[tuple[str, str]]:
        """The ids of sources, and where their local files are that they read through links."""
        for id, source in self.sources.items():
            given = (getattr(split, "files", (getattr(split, "file", None),)) for split in source.own_splits)
            files = {file.path for each in given for file in each if isinstance(file, DataFile)}
            yield from ((id, place) for place in linked(path for path in files if os.path.isabs(path)))

    def _looked_up(self) -> Iterator[tuple[str, str]]:
        """The ids of lookup joins, and the files of their indexes."""
        for pipeline in (pipeline for stage in self.stages.values() for pipeline in stage.pipelines):
            for operator in pipeline.operators:
                for file in getattr(getattr(operator.config, "index", None), "files", ()):
                    if isinstance(file, DataFile):
                        yield operator.id, file.place


def _places(configs: Iterable[tuple[str, object]]) -> list[tuple[str, str]]:
    """The ids and absolute paths of those that say one, or several: what they read or write."""
    found = []
    for id, config in configs:
        given = getattr(config, "path", ())
        found += [(id, str(path)) for path in ((given,) if isinstance(given, str | os.PathLike) else given)]
    return found


def check_fed(plan: JobPlan) -> None:
    """Whether the plan's task barriers can be placed. Raises ConfigurationError."""
    others = sorted(set(plan.sources) - set(plan.fed))
    if plan.fed and others:
        raise ConfigurationError(
            f"the caller feeds {', '.join(plan.fed)}, but not {', '.join(others)}: a task barrier needs all sources",
            "feed all sources (flow.from_split_sets) or none; small tables fit a lookup_join with ps.index",
        )
