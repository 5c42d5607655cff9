"""What the command line shows of running jobs, and asks of them: ``penstock list``, ``status``, ``stop`` and so on.

The jobs run on a Ray cluster; which one is said by ``address``, by RAY_ADDRESS, or it is the one on this machine.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from ..actors.job.launch import attach, list_jobs, list_workers
from ..coordinator.model.statistics import CheckpointStatistics, JobStatus, Overview, PendingStatus
from ..engine.plan.sizes import size


def show_list(address: str | None) -> Iterator[str]:
    """One line for each job of the cluster."""
    for entry in list_jobs(address=address):
        held = "detached" if entry.detached else "attached"
        if entry.status is None:
            yield f"{entry.name}: its coordinator does not answer now"
        else:
            yield f"{_headline(entry.status)}, {held}"


def show_workers(address: str | None) -> Iterator[str]:
    """One line for each process of the cluster that waits for a job."""
    for each in list_workers(address=address):
        where = f"process {each.pid} on {each.node}"
        whose = f"the cluster, as {each.owner}" if each.is_shared else f"script {each.owner}"
        yield f"{where}: ready since {time.time() - each.since:.0f} s, {size(each.memory)}, for {whose}"


def show_status(name: str, address: str | None) -> Iterator[str]:
    """The state of a job: tasks, checkpoints, pins, what its sources have left out."""
    job = attach(name, address=address)
    status, shown = job.status(), job.checkpoints()
    yield _headline(status)
    yield f"  {status.why}"
    states = Counter(status.tasks.values())
    yield "  tasks: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    yield from (f"  {_in_flight(pending)}" for pending in status.in_flight)
    yield from (f"  {line}" for line in _checkpoints(shown))
    yield from (f"  {line}" for line in job.statistics().left_out)
    yield from (f"  pinned by {holder}: checkpoint {checkpoint}" for holder, checkpoint in sorted(status.pins.items()))


def show_checkpoints(name: str, address: str | None) -> Iterator[str]:
    """The newest checkpoints of a job, the newest first: where the time of each went, and its bytes."""
    for one in attach(name, address=address).checkpoints().history:
        yield f"{one.kind} {one.checkpoint}: {one.status}{_visibility(one)}"
        yield f"  {_times(one)}"
        yield f"  {_bytes(one)}"
        if one.failure:
            yield f"  {one.failure}"


def _visibility(one: CheckpointStatistics) -> str:
    if one.status != "completed":
        return f", {one.acknowledged} of {one.total} tasks"
    if one.visible is None:
        return f", {one.rows:,} rows not all visible yet"
    return f", {one.rows:,} rows visible after {one.visible:.3f} s" if one.rows else ", with no new row to show"


def _times(one: CheckpointStatistics) -> str:
    slowest = "" if one.slowest is None else f"; slowest {one.slowest.task}"
    commit = "" if one.commit is None else f", commit {one.commit:.3f} s"
    return f"place {one.place:.3f} s, pause {one.pause:.3f} s, write {one.write:.3f} s{commit}{slowest}"


def _bytes(one: CheckpointStatistics) -> str:
    return f"{size(one.new_bytes)} new, {size(one.referenced_bytes)} referenced, {size(one.persisted_bytes)} in flight"


def show_why(name: str, address: str | None) -> Iterator[str]:
    """What a job and its tasks wait for, one sentence each."""
    yield from attach(name, address=address).why()


def take_savepoint(
    name: str, address: str | None, path: str | None, timeout: float | None, aligned: bool
) -> Iterator[str]:
    """Take a savepoint; the job goes on."""
    saved = attach(name, address=address).savepoint(path, timeout, aligned=aligned)
    yield f"savepoint {saved.id} of job {name} is in {saved.path}"


def stop_job(
    name: str, address: str | None, path: str | None, drain: bool, timeout: float | None, aligned: bool
) -> Iterator[str]:
    """Stop a job with a savepoint."""
    saved = attach(name, address=address).stop(drain=drain, savepoint=path, timeout=timeout, aligned=aligned)
    yield f"job {name} is stopped; savepoint {saved.id} is in {saved.path}"


def cancel_job(name: str, address: str | None, timeout: float | None) -> Iterator[str]:
    """End a job; what is committed stays."""
    job = attach(name, address=address)
    job.cancel()
    status = job.wait_until(lambda status: status.is_over, timeout)
    yield f"job {name} is {status.state}; its checkpoints are in {job.folder}"


def _headline(status: JobStatus) -> str:
    latest = "no checkpoint" if status.latest_completed is None else f"checkpoint {status.latest_completed}"
    return f"{status.job}: {status.state}, {latest} (of {status.checkpoints_completed}), restarts {status.restarts}"


def _in_flight(pending: PendingStatus) -> str:
    done = f"{pending.acknowledged} of {pending.total} tasks"
    return f"{pending.kind} {pending.checkpoint} in flight: {pending.phase}, {done}"


def _checkpoints(shown: Overview) -> Iterator[str]:
    counts = shown.counts
    restored = f"{counts.restored} restored"
    yield f"checkpoints and savepoints: {counts.completed} completed, {counts.failed} failed, {restored}"
    for word, one in (("latest", shown.completed), ("latest failed", shown.failed), ("savepoint", shown.savepoint)):
        if one is not None:
            yield f"{word} {one.checkpoint}: {_figures(one)}"


def _figures(one: CheckpointStatistics) -> str:
    words = [] if one.duration is None else [f"{one.duration:.3f} s"]
    words += [size(one.bytes)]
    if one.slowest is not None:
        words += [f"slowest {one.slowest.task}"]
    return ", ".join(words + [each for each in (one.location, one.failure) if each])
