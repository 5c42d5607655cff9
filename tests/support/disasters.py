"""Disasters that happen to a running job, drawn from a seed. Signals and limits are real; nothing is simulated.

Rules:

1. The seed draws everything: what happens, to whom, and after which share of the rows. ``KINDS`` takes turns with the
   seeds, so that a row of as many seeds as kinds has each once.
2. What a disaster takes away for a while (a processor, room on a disk) it gives back; the job does the rest.
3. Only processes of the job itself are touched.
4. In a crowd, nine other jobs run beside it on the same cores, and the disaster may be that of any of the ten. All must
   write their own rows.
"""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import penstock as ps
from support.chaos_job import differences, make_flow, outputs
from support.ray_jobs import expected, gather_flow, written

HEARTBEAT = 5.0
PATIENCE = 180.0
CROWD_PACE = 400.0
"""Rows per second of each of the others, which last for 24 seconds: about as long as it takes to start them all."""

SHARES = (0.02, 0.9)
"""A disaster comes when the sources have read a share of their rows between these."""


def kill_driver(job: Any, draw: random.Random) -> str:
    task = draw.choice(job.tasks())
    job.kill_task(task)
    return f"SIGKILL of {task}"


def kill_two_drivers(job: Any, draw: random.Random) -> str:
    tasks = draw.sample(job.tasks(), 2)
    for task in tasks:
        job.kill_task(task)
    return f"SIGKILL of {tasks[0]} and {tasks[1]}"


def kill_coordinator(job: Any, draw: random.Random) -> str:
    job.kill_coordinator()
    return "SIGKILL of the coordinator"


def kill_both(job: Any, draw: random.Random) -> str:
    task = draw.choice(job.tasks())
    job.kill_task(task)
    job.kill_coordinator()
    return f"SIGKILL of {task} and the coordinator"


def kill_again(job: Any, draw: random.Random) -> str:
    """The second death comes while the job recovers from the first."""
    first, second = draw.choice(job.tasks()), draw.choice(job.tasks())
    job.kill_task(first)
    job.wait_until(lambda status: status.restarts > 0, PATIENCE)
    job.kill_task(second)
    return f"SIGKILL of {first}, and of {second} during the recovery"


def kill_one(job: Any, draw: random.Random) -> str:
    return f"{draw.choice([kill_driver, kill_coordinator])(job, draw)} of {job.name}"


def stop_driver(job: Any, draw: random.Random) -> str:
    """It is still stopped when it is taken for hung."""
    task = draw.choice(job.tasks())
    os.kill(job.identities()[task].pid, signal.SIGSTOP)
    return f"SIGSTOP of {task} for good"


def stop_driver_for_a_while(job: Any, draw: random.Random) -> str:
    task, seconds = draw.choice(job.tasks()), draw.uniform(0.1, 2.0)
    stop_for(job.identities()[task].pid, seconds)
    return f"SIGSTOP of {task} for {seconds:.1f} s"


def stop_coordinator_for_a_while(job: Any, draw: random.Random) -> str:
    seconds = draw.uniform(0.1, HEARTBEAT)
    stop_for(job.coordinator_process(), seconds)
    return f"SIGSTOP of the coordinator for {seconds:.1f} s"


def cut_connections(job: Any, draw: random.Random) -> str:
    tasks = draw.sample(job.tasks(), draw.randint(1, 2))
    for task in tasks:
        job.cut_task(task)
    return f"connections of {' and '.join(map(str, tasks))} dropped"


def fill_disk(job: Any, draw: random.Random) -> str:
    """All processes are refused to write more than a few bytes to any file: as on a full disk, writes fail half-way."""
    pids = [identity.pid for identity in job.identities().values()] + [job.coordinator_process()]
    before = job.status()
    for pid in pids:
        limit_files(pid, 16)

    def felt(status: Any) -> bool:
        failed = status.checkpoints_failed > before.checkpoints_failed
        return bool(failed or status.restarts > before.restarts or status.generation > before.generation)

    status = job.wait_until(felt, PATIENCE)
    time.sleep(draw.uniform(0.0, 1.0))  # the disk is full for so long after somebody has noticed
    for pid in pids:
        limit_files(pid, resource.RLIM_INFINITY)
    return f"no room on the disk until {'writes failed' if felt(status) else 'the job was over'}"


def stop_for(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)  # it is stopped for so long
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def limit_files(pid: int, size: int) -> None:
    with suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))


Disaster: TypeAlias = Callable[[Any, random.Random], str]
"""Lets something happen to a job, and says what."""

CROWD = "killed among ten jobs"
KINDS: dict[str, Disaster] = {
    "driver killed": kill_driver,
    "coordinator killed": kill_coordinator,
    "driver and coordinator killed": kill_both,
    "driver stopped for good": stop_driver,
    "driver stopped for a while": stop_driver_for_a_while,
    "connections dropped": cut_connections,
    "disk full for a while": fill_disk,
    "two drivers killed": kill_two_drivers,
    "coordinator stopped for a while": stop_coordinator_for_a_while,
    "driver killed during a recovery": kill_again,
    CROWD: kill_one,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job came through. ``wrong``: what is not as it should be, in a sentence each."""

    seed: int
    kind: str
    what: str
    restarts: int
    generation: int
    seconds: float
    wrong: tuple[str, ...]


def undergo(
    seed: int,
    folder: Path,
    undisturbed: dict[str, Any],
    kinds: Mapping[str, Disaster] = KINDS,
    *,
    spread: bool = False,
) -> Outcome:
    """Run the job below ``folder``, let the disaster of the seed happen to it, and compare the outputs."""
    draw = random.Random(seed)
    kind = list(kinds)[seed % len(kinds)]
    share, every, spares = draw.uniform(*SHARES), draw.choice(["100ms", "300ms", "1s"]), draw.choice([0, 0, 1])
    checkpoints = ps.Checkpoints(
        folder / "state", every=every, max_restarts=20, restart_delay="50ms", tolerable_failures=1000
    )
    runtime = ps.Runtime(heartbeat=HEARTBEAT, spares=spares, spread=spread)
    flow, started = make_flow(folder / "out"), time.monotonic()
    with crowd(folder / "crowd", 9 if kind == CROWD else 0) as others:
        job = ps.run(flow, name=f"chaos-{seed}", parallelism=2, checkpoints=checkpoints, runtime=runtime)
        with job:
            job.wait_until(lambda status: status.state == "running", PATIENCE)
            wait_for_rows(job, share)
            running = [each for each in (job, *others) if each.status().state == "running"]
            what = kinds[kind](draw.choice(running or [job]), draw)
            wrong = ended_wrong(job)
            wrong += differences(outputs(folder / "out"), undisturbed)
        for other, out in others.items():
            wrong += ended_wrong(other)
            wrong += [] if written(out).equals(expected().combine_chunks()) else [f"{other.name} wrote other rows"]
    everybody = [each.status() for each in (job, *others)]
    restarts, generation = sum(each.restarts for each in everybody), max(each.generation for each in everybody)
    at = f"{what}, after {share:.0%} of the rows"
    seconds = time.monotonic() - started
    return Outcome(seed, kind, at, restarts, generation, seconds, tuple(wrong))


@contextmanager
def crowd(folder: Path, size: int) -> Iterator[dict[Any, Path]]:
    """So many other jobs that run, with the outputs of each. All flows have one name."""
    with ExitStack() as stack:
        jobs = {}
        for number in range(size):
            out, state = folder / f"out-{number}", ps.Checkpoints(folder / f"state-{number}", every="300ms")
            job = ps.run(gather_flow(out, CROWD_PACE), name=f"other-{number}", parallelism=1, checkpoints=state)
            jobs[stack.enter_context(job)] = out
        yield jobs


def ended_wrong(job: Any) -> list[str]:
    """Wait for its end, and say what is not as it should be."""
    status, audit = job.wait(PATIENCE).status(), job.audit()
    wrong = [] if audit.clean else [str(audit)]
    return wrong if status.state == "finished" else [*wrong, f"{job.name} ended as {status.state}"]


def wait_for_rows(job: Any, share: float) -> None:
    """Wait until the sources have read this share of all rows (or the job is over)."""
    total = sum(source.rows for source in job.plan.sources.values())
    while job.status().state == "running":
        if sum(source.rows for found in job.statistics().values() for source in found.sources) >= share * total:
            return
