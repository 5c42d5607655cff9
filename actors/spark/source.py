"""``Flow.from_spark``: a DataFrame as a source, and which way its partitions are handed over.

Rules:

1. One Spark partition becomes one split, in the order of the partitions. The rows of a partition must come in the same
   order whenever Spark computes it: repartition by a key and ``sortWithinPartitions`` by a unique one.
2. *stage* (``stage``): Arrow files in the checkpoint folder. They outlive Spark, this script and the cluster; a job
   that is started again reads them and does not ask Spark. *lease* (``lease``): blocks in Ray's object store, pulled
   while the job runs already; they end with the job, or with this script.
3. "auto" stages wherever something has to outlive this script, or no Spark on Ray is there to lease from.
4. A lease is refused where a restore would need blocks that are gone by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pyarrow as pa

from ...engine.core.errors import ConfigurationError, InternalError
from ...engine.core.source import SourceConfig, Split
from ...engine.flow.handoff import Destination
from .carrying import stage_before
from .sessions import check_on_ray, check_session, is_classic, is_on_ray
from .stage import StagedSource, describe_frame, stage, temporary_folder
from .types import arrow_schema, check_frame

Way = Literal["auto", "stage", "lease"]
"""How a DataFrame's partitions get to the job."""

_STAGE_INSTEAD = 'pass handoff="stage", or leave it at "auto"'


@dataclass(frozen=True, slots=True)
class NotHandedOver:
    """Stands for a partition in a plan that is only looked at (``explain``)."""

    id: str
    rows: int | None = None

    def open(self, start: int) -> Iterator[pa.RecordBatch]:
        raise InternalError("the frame was not handed over before the job started")


class SparkFrameSource:
    """A DataFrame in a flow: deferred until a job starts (see ``engine.flow.handoff``)."""

    def __init__(self, frame: Any, handoff: Way = "auto") -> None:
        if handoff not in get_args(Way):
            raise ConfigurationError(f"handoff={handoff!r} is unknown", 'give "auto", "stage" or "lease"')
        check_frame(frame)
        check_on_ray(frame)
        self._frame = frame
        self._handoff = handoff
        self._schema = arrow_schema(frame)
        if handoff == "lease" and not is_on_ray(frame):
            other = "another one" if is_classic(frame) else "one of Spark Connect"
            message = f"only a Spark session on Ray can lease its partitions, and this DataFrame belongs to {other}"
            raise ConfigurationError(message, f"make the session with ps.spark.session(), or {_STAGE_INSTEAD}")

    @property
    def kind(self) -> str:
        return "spark"

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def describe(self) -> str:
        return describe_frame(self._schema)

    def splits(self) -> Sequence[Split]:
        """As many as there are partitions; their rows cannot be read before they are handed over."""
        check_session(self._frame)
        count = self._frame.rdd.getNumPartitions() if is_classic(self._frame) else 1
        return [NotHandedOver(f"spark/{position}") for position in range(count)]

    def handed_over(self, source: str, to: Destination) -> SourceConfig:
        """The partitions, staged or leased."""
        staged = stage_before(to, source)
        if staged is not None:
            return self._same(staged)
        if self._way(to) == "lease":
            from .lease import lease

            check_session(self._frame)
            return lease(self._frame, self._schema, source)
        check_session(self._frame)
        return stage(self._frame, self._schema, to.folder or temporary_folder(), to.job, source, to.description)

    def _way(self, to: Destination) -> Way:
        if self._handoff == "auto":
            alone = to.folder is None and not to.detached and to.on_ray
            return "lease" if alone and self._schema.names and is_on_ray(self._frame) else "stage"
        if self._handoff == "lease" and (reason := _refusal(to, self._schema)):
            raise ConfigurationError(f"the frame cannot be leased: {reason}", _STAGE_INSTEAD)
        return self._handoff

    def _same(self, staged: StagedSource) -> StagedSource:
        """The stage of an earlier run, which must be of a frame like this one."""
        if not staged.schema.equals(self._schema):
            raise ConfigurationError(
                f"the staged frame in {staged.place} has other columns than this one:\n{staged.schema}",
                f"go on with the same frame, or start over with an empty checkpoint folder; this one:\n{self._schema}",
            )
        return staged

    def __getstate__(self) -> dict[str, Any]:
        raise ConfigurationError("a DataFrame cannot leave its process", "hand it over first: ps.run does")


def _refusal(to: Destination, schema: pa.Schema) -> str:
    """Why a lease, or a restore of what was leased, could not work; empty if it could."""
    if not schema.names:
        return "it has no columns, and blocks of Ray would not keep the number of its rows"
    if not to.on_ray:
        return "leased blocks are in Ray's object store, and this job runs without Ray"
    if to.detached:
        return "a detached job outlives this script, and leased blocks do not"
    if to.resuming:
        return "what the job goes on from refers to blocks that ended with the script that leased them"
    if to.folder is not None and to.keeps_checkpoints:
        return (
            "the checkpoints outlive this script, and a restore from them would need blocks that do not "
            '(Checkpoints(…, retention="never") keeps none)'
        )
    return ""
