"""Where the barriers of a plan may overtake batches (unaligned checkpoints), and where they stand in order. Pure.

Rules:

1. Only where the order is that of arrival: in a deterministic flow a barrier stands at the end of the same round in all
   channels, or the ordered merge and the alignment wait for each other.
2. An exchange is *free* if no driver with several ports (a join, a union) follows it in the flow. Such a driver goes
   through the rounds of its ports in step, so barriers must come to it behind the same round on all of them. On free
   exchanges barriers overtake, on all others, and within tasks, they keep their place.
3. A source that is read by quota may cut its round short for a barrier: it ends it where it stands. One that feeds a
   merge join is read split by split and cannot. A source from which only free exchanges lead on is free, too: its
   barrier goes out even if nobody takes its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..plan.plan import JobPlan, PipelinePlan


@dataclass(frozen=True, slots=True)
class Overtaking:
    """What one driver's barriers may pass. ``exchange``: whose batches in its inputs ("" if it reads a source), and
    ``output``: the exchange whose batches it has made and not sent yet; None: they keep their place there."""

    exchange: str | None = None
    output: str | None = None


IN_ORDER = Overtaking()


class FreeEdges:
    """Which edges and sources of a plan are free (rules 2 and 3)."""

    def __init__(self, plan: JobPlan) -> None:
        self._exchanges = {exchange.id for exchange in plan.exchanges}
        pipelines = [pipeline for stage in plan.stages.values() for pipeline in stage.pipelines]
        self._readers = {port.id: pipeline for pipeline in pipelines for port in pipeline.ports}
        self._known: dict[str, bool] = {}

    def is_free(self, edge: str) -> bool:
        """Whether no driver with several ports reads the edge (or source), or what is made of it."""
        if edge not in self._known:
            reader = self._readers[edge]
            self._known[edge] = len(reader.ports) == 1 and all(self.is_free(output.id) for output in reader.outputs)
        return self._known[edge]

    def of(self, pipeline: PipelinePlan) -> Overtaking:
        """What barriers may pass at the driver of the pipeline."""
        port = pipeline.ports[0]
        if port.kind == "local" or not self.is_free(port.id):
            return IN_ORDER
        outputs = [output.id for output in pipeline.outputs]
        ahead = bool(outputs) and all(output in self._exchanges for output in outputs)
        return Overtaking("" if port.kind == "source" else port.id, outputs[0] if ahead else None)


def cuts_whole(plan: JobPlan) -> bool:
    """Whether the tasks of the plan cut as a whole at unaligned barriers (``runtime.task_cut``). Not those of a flow
    that is fed: its checkpoints stand between windows, where nothing is in flight, and so fit every parallelism."""
    return plan.deterministic and not plan.fed


def with_alignment(plan: JobPlan, timeout: float | None) -> JobPlan:
    """The plan, with barriers that overtake after ``timeout`` seconds (0: at once, None: never). In a flow with
    deterministic order none does: its tasks cut as a whole, when the coordinator says so. Nor in one that is fed, where
    a barrier could overtake a task barrier; between two windows nothing is in its way."""
    return plan if plan.deterministic or plan.fed else replace(plan, alignment_timeout=timeout)
