"""How much memory a plan may take, before it runs: credits × channels, budgets, and the batches in hand. Pure.

Rules:

1. A batch has at most ``CHUNK_ROWS`` rows and ``OUTPUT_BYTES`` bytes, whatever its rows weigh: sources cut them so, and
   operators that make more give it in pieces. Only a single row that has more is a batch as it is.
2. Of a channel at most its credit is in flight, and one batch: with credit left, a batch of any size may be sent
   (``edges``). It lies at the producer, on the wire or at the consumer: a process may hold all that is in flight on all
   its channels, the job holds it once.
3. The operators of a task spill when they hold more than its budget; ``WORK`` times as much is taken for a moment by
   what sorts, merges and emits. A sink may have rows that wait to be written, and those of a row group; a feed keeps
   those that its ranks have not taken or not saved, counted by ``row_bytes``, or in bytes where it has a room of so
   many and rows' widths are not known (``held_at_most``): ``explain`` says where the number is a guess.
4. A driver has in hand the batch that it takes, a piece of each of its operators, each of which may have stopped in the
   middle of what it makes, and another one that is being made. A source has for each of its lanes, whose splits it
   reads in turn, what it has read at once and not given yet (``reads_at_once``), and a batch that is put together, and
   one that is read ahead of each lane that is read at the same time. What an open split holds beside (``open_bytes``,
   if it says so) counts once for each lane, tables in memory (``held_bytes``) all the time.
5. What has no number is said in words (``unbounded``): what operators hold whatever the budget is (``beyond_budget`` of
   their traits), and what a source reads at once that does not say how much that is.
6. Not in it: the bytes of a row group that were fetched from a bucket, and the processes themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..core.operator import OUTPUT_BYTES
from ..core.traits import State, traits_of
from ..exchange.channels import DEFAULT_CREDIT
from ..plan.plan import Exchange, JobPlan, OperatorPlan, PipelinePlan, SourcePlan, StagePlan
from ..plan.rounds import LANES_AT_ONCE
from ..plan.sizes import TEXT_BYTES, batch_bytes, is_guessed, row_bytes, size
from ..state.write_behind import LIMIT_BYTES

WORK = 2
"""See rule 3."""


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
class OperatorBound:
    """What an operator has: ``piece`` bytes that it makes at once, and a share of the budget if it ``holds`` anything.
    A sink has ``kept``, which is ``guessed`` where it goes by the width of a row. ``beyond``: rule 5."""

    operator: str
    piece: int
    holds: bool
    kept: int = 0
    guessed: bool = False
    beyond: str = ""

    def __str__(self) -> str:
        found = [
            ("what the budget gives it", self.holds),
            (f"{size(self.kept)} until it is written or taken", self.kept),
            (f"a guess, with {TEXT_BYTES} bytes for a text or a list", self.kept and self.guessed),
            (f"{size(self.piece)} that it makes at a time", self.piece),
        ]
        return f"{self.operator}: {', '.join(words for words, is_there in found if is_there) or 'nothing'}"


@dataclass(frozen=True, slots=True)
class ProcessBound:
    """What one of the ``count`` processes of a stage may hold, in bytes. ``budget`` None: its operators have no bound.
    ``in_hand``: with the pieces of its operators (``parts``)."""

    stage: str
    count: int
    in_flight: int
    in_hand: int
    budget: int | None
    parts: tuple[OperatorBound, ...]
    sources: tuple[str, ...] = ()
    """What they read at once, where that has no bound, in words."""

    @property
    def writing(self) -> int:
        """In sinks."""
        return sum(part.kept for part in self.parts)

    @property
    def own(self) -> int:
        """What is not in flight, without what the operators hold."""
        return self.writing + self.in_hand

    @property
    def operators(self) -> int | None:
        """What they hold before they spill, and what they take for a moment then."""
        return None if self.budget is None else (1 + WORK) * self.budget

    @property
    def unbounded(self) -> Iterator[str]:
        """Rule 5, in words."""
        yield from self.sources
        yield from (f"{part.operator}: {part.beyond}" for part in self.parts if part.beyond)


@dataclass(frozen=True, slots=True)
class MemoryBound:
    """A whole plan. ``bytes``: of all its processes together, beside what is ``unbounded``; None: no bound at all."""

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

    @property
    def unbounded(self) -> tuple[str, ...]:
        """What the sum does not have, in words."""
        return tuple(words for process in self.processes for words in process.unbounded)

    def lines(self) -> Iterator[str]:
        """For ``explain``."""
        for edge in self.edges:
            each = f"{size(edge.credit)} of credit and a batch of {size(edge.batch)}"
            channels = f"{edge.channels} channel{'s' if edge.channels > 1 else ''}"
            yield f"  {edge.edge}: {size(edge.bytes)} in flight: {channels}, {each}"
        for process in self.processes:
            yield f"  stage {process.stage}: {_process(process)}"
            yield from (f"    {part}" for part in process.parts)
        total = self.bytes
        yield "  in all: " + ("no bound, as memory_budget is None" if total is None else size(total))
        if self.unbounded:
            yield f"  beside that, whatever it is: a row of more than {size(OUTPUT_BYTES)}, and"
            yield from (f"    {words}" for words in self.unbounded)


def _process(process: ProcessBound) -> str:
    moment = "" if process.budget is None else f" ({size(process.budget)} before they spill)"
    found = [
        ("in flight", process.in_flight),
        (f"in operators{moment}", process.operators),
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
    read = [plan.sources[port.id] for each in stage.pipelines for port in each.ports if port.kind == "source"]
    return ProcessBound(
        stage=stage.name,
        count=stage.parallelism,
        in_flight=sum(ends_here) + sum(local),
        in_hand=sum(_in_hand(pipeline) for pipeline in stage.pipelines) + sum(_reading(each, stage) for each in read),
        budget=plan.memory_budget if any(_holds(pipeline) for pipeline in stage.pipelines) else 0,
        parts=tuple(_operator_bound(each) for pipeline in stage.pipelines for each in pipeline.operators),
        sources=tuple(f"{each.id}: a batch as it is given" for each in read if _read_at_once(each) is None),
    )


def _holds(pipeline: PipelinePlan) -> bool:
    return any(port.spooled for port in pipeline.ports) or any(_has_state(each) for each in pipeline.operators)


def _has_state(operator: OperatorPlan) -> bool:
    traits = traits_of(operator.config)
    no_rows = traits.state is State.NONE or (traits.state is State.COUNTERS and not traits.beyond_budget)
    return not operator.is_sink and not no_rows


def _operator_bound(operator: OperatorPlan) -> OperatorBound:
    traits = traits_of(operator.config)
    piece, holds = _piece(operator), _has_state(operator)
    is_open = traits.held_bytes is not None and is_guessed(operator.inputs[0])
    if is_open and traits.held_at_most is not None:
        kept, beyond = traits.held_at_most
        return OperatorBound(operator.id, piece, holds, kept, beyond=beyond)
    kept = _kept(operator) if operator.is_sink else 0
    return OperatorBound(operator.id, piece, holds, kept, is_open, traits.beyond_budget)


def _piece(operator: OperatorPlan) -> int:
    return 0 if operator.is_sink else batch_bytes(operator.config.output_schema(operator.inputs))


def _kept(sink: OperatorPlan) -> int:
    """Rows that it says it keeps, or those that wait for the disk."""
    held = traits_of(sink.config).held_bytes
    return LIMIT_BYTES if held is None else held(row_bytes(sink.inputs[0]))


def _in_hand(pipeline: PipelinePlan) -> int:
    """Rule 4, for a driver."""
    taken = [batch_bytes(port.schema) for port in pipeline.ports]
    made = [_piece(each) for each in pipeline.operators]
    return max(taken, default=0) + sum(made) + max(*taken, *made, 0)


def _reading(source: SourcePlan, stage: StagePlan) -> int:
    """Rule 4, for a source."""
    lanes = min(-(-stage.lanes // stage.parallelism), len(source.splits) or stage.lanes)  # a fed source has none yet
    at_once = _read_at_once(source)
    left = batch_bytes(source.schema) if at_once is None else at_once
    left *= max((int(getattr(split, "open_at_once", 1)) for split in source.splits), default=1)
    open_bytes = max((int(getattr(split, "open_bytes", 0)) for split in source.splits), default=0)
    held = sum(int(getattr(split, "held_bytes", 0)) for split in source.own_splits)
    return lanes * (left + open_bytes) + (1 + lanes_at_once(source)) * batch_bytes(source.schema) + held


def lanes_at_once(source: SourcePlan) -> int:
    """How many lanes of a source are read at a time, where there are threads for it (``sources.split_queue``)."""
    gives_chunks = any(getattr(split, "has_statistics", False) for split in source.splits)
    return LANES_AT_ONCE if gives_chunks and not source.repeats else 1


def _read_at_once(source: SourcePlan) -> int | None:
    found: int | None = getattr(source.config, "reads_at_once", None)
    return found
