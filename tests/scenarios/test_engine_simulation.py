"""The real engine under the real coordinator, by seed: whatever goes wrong, the rows and their order are the same.

The second half breaks the engine on purpose, one rule a test, and wants the oracles to notice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import pyarrow as pa
import pytest

from penstock.actors.protocol.translate import execution_graph
from penstock.coordinator.machine import Coordinator
from penstock.coordinator.model.commands import DeployTask
from penstock.coordinator.model.events import TaskFailed, TaskLost
from penstock.coordinator.model.job_states import TaskStatus
from penstock.engine.core.elements import Batch, Element
from penstock.engine.core.identity import CheckpointId, Committable, TaskId
from penstock.engine.exchange.channels import InputChannel
from penstock.engine.exchange.input_gate import Delivered
from penstock.engine.flow.flow import Flow
from penstock.engine.planner import broadcasting, pipelines
from penstock.engine.runtime.driver import Driver
from penstock.engine.runtime.input_ports import Port
from penstock.engine.runtime.operator_chain import Division, OperatorChain, divide
from penstock.engine.runtime.task import Task
from penstock.engine.runtime.task_builder import _Builder
from penstock.engine.sources.reader import SplitReader
from support import engine_simulation_shapes
from support.engine_simulation import FAULTS, NO_FAULTS, SETTINGS, EngineSimulation, Faults, Sizes
from support.engine_simulation_flows import Disk
from support.engine_simulation_runs import check, expected_rows, rows_of, shape_of, simulate, varied
from support.engine_simulation_shapes import SHAPES, WIDEST, plan_of
from support.exchange_flows import FORWARDS, forwarded
from support.join_flows import JOINS, both_in_parts, drawn
from support.sequence_flows import SEQUENCES
from support.sweeps import swept
from support.trailer_flows import TRAILERS, teed, trailed, trailed_and_gathered

Shape = Callable[[Disk, Flow], None]

SEEDS = 280
FEW = 84
PER_TEST = 28


@pytest.mark.parametrize("first", [first if first < FEW else swept(first) for first in range(0, SEEDS, PER_TEST)])
def test_committed_rows_and_their_order_equal_those_of_a_run_without_failures(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        simulate(seed)


@pytest.mark.parametrize("shape", [SHAPES.index(shape) for shape in SEQUENCES])
def test_sequences_are_the_same_whatever_goes_wrong(shape: int) -> None:
    for seed in range(PER_TEST // 4):
        simulate(seed, shape)


@pytest.mark.parametrize("first", [0, *map(swept, range(3, 30, 3))])
@pytest.mark.parametrize("shape", JOINS)
def test_sides_that_are_read_first_change_nothing_whatever_goes_wrong(shape: Shape, first: int) -> None:
    for seed in range(first, first + 3):
        simulate(seed, SHAPES.index(shape))


@pytest.mark.parametrize("first", [0, *map(swept, range(40, 2000, 40))])
def test_joins_of_forked_streams_come_to_their_end_whichever_side_is_read_first(first: int, monkeypatch) -> None:
    quiet = replace(SETTINGS, interval=None)
    for seed in range(first, first + 40):
        monkeypatch.setattr(engine_simulation_shapes, "SHAPES", (drawn(seed),))
        with monkeypatch.context() as patched:
            patched.setattr(pipelines, "read_first", lambda sizes: {})
            wanted = rows_of(EngineSimulation(seed, 0, (1,), NO_FAULTS, quiet, Sizes(10_000, 100)).run())
        found = EngineSimulation(seed, 0, (1,), NO_FAULTS, quiet, Sizes(1, 1)).run()
        assert rows_of(found) == wanted, f"seed {seed}"
        assert rows_of(varied(seed, shape=0).run()) == wanted, f"seed {seed}"


@pytest.mark.parametrize("first", [0, *map(swept, range(3, 30, 3))])
def test_joins_that_are_broadcast_by_size_change_nothing_whatever_goes_wrong(first: int, monkeypatch) -> None:
    monkeypatch.setattr(broadcasting, "WORTH", 0)
    monkeypatch.setattr(broadcasting, "TIMES", 0)
    for seed in range(first, first + 3):
        simulate(seed, SHAPES.index(both_in_parts))


@pytest.mark.parametrize("shape", JOINS)
def test_rows_are_those_of_a_plan_that_reads_both_sides_in_step(shape: Shape, monkeypatch) -> None:
    number = SHAPES.index(shape)
    found = EngineSimulation(1, number, (1,), NO_FAULTS, replace(SETTINGS, interval=None)).run()
    monkeypatch.setattr(pipelines, "read_first", lambda sizes: {})
    wanted = EngineSimulation(1, number, (1,), NO_FAULTS, replace(SETTINGS, interval=None)).run()
    assert {sink: found.disk.written(sink) for sink in ("all", "totals")} == {
        sink: wanted.disk.written(sink) for sink in ("all", "totals")
    }


@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=[shape.__name__ for shape in SHAPES])
def test_rows_and_their_order_do_not_depend_on_parallelism_sizes_or_checkpoints(shape: int) -> None:
    for parallelism in range(1, WIDEST + 1):
        for interval, sizes in ((0.02, Sizes(1, 1)), (0.06, Sizes(100, 3)), (None, Sizes(10_000, 100))):
            settings = replace(SETTINGS, interval=interval)
            check(EngineSimulation(parallelism, shape, (parallelism,), NO_FAULTS, settings, sizes).run(), shape)


@pytest.mark.parametrize("shape", [SHAPES.index(shape) for shape in FORWARDS])
def test_forward_edges_lose_and_repeat_nothing_whatever_goes_wrong(shape: int) -> None:
    for seed in range(PER_TEST):
        simulate(seed, shape)


def test_task_that_dies_between_forward_edges_takes_those_of_its_number_along_and_nobody_else() -> None:
    class Watched(EngineSimulation):
        attempts: dict[TaskId, int]

        def check_restore(self, order: DeployTask) -> None:
            super().check_restore(order)
            self.attempts[order.task] = order.attempt.number

    dying = Faults(patience=1, **{each.name: 0.0 for each in fields(Faults) if each.name != "patience"})
    shape = SHAPES.index(forwarded)
    deaths = 0
    for seed in range(12):
        run = Watched(seed, shape, (3,), replace(dying, kill_task=0.02), SETTINGS)
        run.attempts = {}
        check(run.run(), shape)
        regions = [{run.attempts[task] for task in region} for region in execution_graph(run.plan).regions]
        assert sorted(regions, key=max) in ([{1}, {1}, {1}], [{1}, {1}, {2}])
        deaths += {2} in regions
    assert deaths >= 4, "in some runs nobody dies, but not in most of them"


@pytest.mark.parametrize("shape", [SHAPES.index(shape) for shape in TRAILERS])
def test_what_operators_emit_at_their_end_comes_once(shape: int) -> None:
    """They emit it whenever they are told to finish: so nobody may tell them again after a restore."""
    for seed in range(PER_TEST // 2):
        simulate(seed, shape)


def test_every_sink_of_every_shape_has_rows() -> None:
    """Else the other tests show little."""
    for shape in range(len(SHAPES)):
        sinks = plan_of(shape, 1, EngineSimulation(0, shape, (1,)).disk).sinks
        assert {key.split(",")[0] for key, rows in expected_rows(shape).items() if rows} == set(sinks)


def test_a_seed_gives_the_same_run_every_time() -> None:
    runs = [simulate(7) for _ in range(2)]
    assert runs[0].steps == runs[1].steps
    assert runs[0].disk.visible.keys() == runs[1].disk.visible.keys()


def test_faults_of_every_kind_happen() -> None:
    wanted = {
        *("kill_task", "kill_finished", "kill_coordinator", "restart_job", "cancel", "ask", "double", "packet"),
        *("snapshot", "restore", "commit", "store", "finished", "cancelled"),
    }
    for seed in range(300):
        wanted -= simulate(seed).seen
        if not wanted:
            break
    assert not wanted


# --- broken on purpose -------------------------------------------------------------------------------------------


def first_caught(
    seeds: int = 300, faults: Faults = FAULTS, core: type[Coordinator] = Coordinator, shape: int | None = None
) -> str:
    """What the oracles say about the first seed that they refuse; empty if they refuse none."""
    for seed in range(seeds):
        expected_rows(shape_of(seed))
    for seed in range(seeds):
        try:
            check(varied(seed, faults, core, shape).run(), shape_of(seed) if shape is None else shape)
        except AssertionError as error:
            return str(error)
    return ""


@pytest.fixture(autouse=True)
def _references_of_the_engine_as_it_is() -> None:
    for shape in range(len(SHAPES)):
        expected_rows(shape)


def test_source_that_passes_the_round_it_proposed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    propose = SplitReader.propose

    def careless(self: SplitReader, checkpoint: CheckpointId) -> int:
        round = propose(self, checkpoint)
        self._hold = None
        return round

    monkeypatch.setattr(SplitReader, "propose", careless)
    assert first_caught(faults=NO_FAULTS)


def test_ended_source_that_agrees_to_any_round_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    propose = SplitReader.propose

    def agreeable(self: SplitReader, checkpoint: CheckpointId) -> int:
        round = propose(self, checkpoint)
        return -1 if self.data_ended else round

    monkeypatch.setattr(SplitReader, "propose", agreeable)
    assert first_caught(faults=NO_FAULTS)


def test_task_that_ends_before_its_final_checkpoint_is_committed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    advance = Task._advance_end

    def hasty(self: Task) -> None:
        self._checkpoints.final_committed = self.data_ended
        advance(self)

    monkeypatch.setattr(Task, "_advance_end", hasty)
    assert "before a completed checkpoint held its end of data" in first_caught(faults=NO_FAULTS)


def test_restore_that_takes_the_state_of_all_lanes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(self: _Builder, operator: str) -> pa.Table | None:
        return self._restored.tables.get(operator)

    monkeypatch.setattr(_Builder, "_state", greedy)
    assert first_caught()


def test_restore_that_forgets_the_state_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Builder, "_state", lambda self, operator: None)
    assert first_caught()


@pytest.mark.parametrize("shape", [SHAPES.index(shape) for shape in (trailed, trailed_and_gathered, teed)])
def test_restore_that_runs_finished_operators_again_is_caught(monkeypatch: pytest.MonkeyPatch, shape: int) -> None:
    monkeypatch.setattr(_Builder, "_division", lambda self, operator: divide(operator, self._lanes, ()))
    assert "(-1, " in first_caught(shape=shape)


def test_lanes_that_had_ended_and_end_again_with_others_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """At another parallelism a task gets lanes of a task that had finished, and others."""
    division = _Builder._division

    def whole(self: _Builder, operator: str) -> Division:
        found = division(self, operator)
        return found if found.over else Division(found.lanes, frozenset(), over=False)

    monkeypatch.setattr(_Builder, "_division", whole)
    assert "(-1, " in first_caught(shape=SHAPES.index(trailed))


def test_cut_that_forgets_what_had_finished_before_the_restore_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = OperatorChain.ended
    monkeypatch.setattr(OperatorChain, "ended", lambda self, finished: ended(self, finished) if finished else ())
    assert "(-1, " in first_caught(shape=SHAPES.index(trailed))


def test_driver_that_reads_past_a_barrier_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Port, "blocked", lambda self, feeds: set())
    assert first_caught()


def test_task_that_forgets_what_it_prepared_for_an_aborted_checkpoint_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    abort = Task.abort

    def forgetful(self: Task, checkpoint: CheckpointId) -> None:
        abort(self, checkpoint)
        self._checkpoints._prepared.pop(checkpoint, None)

    monkeypatch.setattr(Task, "abort", forgetful)
    assert "missing [(" in first_caught(faults=replace(FAULTS, snapshot=0.1))


class Trusting(Coordinator):
    """Takes it that nothing of a finished task can be lost with its process."""

    def _note_loss(self, event: TaskFailed | TaskLost) -> None:
        record = self._context.tasks.get(event.task)
        if record is None or record.state is not TaskStatus.FINISHED:
            super()._note_loss(event)


def test_finished_task_whose_last_word_was_lost_is_caught() -> None:
    faults = replace(NO_FAULTS, patience=25, kill_finished=0.6)
    assert first_caught(faults=faults, seeds=40) == ""
    caught = first_caught(faults=faults, core=Trusting)
    assert "no end in sight" in caught or "nothing runs while work remains" in caught


# --- what the ledger sees, whatever the oracles say --------------------------------------------------------------


@pytest.mark.parametrize("repeated", [False, True])
def test_batches_that_are_lost_or_repeated_in_a_channel_do_not_balance(
    repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a wire would do that renumbers what it carries, and gives the credit back."""
    pop, calls = InputChannel.pop, 0

    def careless(self: InputChannel) -> Element:
        nonlocal calls
        element = pop(self)
        if isinstance(element, Batch) and not self.is_local:
            calls += 1
            if calls % 30 == 0 and repeated:
                self._queue.appendleft((element, 0))
            elif calls % 30 == 0 and isinstance(self.peek(), Batch):
                return pop(self)
        return element

    monkeypatch.setattr(InputChannel, "pop", careless)
    assert "do not balance" in first_caught(faults=NO_FAULTS)


def test_batches_that_are_lost_behind_the_gate_do_not_balance(monkeypatch: pytest.MonkeyPatch) -> None:
    handle, calls = Driver._handle, 0

    def careless(self: Driver, port: Port, found: Delivered) -> None:
        nonlocal calls
        calls += isinstance(found.element, Batch) and not self.readers
        if calls % 50 or not isinstance(found.element, Batch):
            handle(self, port, found)

    monkeypatch.setattr(Driver, "_handle", careless)
    assert "do not balance" in first_caught(faults=NO_FAULTS)


def test_batches_of_a_source_that_are_lost_do_not_balance(monkeypatch: pytest.MonkeyPatch) -> None:
    pop, calls = SplitReader.pop, 0

    def careless(self: SplitReader) -> Element:
        nonlocal calls
        element = pop(self)
        if isinstance(element, Batch):  # to look behind the end of a round would begin the next one
            calls += 1
            if calls % 20 == 0 and isinstance(self.peek(), Batch):
                return pop(self)
        return element

    monkeypatch.setattr(SplitReader, "pop", careless)
    assert "the rows of source" in first_caught(faults=NO_FAULTS)


def test_rows_that_a_sink_takes_and_does_not_prepare_do_not_balance(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = OperatorChain.prepare

    def careless(self: OperatorChain, checkpoint: CheckpointId) -> list[Committable]:
        found = prepare(self, checkpoint)
        for sink in self.sinks:
            sink.prepared -= min(sink.prepared, checkpoint.number > 2)
        return found

    monkeypatch.setattr(OperatorChain, "prepare", careless)
    assert "the rows of sink" in first_caught(faults=NO_FAULTS)
