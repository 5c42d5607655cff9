"""Which sources wait for others before they get their barrier, so that a region's sources stay near each other. Pure.

A barrier of a deterministic flow stands at the largest round that a source of the region has proposed. Sources that are
far behind have to read up to it, and nothing but the credits of channels keeps sources together: rounds of which all
rows are filtered away need none. So the way to the barrier would grow with the age of the job.

Rules:

1. Sources that stand at the barrier's round already *wait* if another one is ``lead`` rounds behind: they get their
   trigger, and go on, when those behind have cut. Then all of them stand behind the same round.
2. Only sources that stand there wait. They have sent everything up to that round, and nobody who is behind needs more:
   tasks go through the rounds of their inputs in step, and what comes behind an aligned barrier is not read before
   all barriers have come. So whoever is behind reaches the round, or comes to its end, which gives the checkpoint up.
3. Only tasks that read one source, whose rounds are not cut short, are kept in step (``Vertex.in_step``): of others the
   proposal does not say where each of their sources stands.
4. Nobody waits for a source that has ended, nor for another region.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ...engine.core.identity import FINAL_ROUND, TaskId


@dataclass(slots=True)
class Waiting:
    """Of one region: the tasks that wait, and those that they wait for."""

    tasks: set[TaskId]
    behind: set[TaskId]


def who_waits(
    proposals: Mapping[TaskId, int], regions: Mapping[TaskId, int], in_step: Collection[str], lead: int
) -> dict[int, Waiting]:
    """Who waits for whom, by region. ``regions``: of every task that proposed; ``in_step``: the vertices of rule 3."""
    live = [(task, round) for task, round in proposals.items() if round < FINAL_ROUND]
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for task, round in live:
        region = regions[task]
        first[region] = min(round, first.get(region, round))
        last[region] = max(round, last.get(region, round))
    apart = {region for region, round in last.items() if lead and round - first[region] >= lead}
    waiting = {region: Waiting(set(), set()) for region in apart}
    for task, round in live:
        region = regions[task]
        if region not in waiting:
            continue
        if round < last[region]:
            waiting[region].behind.add(task)
        elif task.vertex in in_step:
            waiting[region].tasks.add(task)
    return {region: each for region, each in waiting.items() if each.tasks}
