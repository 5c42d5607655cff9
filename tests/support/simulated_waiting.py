"""Who waits for whom in a simulated cluster that has come to a standstill: from the end of the flow to the culprit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.engine.core.identity import TaskId
from support.simulated_model import CAPACITY

if TYPE_CHECKING:
    from support.simulated_shell import TaskShell
    from support.simulated_task import SimulatedTask


def waiting_for(task: SimulatedTask) -> tuple[str, tuple[TaskId, ...]]:
    """Why the task does nothing, and the tasks that could change it."""
    full = tuple(consumer for _, consumer, channel in task.outputs if len(channel.elements) >= CAPACITY)
    blocked = [channel for channel in task.inputs if channel.barrier is not None and not channel.closed]
    missing = tuple(channel.producer for channel in task.inputs if channel.barrier is None and not channel.closed)
    behind = tuple(c.producer for c in task.inputs if c.round <= task.state.round and not c.data_ended)
    if task.finished or not task.started:
        return ("has finished" if task.finished else "waits to be started by its coordinator"), ()
    if task.data_ended and not task.final_committed:
        return "waits for its final checkpoint to be committed", missing if blocked else ()
    if task.data_ended and task.feed is not None and not task.feed.sequencer.is_finished:
        return "waits for its ranks to have read everything", ()
    if task.data_ended:
        slow = tuple(consumer for _, consumer, channel in task.outputs if not channel.all_processed)
        return "waits until all that it sent is processed", slow or missing
    if full:
        return "waits for room", full
    if task.holds_for is not None:
        return f"holds at the end of round {task.state.round} for checkpoint {task.holds_for}", ()
    if blocked:
        ids = ", ".join(sorted({str(channel.barrier) for channel in blocked}))
        return f"waits for barrier {ids}", missing
    if task.feed is not None and not task.feed.sequencer.ready:
        return f"waits for {task.feed.sequencer.waits_for()}", ()
    if task.flow.graph.deterministic and behind and any(channel.elements for channel in task.inputs):
        return f"waits for the end of round {task.state.round}", behind
    return "waits for rows", missing


def chain_of_waiting(shells: Iterable[TaskShell]) -> Iterator[str]:
    """A sentence for each task on the way from every end of the flow to whoever waits for nobody, or in a circle."""
    tasks = {shell.task.id: shell.task for shell in shells}
    for start in sorted(task for task, each in tasks.items() if each.is_sink and not each.finished):
        links: list[str] = []
        seen: set[TaskId] = set()
        at: TaskId | None = start
        while at is not None and at not in seen:
            seen.add(at)
            if at not in tasks:
                links.append(f"{at} is gone")
                break
            reason, culprits = waiting_for(tasks[at])
            links.append(f"{at} {reason}")
            at = next((each for each in culprits if each not in seen), culprits[0] if culprits else None)
        circle = f", and {at} again: a circle" if at in seen else ""
        yield " ← ".join(links) + circle
