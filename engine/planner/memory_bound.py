"""How much memory a plan may take, before it runs: credits × channels, budgets, and the batches in hand. Pure.

Rules:

1. Of a channel at most its credit is in flight, and one batch: with credit left, a batch of any size may be sent
   (``edges``). It lies at the producer, on the wire or at the consumer: a process may hold all that is in flight on all
   its channels, the job holds it once.
2. The operators of a task spill when they hold more than its budget. A sink may have rows that wait to be written, and
   those of a row group; a feed keeps those that its ranks have not taken or not saved.
3. A driver has two batches in hand, what it takes and what it gives; a source one for each of its lanes, whose splits
   it reads in turn, and one that is read ahead. What an open split holds beside (``open_bytes``, if it says so) counts
   once for each lane.
4. Not in it: what sorting, merging and emitting take for a moment, what operators that cannot spill hold beyond the
   budget, the bytes of a row group that were fetched from a bucket, what user code keeps, and the processes themselves.
   Batches are taken to have at most ``CHUNK_ROWS`` rows, as sources cut them, and texts ``TEXT_BYTES`` bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..core.traits import State, traits_of
from ..exchange.channels import DEFAULT_CREDIT
from ..plan.plan import Exchange, JobPlan, OperatorPlan, PipelinePlan, SourcePlan, StagePlan
from ..plan.rounds import CHUNK_ROWS
from ..plan.sizes import batch_bytes, size
from ..state.write_behind import LIMIT_BYTES


@dataclass(frozen=True, slots=True)
class EdgeBound:
    """What may be in flight on an edge: ``channels`` in the whole job, a credit and a ``batch`` (bytes) each."""

    edge: str
    channels: int
    batch: int
    credit: int = DEFAULT_CREDIT

    @property
    def bytes(self) -> int:
        """All of it."""
        return self.channels * (self.credit + self.batch)


@dataclass(frozen=True, slots=True)
class ProcessBound:
    """What one of the ``count`` processes of a stage may hold, in bytes. ``operators`` None: no bound."""

    stage: str
    count: int
    in_flight: int
    writing: int
    in_hand: int
    operators: int | None

    @property
    def own(self) -> int:
        """What is not in flight, without the operators."""
        return self.writing + self.in_hand


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """A whole plan. ``bytes``: of all its processes together; None: the operators have no bound."""

    edges: tuple[EdgeBound, ...]
    processes: tuple[ProcessBound, ...]

    @property
    def in_flight(self) -> int:
        """On all edges together."""
        return sum(edge.bytes for edge in self.edges)

    @property
    def bytes(self) -> int | None:
        held = [process.operators for process in self.processes]
        if None in held:
            return None
        own = sum(process.count * (process.own + (process.operators or 0)) for process in self.processes)
        return self.in_flight + own

    def lines(self) -> Iterator[str]:
        """For ``explain``."""
        for edge in self.edges:
            each = f"{size(edge.credit)} of credit and a batch of about {size(edge.batch)}"
            channels = f"{edge.channels} channel{'s' if edge.channels > 1 else ''}"
            yield f"  {edge.edge}: {size(edge.bytes)} in flight: {channels}, {each}"
        for process in self.processes:
            yield f"  stage {process.stage}: {_process(process)}"
        total = self.bytes
        yield "  in all: " + ("no bound, as memory_budget is None" if total is None else size(total))


def _process(process: ProcessBound) -> str:
    found = [
        ("in flight", process.in_flight),
        ("in operators before they spill", process.operators),
        ("in sinks", process.writing),
        ("in hand", process.in_hand),
    ]
    parts = [
        f"{'any number of bytes' if amount is None else size(amount)} {what}" for what, amount in found if amount != 0
    ]
    each = "its process" if process.count == 1 else f"each of {process.count} processes"
    return f"{each} {', '.join(parts) or 'nothing'}"


def memory_bound(plan: JobPlan) -> MemoryBound:
    """The bound of a plan."""
    edges = {edge.id: _exchange_bound(plan, edge) for edge in plan.exchanges}
    for stage in plan.stages.values():
        edges |= {edge.edge: edge for edge in _local_bounds(stage)}
    return MemoryBound(
        tuple(edges.values()), tuple(_process_bound(plan, stage, edges) for stage in plan.stages.values())
    )


def _exchange_bound(plan: JobPlan, edge: Exchange) -> EdgeBound:
    channels = len(edge.peers_of(0, plan.stages[edge.target].parallelism)) * plan.stages[edge.source].parallelism
    return EdgeBound(edge.id, channels, batch_bytes(edge.schema))


def _local_bounds(stage: StagePlan) -> Iterator[EdgeBound]:
    for pipeline in stage.pipelines:
        for port in pipeline.ports:
            if port.kind == "local":
                yield EdgeBound(port.id, stage.parallelism, batch_bytes(port.schema))


def _process_bound(plan: JobPlan, stage: StagePlan, edges: dict[str, EdgeBound]) -> ProcessBound:
    ends = [edge for edge in plan.exchanges if stage.name in (edge.source, edge.target)]
    ends_here = [edges[edge.id].bytes // stage.parallelism for edge in ends]
    local = [edge.bytes // stage.parallelism for edge in _local_bounds(stage)]
    return ProcessBound(
        stage=stage.name,
        count=stage.parallelism,
        in_flight=sum(ends_here) + sum(local),
        writing=sum(_writing(pipeline) for pipeline in stage.pipelines),
        in_hand=sum(_in_hand(plan, stage, pipeline) for pipeline in stage.pipelines),
        operators=plan.memory_budget if any(_holds(pipeline) for pipeline in stage.pipelines) else 0,
    )


def _holds(pipeline: PipelinePlan) -> bool:
    spooled = any(port.spooled for port in pipeline.ports)
    held = (traits_of(each.config).state for each in pipeline.operators if not each.is_sink)
    return spooled or any(state is not State.NONE for state in held)


def _writing(pipeline: PipelinePlan) -> int:
    return sum(_kept(each) for each in pipeline.operators if each.is_sink)


def _kept(sink: OperatorPlan) -> int:
    """Rows that it says it keeps, or those that wait for the disk."""
    held = traits_of(sink.config).held_bytes
    return LIMIT_BYTES if held is None else held(batch_bytes(sink.inputs[0]) // CHUNK_ROWS)


def _in_hand(plan: JobPlan, stage: StagePlan, pipeline: PipelinePlan) -> int:
    """Rule 3."""
    sizes = [batch_bytes(port.schema) for port in pipeline.ports]
    lanes = -(-stage.lanes // stage.parallelism)
    sources = [port for port in pipeline.ports if port.kind == "source"]
    read = [(lanes + 1) * batch_bytes(port.schema) for port in sources]
    opened = [min(lanes, len(plan.sources[port.id].splits)) * _open_bytes(plan.sources[port.id]) for port in sources]
    return 2 * max(sizes, default=0) + sum(read) + sum(opened)


def _open_bytes(source: SourcePlan) -> int:
    """Of the largest split."""
    return max((int(getattr(split, "open_bytes", 0)) for split in source.splits), default=0)
