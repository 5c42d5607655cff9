"""Who waits for whom in a job: one sentence for each task, from the consumers back to what holds them up. Pure.

Rules:

1. The first sentence is about a task at the end of the plan; the next ones about those that it waits for, and so on. A
   task that holds others up and waits for none comes at the end of its chain, and the sentence says so.
2. What no chain from the end has come to (producers that wait for room, say) follows, again with those they wait for.
3. A task with several drivers works if one of them can; otherwise it waits for what they all wait for.
4. Tasks that have finished are left out.
5. An open checkpoint waits for the first tasks that have not answered it, and for what these are in the middle of: a
   call of an operator, bytes that are written, or what they wait for themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ...coordinator.model.statistics import PendingStatus
from ...engine.core.identity import TaskId
from ...engine.plan.sizes import size
from ...engine.runtime.statistics import TaskStatistics
from ...engine.scheduler.protocol import HandleStatistics

OVER = frozenset({"finished", "stopped"})


class Standing(msgspec.Struct, frozen=True):
    """What a task reports of itself. ``statistics`` None: it was too busy to answer for ``busy`` seconds; if that is 0,
    it has no attempt."""

    statistics: TaskStatistics | None
    busy: float = 0.0


def chain_of_waiting(
    tasks: Sequence[TaskId], standings: Mapping[TaskId, Standing], states: Mapping[TaskId, str]
) -> list[str]:
    """The sentences. ``tasks``: upstream first; ``states``: as the coordinator has them."""
    live = [task for task in reversed(tasks) if states.get(task) not in OVER]
    waited_for = {other for task in live for other in _waits_for(standings.get(task))}
    sentences = []
    for task in _in_chains(live, standings):
        sentence = _sentence(standings.get(task), states.get(task, "created"))
        held_up = task in waited_for and not _waits_for(standings.get(task))
        sentences.append(f"{task}: {sentence}{'; others wait for it' if held_up else ''}")
    return sentences


def checkpoint_waits(pending: PendingStatus, standings: Mapping[TaskId, Standing]) -> list[str]:
    """What an open checkpoint waits for, a sentence for each task (rule 5)."""
    name = f"{pending.kind} {pending.checkpoint}"
    return [f"{name} waits for {task}: {_under_way(standings.get(task))}" for task in pending.waits_for]


def _under_way(standing: Standing | None) -> str:
    found = None if standing is None else standing.statistics
    if found is None:
        return _sentence(standing, "has no attempt")
    words = [f"it writes {size(found.writing)}"] if found.writing else []
    words += [f"{each.operator or each.driver} has been at a piece for {each.seconds:.1f} s" for each in found.pieces]
    return "; ".join(words) or _sentence(standing, found.state)


def _in_chains(live: Sequence[TaskId], standings: Mapping[TaskId, Standing]) -> Iterator[TaskId]:
    """Every live task once: each chain to its end, the task that most wait for last."""
    known, left = set(live), dict.fromkeys(live)
    for start in live:
        chain = [start]
        while chain:
            task = chain.pop(0)
            if task in left:
                del left[task]
                yield task
                chain += [each for each in _waits_for(standings.get(task)) if each in known]


def _waits_for(standing: Standing | None) -> list[TaskId]:
    """The tasks that a task waits for; none if it works."""
    found = None if standing is None else standing.statistics
    if found is None or _working(found):
        return []
    return list(dict.fromkeys(task for each in found.waits for task in each.wait.tasks if task != found.task))


def _working(found: TaskStatistics) -> list[HandleStatistics]:
    """The drivers that can go on."""
    return [driver for driver in found.drivers if driver.state in ("ready", "running")]


def _sentence(standing: Standing | None, state: str) -> str:
    if standing is None:
        return f"{state}, and its process does not answer"
    found = standing.statistics
    if found is None:
        return f"busy in one step for {standing.busy:g} s, in a user's function maybe" if standing.busy else state
    working = _working(found)
    if working:
        return f"works, in {' and '.join(map(_at_work, working))}"
    return "; ".join(found.why) or state


def _at_work(driver: HandleStatistics) -> str:
    # of one that runs at this moment not all time is counted yet
    return driver.name if driver.state == "running" else f"{driver.name} ({_share(driver):.0%} of its time)"


def _share(driver: HandleStatistics) -> float:
    """The part of its time in which a driver has worked; on its host's thread only ``cpu`` tells."""
    whole = driver.queued + driver.running + driver.paused + sum(driver.waiting.values())
    return min(1.0, max(driver.running, driver.cpu) / whole) if whole else 0.0
