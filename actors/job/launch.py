"""``run``: from a flow to a running job on Ray.

What can be refused without a cluster (the flow, the sinks, the settings) is refused before one is started. ray is
imported only after ``connect``, which sets what Ray reads when it is imported.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ...coordinator.restore.stored_state import Snapshot
from ...engine.core.arguments import Parallelism, Rate, Threads, checked
from ...engine.core.errors import ConfigurationError
from ...engine.flow.flow import Flow
from ...engine.plan.plan import Audited, JobPlan
from ...engine.planner.pipelines import plan_job
from ...engine.sinks.collect import CollectSink
from ...engine.state.memory import DEFAULT_BUDGET
from ..claims.deferred import closing_leases, hand_over
from ..claims.inputs import plan_with_inputs
from ..claims.place import Place, Resume, place_in
from ..claims.restart import Given, start_over
from ..claims.start import Claim, begin_in, begin_nowhere, check_first
from ..client.moving import Planned, start_in_shape
from ..cluster.environment import ClusterInfo, check_cluster, connect, disconnect
from ..cluster.fitting import check_spares
from ..process.ending import print_interrupts_briefly
from ..process.imported_script import refuse_while_importing
from ..protocol.settings import Checkpoints, Duration, seconds
from .runtime import DEFAULT_RUNTIME, Runtime
from .sendable import check_sendable, is_connected

if TYPE_CHECKING:
    from ..client.job import Job
    from .ray_backend import JobEntry
    from .warm_up import Worker


@checked(ConfigurationError)
def run(
    flow: Flow,
    *,
    parallelism: Parallelism = 2,
    checkpoints: Checkpoints | str | os.PathLike[str] | None = None,
    name: str | None = None,
    address: str | None = None,
    rate: Rate | None = None,
    verbose: bool = False,
    memory_budget: int | None = DEFAULT_BUDGET,
    threads: Threads | None = None,
    resume: Resume = "auto",
    runtime: Runtime = DEFAULT_RUNTIME,
    from_snapshot: str | os.PathLike[str] | None = None,
    claim: Claim = "no_claim",
    allow_changes: bool = False,
    resume_model: str | None = None,
    detached: bool = False,
    take_over: bool = False,
    include_new: bool = False,
    audit: Audited = "counts",
) -> Job:
    """Start ``flow`` on Ray and return its :class:`~penstock.actors.client.job.Job`.

    ``checkpoints``: where and how often, or just the folder; without any, nothing survives the end of this script.
    ``name``: the job's, by default the flow's. ``address``: of a running Ray cluster; by default a small one is started
    on this machine. ``rate`` (rows/s) replaces that of all sources
    that have one, or paces all if none has. ``verbose`` shows Ray's own log.
    ``memory_budget``: bytes that the operators of one task may hold before they spill to disk; None: no bound.
    ``threads``: how many threads run the drivers of one actor, by default one, or as many as it asks CPUs for; 0: the
    one that takes its messages, which then wait for users' functions.
    ``runtime``: how processes are looked after, and how many are kept spare.
    ``resume="auto"`` goes on from the last checkpoint in the folder, if there is one, whatever became of the cluster
    that wrote it; ``"never"`` refuses a folder that has one, ``"must"`` one that has none. ``"restart"`` begins anew a
    job that has finished or was stopped; its sinks want other folders then, or ``mode="overwrite"``.
    ``from_snapshot``: a savepoint's folder, or another job's (``<checkpoint folder>/<job>``), to start from if the job
    has no checkpoint of its own. ``claim="claim"``: the savepoint is the job's from then on, and goes when it is not
    needed any more. ``allow_changes``: the flow may be another one than the snapshot's; state is found by operator
    names, and that of operators that are gone is left behind. The files that it reads must be the same ones.
    ``resume_model``: the job goes back to where its feed's readers had committed this model, unless its newest
    checkpoint still holds what comes next for it; ``job.feed().resume(resume_model)`` then reads on.
    ``take_over``: outputs are taken over from a job whose log is still open: it must not go on. Without it they are
    refused, unless that job has finished, was stopped, or is gone with its checkpoint folder.
    ``detached``: the job outlives this script; ``attach(name)`` finds it again.
    A job that goes on reads the files that it has begun with, and is refused if one has changed or is gone. If its
    newest checkpoint holds what was in flight at another ``parallelism``, it goes on there first, for one checkpoint
    with nothing in flight, which is waited for.
    ``include_new``: it takes in those that came since, behind all others.
    ``audit="content"``: sources and sinks digest their rows, and at the end all inputs are read again and what is
    visible is read back, by this process: the audit then says which sources are *proven* to have handed on the rows of
    their splits, and which outputs to hold the rows that their sinks took, or, where nothing between them changes rows,
    that their sources handed on; and not only as many. ``wait()`` raises AuditError if they are others.
    """
    refuse_while_importing(flow.name)
    check_cluster(address)
    place = None if checkpoints is None else place_in(checkpoints)
    if detached:
        _check_detached(place, runtime)
    planned = partial(
        plan_job, parallelism=parallelism, job=name, rate=rate, memory_budget=memory_budget, threads=threads
    )

    def runnable(flow: Flow) -> JobPlan:
        plan = planned(flow)
        _check(plan, runtime, place, resume, from_snapshot or resume_model)
        return plan

    told = Given(from_snapshot, claim, allow_changes, resume_model, take_over)
    start_over(flow, place, name or flow.name, resume, runnable, told)
    known = check_first(flow, runnable, place, resume=resume, from_snapshot=from_snapshot, take_over=take_over)
    if known is not None and detached:
        _refuse_own_cluster(connect(address, verbose))
    flow = hand_over(flow, place, name=name, resume=resume, detached=detached, from_snapshot=from_snapshot)
    start = partial(_start, runtime, address, verbose, take_over)

    def plan_as(planned: Planned) -> JobPlan:
        job = name or flow.name
        plan = plan_with_inputs(flow, planned, place, job, from_snapshot=from_snapshot, include_new=include_new)
        _check(plan, runtime, place, resume, from_snapshot or resume_model)
        return replace(plan, audit=audit, access=plan.access.with_those_of([place]))

    def begin(plan: JobPlan, place: Place, resume: Resume) -> Job:
        begun = begin_in(
            place.folder,
            plan,
            resume=resume,
            from_snapshot=from_snapshot,
            claim=claim,
            allow_changes=allow_changes,
            take_over=take_over,
            may_be_over=place.may_be_over,
        )
        stays = detached and not place.settings.moves  # on its way to another shape it is this script's
        return start(begun.plan, place, begun.start, detached=stays)

    with closing_leases(flow):
        if place is None:
            job = start(begin_nowhere(plan_as(planned), take_over), None, None, detached=detached)
        else:
            job = start_in_shape(plan_as, planned, begin, place, resume, from_snapshot, resume_model)
        job.follow_leases()
        return job


@checked(ConfigurationError)
def warm(
    processes: int,
    *,
    wait: Duration | None = None,
    detached: bool = False,
    address: str | None = None,
    verbose: bool = False,
) -> int:
    """Keep so many processes ready for this script's next jobs, and say how many are.

    They are started at once, in the background, have imported all of Penstock when they are ready, and cost no
    processor time while they wait. A job takes one for each of its tasks, one for its coordinator, and spares; then
    others are started in their place. A job's process that dies is replaced by one of them, too. They belong to this
    script, and end with it. ``wait``: return when that many are ready, or after so long. 0: those that
    wait are ended. ``address``, ``verbose``: as for :func:`run`.

    ``detached``: they belong to the cluster instead. They stay when this script ends, and serve every script of the
    same user with the same runtime environment and the same Penstock, detached jobs included, until
    ``warm(0, detached=True)``.
    """
    if processes < 0:
        raise ConfigurationError(f"warm({processes}) is no number of processes", "give 0, 1, 2, …")
    seconds_of_wait = 0.0 if wait is None else seconds(wait, "wait")
    cluster = connect(address, verbose)
    if detached:
        _refuse_own_cluster(cluster, "a pool that stays")
        from .cluster_pool import keep_for_all

        return keep_for_all(processes, seconds_of_wait)
    from .warming import SCRIPTS

    return SCRIPTS.wait(SCRIPTS.keep(processes), seconds_of_wait)


@checked(ConfigurationError)
def attach(name: str, *, address: str | None = None, verbose: bool = False) -> Job:
    """A running job that another script has started, by its name; ``address``: of its cluster, by default the one that
    runs on this machine, or that RAY_ADDRESS names. Raises ConfigurationError if there is no such job."""
    connect(address or "auto", verbose)
    from .ray_backend import attach_job

    return attach_job(name)


def list_workers(*, address: str | None = None, verbose: bool = False) -> list[Worker]:
    """The processes on a cluster that wait for a job. ``address`` as in :func:`attach`."""
    connect(address or "auto", verbose)
    from .warming import idle_workers

    return idle_workers()


@checked(ConfigurationError)
def list_jobs(*, address: str | None = None, verbose: bool = False) -> list[JobEntry]:
    """The jobs on a cluster, by name, with the status of each. ``address`` as in :func:`attach`."""
    connect(address or "auto", verbose)
    from .ray_backend import list_job_entries

    return list_job_entries()


def _start(
    runtime: Runtime,
    address: str | None,
    verbose: bool,
    take_over: bool,
    plan: JobPlan,
    place: Place | None,
    snapshot: Snapshot | None,
    *,
    detached: bool,
) -> Job:
    """Start what is planned, on the cluster."""
    print_interrupts_briefly()
    cluster = connect(address, verbose)
    from .options import check_detachable
    from .starting import start_job
    from .warm_roles import start_is_over
    from .warming import SCRIPTS

    if detached:
        check_detachable(plan)
        _refuse_own_cluster(cluster)
    try:
        return start_job(plan, place, runtime, snapshot, detached=detached, take_over=take_over)
    except BaseException:
        start_is_over()
        raise
    finally:
        if runtime.warm is not None:
            SCRIPTS.keep(runtime.warm)


def _check_detached(place: Place | None, runtime: Runtime) -> None:
    if place is None:
        raise ConfigurationError(
            "a detached job needs a checkpoint folder that outlives this script",
            'pass checkpoints=ps.Checkpoints("/shared/folder")',
        )
    if runtime.lease_seconds is None:
        raise ConfigurationError(
            "the processes of a detached job must be asked for signs of life: cut off, they would stay for ever",
            "leave heartbeat and lease at their defaults, or give times",
        )


def _check(
    plan: JobPlan, runtime: Runtime, place: Place | None, resume: Resume, path: str | os.PathLike[str] | None
) -> None:
    """What Ray cannot run, and whether what the job is to go on from (``path``) needs a checkpoint folder."""
    _refuse_collecting(plan)
    if not is_connected():
        check_sendable(plan)
    check_spares(plan, runtime.spares)
    runtime.codecs(edge.id for edge in plan.exchanges)  # refuses edges that there are not
    if place is not None:
        return
    if resume == "must":
        raise ConfigurationError(
            'resume="must" needs a checkpoint folder to go on from', 'pass checkpoints=ps.Checkpoints("state/")'
        )
    if path is not None:
        raise ConfigurationError(
            "a job that starts from a snapshot needs a checkpoint folder: a restart goes on from its own checkpoints",
            'pass checkpoints=ps.Checkpoints("state/")',
        )


def _refuse_own_cluster(cluster: ClusterInfo, what: str = "a detached job") -> None:
    if cluster.started:
        disconnect(cluster)
        raise ConfigurationError(
            f"{what} needs a cluster that outlives this script, and this one was started by it",
            'start one (ray start --head) and pass address="auto", or its address',
        )


def _refuse_collecting(plan: JobPlan) -> None:
    """Rows that are collected in memory would stay in an actor's process."""
    for id, (_, config) in plan.sinks.items():
        if isinstance(config, CollectSink):
            raise ConfigurationError(
                "rows collected in an actor never reach this process",
                "leave collect out and let a job look: stream.to_arrow(run=ps.run), or take, iter_batches, …; "
                "end the stream in write_parquet(…); or run the flow with ps.run_local",
                id,
            )
