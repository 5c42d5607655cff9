"""Lease: a DataFrame's partitions become blocks in Ray's object store while the job runs already, group by group.

Rules:

1. A lease is *one evaluation* of the frame (``evaluation``): it is planned once, what it shuffles is shuffled once, and
   what was shuffled is compared before and after each group. A *group* of partitions is computed by the executors into
   files on their nodes, fetched by the holder (``leased_blocks``), and published; then comes the next one. So
   Spark holds no more than the rows on their way. Executors write Parquet themselves (``parquet_writer``); where the
   frame cannot go that way (``parquet_stage.why_not``), their Python workers write Arrow.
2. One group is under way at a time in this process, of all its leases. The first one is small, so that rows come soon;
   the next ones are larger where partitions are small (:func:`next_size`). Spark computes the first one while the
   holder's process starts.
3. What has not come of a group (an executor or a node died) is computed again. Where something was shuffled again
   meanwhile, the rows may be others: if no reader can have seen one, the frame is planned and evaluated anew; else, and
   where it keeps rows of a former evaluation (``cache``), the job fails, and says so.
4. When the last partition has come the lease is *released*: Spark may stop, and the job does not notice.
5. A lease that fails is not tried again by restarts of the job: its error counts as the user's, and it is told in the
   words of the function that raised, or in Spark's.
6. Blocks whose splits every retained checkpoint has left behind are dropped; without checkpoints a restart begins at
   the first row, so all are kept until the job is over. Then the holder ends.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa
import ray
from ray.exceptions import RayError

from ...engine.core.errors import ConfigurationError, Domain, PenstockError
from ...engine.core.state_machine import StateMachine
from ...engine.plan.rounds import CHUNK_ROWS
from .evaluation import ATTEMPTS, OTHER_ROWS, Evaluation, bounded_batches, planned_before
from .failures import cause_of, detail_of, remedy_of, watched
from .leased_blocks import (
    LeasedSplit,
    Parcel,
    ask,
    await_credit,
    make_spool,
    parcels_of,
    remove_spool,
    spool_folder,
    start_holder,
)
from .parquet_stage import why_not
from .parquet_writer import DIED_AS_IT_COMMITTED, ParquetWriter, partitions_of
from .stage import LEASED, describe_frame
from .types import by_position
from .writing import ANSWER, make_writer

CREDIT_SHARE = 0.25
"""Share of the cluster's object store that may hold blocks which nobody has read yet."""

FOLLOW_SECONDS = 5.0
"""Between two looks at the checkpoints that are retained."""

GROUP_BYTES = 64 << 20
"""Groups grow to this size, for each is a job of Spark's."""

_CREDIT_SECONDS = 5.0
_GROUPS_PER_CORE = 2
_pulling = threading.Lock()
"""Rule 2: a process has one Spark session, whose executors its leases share."""

_log = logging.getLogger("penstock.spark")


def next_size(size: int, partitions: int, came: int) -> int:
    """How many partitions the next group has, after one of ``size`` of which ``partitions`` were there, with so many
    bytes: twice as many where they are so small that most of their time is Spark's and ours for a group."""
    return 2 * size if partitions == size and 2 * came <= GROUP_BYTES else size


class LeaseState(Enum):
    """How far a lease has come."""

    EVALUATING = "evaluating"
    """No reader can have seen a row: what was shuffled may be evaluated anew (rule 3)."""
    PUBLISHING = "publishing"
    """Groups have been published, and others are to come."""
    RELEASED = "released"
    """All partitions have come: Spark may stop."""
    FAILED = "failed"
    CLOSED = "closed"
    """The job is over."""


_PULLING = frozenset({LeaseState.EVALUATING, LeaseState.PUBLISHING})
_ENDS = frozenset({LeaseState.RELEASED, LeaseState.FAILED, LeaseState.CLOSED})
LEGAL_LEASE_MOVES: Mapping[LeaseState, frozenset[LeaseState]] = {
    LeaseState.EVALUATING: frozenset({LeaseState.PUBLISHING, *_ENDS}),
    LeaseState.PUBLISHING: _ENDS,
    LeaseState.RELEASED: frozenset({LeaseState.CLOSED}),
    LeaseState.FAILED: frozenset({LeaseState.CLOSED}),
    LeaseState.CLOSED: frozenset(),
}


class Lease:
    """The script's side of a lease, with a thread of its own. See the module's rules."""

    def __init__(self, frame: Any, schema: pa.Schema, source: str, group: int | None = None) -> None:
        self._frame, self._schema = frame, schema
        self._source = source
        self._spool = spool_folder()
        store = ray.cluster_resources().get("object_store_memory", 0.0)
        self.holder = start_holder(schema, int(store * CREDIT_SHARE))
        try:
            self._pull: Pull = watched(frame, lambda: _planned(frame, schema, self._spool), self._work)
        except BaseException:
            ray.kill(self.holder)
            raise
        self.count = self._pull.evaluation.partitions
        cores = int(frame.sparkSession.sparkContext.defaultParallelism)
        self._group = group or max(4, _GROUPS_PER_CORE * cores)
        self._changed = threading.Condition()
        self._machine = StateMachine(f"the lease of {source}", LEGAL_LEASE_MOVES, LeaseState.EVALUATING)
        self._failure: PenstockError | None = None
        self._thread = threading.Thread(target=self._run, name=f"penstock-lease-{source}", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ what a job asks

    @property
    def released(self) -> bool:
        """Whether the job needs Spark no more."""
        return self._machine.state not in _PULLING and self._failure is None

    def wait_released(self, timeout: float | None = None) -> None:
        """Wait for that. Raises the lease's error, or TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._machine.state not in _PULLING, timeout):
                raise TimeoutError(f"source {self._source} still needs Spark after {timeout} s")
        if self._failure is not None:
            raise self._failure

    def follow(self, left_behind: Callable[[], Sequence[int]]) -> None:
        """Drop blocks that no retained checkpoint needs, until the job is over."""

        def keep_dropping() -> None:
            while not self._waits_for_the_end(FOLLOW_SECONDS):
                with suppress(RayError):
                    self.holder.drop.options(concurrency_group="readers").remote(list(left_behind()))

        threading.Thread(target=keep_dropping, name=f"penstock-follow-{self._source}", daemon=True).start()

    def close(self) -> None:
        """The job is over: end the holder, and with it the blocks."""
        if not self._is_closed:
            self._move(LeaseState.CLOSED)
            with suppress(RayError):
                ray.kill(self.holder)
            remove_spool(self._spool)

    def _waits_for_the_end(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closed, seconds)

    @property
    def _is_closed(self) -> bool:
        return self._machine.state is LeaseState.CLOSED

    def _move(self, to: LeaseState) -> None:
        """Go to this state; a lease that was closed meanwhile stays so."""
        with self._changed:
            if not self._is_closed:
                self._machine.move(to)
            self._changed.notify_all()

    # ------------------------------------------------------------------ pulling

    def _run(self) -> None:
        started, end = time.monotonic(), LeaseState.FAILED
        try:
            watched(self._frame, self._pull.evaluation.begin, self._work)
            first, size = 0, self._group
            while first < self.count:
                if first:  # nothing lies unread before, and Spark need not wait until the holder's process is up
                    self._await_credit()
                if self._is_closed:
                    break
                group = range(first, min(self.count, first + size))
                bytes_of_it = self._hand_over(group)
                first, size = group.stop, next_size(size, len(group), bytes_of_it)
            else:
                seconds = time.monotonic() - started
                _log.info("Spark may stop: all %d partitions of %s came, in %.1f s", self.count, self._source, seconds)
                end = LeaseState.RELEASED
        except Exception as error:
            if not self._is_closed:
                self._fail(error)
        finally:
            del self._pull, self._frame  # Spark need keep nothing for us
            self._move(end)

    @property
    def _work(self) -> str:
        return f"computed the rows of {self._source}"

    def _fail(self, error: Exception) -> None:
        self._failure = _as_failure(error).at(self._source)
        _log.warning("%s", self._failure)
        with suppress(RayError):
            self.holder.fail.options(concurrency_group="readers").remote(self._failure)

    def _await_credit(self) -> None:
        while not self._is_closed and not ray.get(await_credit(self.holder, _CREDIT_SECONDS)):
            pass

    def _hand_over(self, group: Sequence[int]) -> int:
        """How many bytes its blocks have."""
        reason, missing = "", list(group)  # the holder has none of it, and need not be asked
        for attempt in range(1, ATTEMPTS + 1):
            with _pulling:
                if self._is_closed:
                    return 0
                reason = self._take(missing) or reason
                is_whole = self._is_whole()
                missing = ask(self.holder, "missing", group)
                if is_whole and not missing:
                    published = int(ask(self.holder, "publish"))
                    if self._machine.state is LeaseState.EVALUATING:
                        self._move(LeaseState.PUBLISHING)
                    return published
            _log.warning(
                "a group of partitions of %s did not come (attempt %d of %d): %s",
                *(self._source, attempt, ATTEMPTS, reason or "what it was computed from was shuffled again"),
            )
        message = f"Spark's partitions could not be fetched: {reason or 'executors died again and again'}"
        raise ConfigurationError(message, _MEMORY)

    def _take(self, missing: Sequence[int]) -> str:
        """Let Spark compute what is missing of the group, and fetch it; what went wrong."""
        if not (missing and self._is_whole()):
            return ""
        try:
            parcels = watched(self._frame, lambda: self._pull.compute(missing), self._work)
        except Exception as error:
            if DIED_AS_IT_COMMITTED in str(error):
                return cause_of(error)
            raise
        return str(ask(self.holder, "take", parcels))

    def _is_whole(self) -> bool:
        """Whether all that came, and what the rest is computed from, is of one evaluation. If not, another one is begun
        where that is possible (rule 3)."""
        evaluation = self._pull.evaluation
        if evaluation.is_whole():
            return True
        if self._machine.state is not LeaseState.EVALUATING:
            raise ConfigurationError(OTHER_ROWS.format("readers have seen some of the rows before"), _STAGE)
        if evaluation.keeps_rows:
            raise ConfigurationError(OTHER_ROWS.format("some of them are kept (cache, persist)"), _STAGE)
        ask(self.holder, "forget")
        watched(self._frame, self._begin_anew, self._work)
        return False

    def _begin_anew(self) -> None:
        self._pull.evaluation.discard()
        planned = _planned(self._frame, self._schema, self._spool)
        if (count := planned.evaluation.partitions) != self.count:
            raise ConfigurationError(
                OTHER_ROWS.format(f"it has {count} partitions now, instead of {self.count}"), _STAGE
            )
        self._pull = planned
        planned.evaluation.begin()


_STAGE = (
    "run the same command again; a frame that is staged outlives its executors: give the run a checkpoint folder, or "
    'pass handoff="stage"'
)
_MEMORY = "look for executors that died, give them more memory, use more and smaller partitions, or stage the frame"


@dataclass(frozen=True, slots=True)
class Pull:
    """An evaluation, and how partitions of it are computed, into files."""

    evaluation: Evaluation
    compute: Callable[[Sequence[int]], Sequence[Parcel]]


def _planned(frame: Any, schema: pa.Schema, spool: str) -> Pull:
    context, planned = frame.sparkSession.sparkContext, planned_before(by_position(frame))
    if reason := why_not(frame, schema, spool) or ("" if partitions_of(planned) else "it has no partitions"):
        _log.debug("the frame is leased through Python workers: %s", reason)
        return _by_workers(frame, planned, schema, spool)
    folder = f"{spool}/{uuid.uuid4().hex}"  # nothing that one evaluation wrote is another's
    writer = ParquetWriter(planned, schema, folder)

    def compute(partitions: Sequence[int]) -> Sequence[Parcel]:
        return [
            Parcel(each.partition, f"{folder}/{each.file}" if each.rows else "", rows=each.rows)
            for each in writer.compute(partitions)
        ]

    return Pull(Evaluation(context, writer.rdd), compute)


def _by_workers(frame: Any, planned: Any, schema: pa.Schema, spool: str) -> Pull:
    make_spool(spool)
    write = make_writer(spool, bytes(schema.serialize()), CHUNK_ROWS, by_node=True)
    with bounded_batches(frame, schema):
        answers = planned.mapInArrow(write, ANSWER).rdd
        evaluation = Evaluation(answers.ctx, answers._jrdd.rdd())

    def compute(partitions: Sequence[int]) -> Sequence[Parcel]:
        found = answers.ctx.runJob(answers, list, partitions=list(partitions))
        return parcels_of(spool, found, partitions)

    return Pull(evaluation, compute)


def _as_failure(error: Exception) -> PenstockError:
    """An error that the user can do something about, which no restart of the job repeats."""
    if isinstance(error, PenstockError):
        return ConfigurationError(*error.args) if error.domain is not Domain.USER else error
    spark = f"see the message; if Spark stopped early, keep it until job.wait_spark_released(); else {_MEMORY}"
    remedy = remedy_of(error, otherwise=spark)
    return ConfigurationError(f"Spark could not compute the rows: {cause_of(error)}", remedy, "", detail_of(error))


class LeasedSource:
    """A leased DataFrame: one partition, one split."""

    #: the planner's and the audit's: blocks go when they have been read
    reads_once = True
    #: nothing can be restored over them
    ends_with_script = True

    def __init__(self, schema: pa.Schema, lease: Lease) -> None:
        self._schema = schema
        #: what no other evaluation of the frame has: another lease is of other data
        self.fingerprint = f"{LEASED}{uuid.uuid4().hex}"
        #: the lease, in the script alone
        self.lease: Lease | None = lease
        self._splits = tuple(
            LeasedSplit(f"spark/{position}", position, schema, lease.holder) for position in range(lease.count)
        )

    @property
    def kind(self) -> str:
        return "spark"

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def describe(self) -> str:
        return describe_frame(self._schema)

    def splits(self) -> Sequence[LeasedSplit]:
        return self._splits

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"lease": None, "_splits": ()}


def lease(frame: Any, schema: pa.Schema, source: str, group: int | None = None) -> LeasedSource:
    """Begin to pull the frame's partitions; ``group``: how many of them Spark prepares at first. What the frame
    shuffles is shuffled now. Raises ConfigurationError if Spark cannot do that."""
    try:
        return LeasedSource(schema, Lease(frame, schema, source, group))
    except (AttributeError, RayError, PenstockError):
        raise
    except Exception as error:
        spark = "see the message; the frame must compute in Spark (try frame.count())"
        remedy = remedy_of(error, otherwise=spark)
        message = f"Spark could not compute the DataFrame: {cause_of(error)}"
        raise ConfigurationError(message, remedy, "", detail_of(error)) from error
