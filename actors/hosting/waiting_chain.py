"""Who waits for whom in a job: one sentence for each task, from the consumers back to what holds them up. Pure.

Rules:

1. The first sentence is about a task at the end of the plan; the next ones about those that it waits for, and so on. A
   task that holds others up and waits for none comes at the end of its chain, and the sentence says so.
2. What no chain from the end has come to (producers that wait for room, say) follows, again with those they wait for.
3. A task with several drivers works if one of them can; otherwise it waits for what they all wait for.
4. Tasks that have finished are left out.
5. An open checkpoint waits for the first tasks that have not answered it, and for what these are in the middle of: a
   call of an operator, bytes that are written, barriers of named channels, or what they wait for themselves. A task
   that has cut goes on working, so what its drivers are at does not hold up the checkpoint any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from ...coordinator.model.statistics import PendingStatus
from ...engine.core.identity import CheckpointId, TaskId
from ...engine.plan.sizes import size
from ...engine.runtime.statistics import CutStatistics, PieceStatistics, TaskStatistics
from ...engine.runtime.task_cut import CutPhase
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
    name, checkpoint = f"{pending.kind} {pending.checkpoint}", pending.checkpoint
    told = [(task, _under_way(standings.get(task), checkpoint)) for task in pending.waits_for]
    return [f"{name} waits for {task}: {words}" for task, words in told]


def _under_way(standing: Standing | None, checkpoint: CheckpointId) -> str:
    found = None if standing is None else standing.statistics
    return _sentence(standing, "has no attempt") if found is None else what_it_is_at(found, checkpoint)


def what_it_is_at(found: TaskStatistics, checkpoint: CheckpointId) -> str:
    """What a task is in the middle of that has not answered the checkpoint (rule 5)."""
    words = [f"it has been writing {size(found.writing)} for {found.writing_seconds:.1f} s"] if found.writing else []
    cut = found.cut
    if cut is None or cut.phase is CutPhase.ASKED or not _knows(cut, checkpoint):
        words += map(_at_a_piece, found.pieces)
    if cut is not None:
        words += _of_cut(cut, checkpoint)
    return "; ".join(words) or _sentence(Standing(found), found.state)


def _at_a_piece(found: PieceStatistics) -> str:
    shorter = ", which ps.Traits(rows_at_once=…) would make shorter" if found.is_whole else ""
    return f"{found.operator or found.driver} has been at a piece for {found.seconds:.1f} s{shorter}"


def _knows(cut: CutStatistics, checkpoint: CheckpointId) -> bool:
    """Whether the task has heard of the checkpoint."""
    return cut.checkpoint is not None and cut.checkpoint >= checkpoint


def _of_cut(cut: CutStatistics, checkpoint: CheckpointId) -> Iterator[str]:
    """What holds up a cut, but for pieces and bytes."""
    since = f"{cut.seconds:.1f} s ago"
    if not _knows(cut, checkpoint):
        if cut.missing:
            yield f"it has seen no barrier: that of {_channels(cut)} is missing"
    elif cut.phase is CutPhase.ASKED:
        late = f", when {' and '.join(cut.late)} is through a task barrier or has spilled" if cut.late else ""
        yield f"it was asked to cut {since}, and does between two pieces{late}"
    elif cut.phase is CutPhase.OPEN:
        if cut.missing:
            yield f"it has cut, asked {since}, and the barrier of {_channels(cut)} is missing"
        if cut.unwritten:
            yield f"what the sinks of {' and '.join(cut.unwritten)} flushed is being written"


def _channels(cut: CutStatistics) -> str:
    exchanges: dict[str, list[str]] = {}
    for exchange, producer in cut.missing:
        exchanges.setdefault(exchange, []).append(str(producer))
    said = " and ".join(f"{exchange} from {', '.join(tasks)}" for exchange, tasks in exchanges.items())
    more = cut.missing_count - len(cut.missing)
    return f"{said} and {more} more" if more else said


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
