"""The time limit of a plan in this process, and its share of a scheduler that it has in common with others."""

import threading
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from penstock.engine.core.errors import PenstockError
from penstock.engine.flow import index
from penstock.engine.flow.flow import Flow
from penstock.engine.local.plan_task import PlanTask
from penstock.engine.scheduler.protocol import QueryTimeoutError
from penstock.engine.scheduler.serial import SerialScheduler
from penstock.engine.sources.memory import MemorySource

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROWS = pa.table([[1, 2], [10, 20]], schema=SCHEMA)
WAIT = 30.0
SHORT = 0.05


def split(rows=ROWS):
    [found] = MemorySource((rows,)).splits()
    return found


def source(lanes=8):
    return Flow("limits", lanes=lanes).from_tables([ROWS.slice(0, 0)], name="rows")


@dataclass(frozen=True)
class SlowIndex:
    """An index that is asked from other threads and does not answer before ``gate`` is set."""

    inner: index.Index = field(default_factory=lambda: index.memory(ROWS.rename_columns(["k", "w"]), "k"))
    gate: threading.Event = field(default_factory=threading.Event)
    blocks: bool = True

    @property
    def schema(self) -> pa.Schema:
        return self.inner.schema

    @property
    def key(self) -> tuple[str, ...]:
        return self.inner.key

    def open(self):
        return OpenSlowIndex(self.inner.open(), self.gate)

    def fingerprint(self) -> str:
        return ""

    def describe(self) -> str:
        return "an index that takes its time"


@dataclass
class OpenSlowIndex:
    inner: index.OpenIndex
    gate: threading.Event

    def lookup(self, keys: pa.RecordBatch) -> index.Found:
        assert self.gate.wait(WAIT)
        return self.inner.lookup(keys)

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize("degree", [0, 2])
def test_task_that_waits_too_long_fails_with_an_error_that_names_it(degree):
    """It waits for an answer that comes only when the barrier has been given up: nobody else would wake it."""
    slow = SlowIndex()
    task = PlanTask(source().lookup_join(slow, on="k"), degree=degree, timeout=SHORT)
    task.add_split("rows", split())
    drained = task.request_barrier()
    drained.add_done_callback(lambda _: slow.gate.set())
    with pytest.raises(QueryTimeoutError, match=rf"query .* was not done within {SHORT} s"):
        task.read(WAIT)
    assert isinstance(drained.exception(), QueryTimeoutError)
    assert task.state == "failed"
    with pytest.raises(QueryTimeoutError):
        task.read(WAIT)


@pytest.mark.parametrize("degree", [0, 2])
def test_task_that_is_used_again_and_again_ends_at_its_time_limit(degree):
    before = set(threading.enumerate())
    task = PlanTask(source().filter("v > 0"), degree=degree, timeout=SHORT)

    def use() -> None:
        while True:
            assert sum(batch.num_rows for batch in task.run({"rows": split()})) == 2

    with pytest.raises(QueryTimeoutError):
        use()
    assert set(threading.enumerate()) <= before, "its threads have ended"


@pytest.mark.parametrize("degree", [0, 2])
def test_task_that_ends_in_time_has_no_error(degree):
    task = PlanTask(source().filter("v > 0"), degree=degree, parallelism=2, timeout=WAIT)
    task.add_split("rows", split())
    task.no_more_splits("rows")
    assert task.read(WAIT).num_rows == 2
    assert task.read(WAIT) is None
    assert (task.state, task.error) == ("finished", None)


def turns_of(task) -> int:
    return sum(driver.turns for each in task.statistics() for driver in each.drivers)


def shared_turns(*options, turns=120) -> list[int]:
    """How many of the turns of a common scheduler each of several plans gets that all have more to do."""
    scheduler = SerialScheduler()
    tasks = [PlanTask(source().filter("v < 0"), scheduler=scheduler, eager=True, **each) for each in options]
    for task in tasks:
        for _ in range(turns * 16):
            task.add_split("rows", split())
    for _ in range(turns):
        scheduler.turn(quanta=1)
    found = [turns_of(task) for task in tasks]
    read = [sum(source.rows for each in task.statistics() for source in each.sources) for task in tasks]
    assert max(read) < turns * 16 * ROWS.num_rows, "all have more to do"
    scheduler.shutdown()
    return found


def test_plan_of_more_weight_gets_more_of_a_common_scheduler():
    one, three = shared_turns({"weight": 1.0}, {"weight": 3.0})
    assert 2.8 < three / one < 3.2


def test_plan_of_several_tasks_gets_no_more_than_one_of_a_single_task():
    one, three = shared_turns({}, {"parallelism": 2})
    assert 0.5 < three / one < 1.1, "its third task, which gathers the rows, has nothing to do"


def test_groups_share_a_scheduler_whatever_plans_they_have():
    alone, *others = shared_turns({"group": "a"}, {"group": "b"}, {"group": "b"}, {"group": "b"})
    assert 0.9 < sum(others) / alone < 1.1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 0.0}, "timeout of 0.0"),
        ({"timeout": -1.0}, "timeout=-1.0 does not fit"),
        ({"weight": 0.0}, "weight of 0.0"),
        ({"weight": 1e-320}, "weight of 1e-320"),
        ({"weight": 1e10}, "give a number from 1e-09 to 1e"),
        ({"weight": 10**400}, "not finite"),
    ],
)
def test_limit_that_makes_no_sense_is_refused(options, words):
    with pytest.raises(PenstockError, match=words):
        PlanTask(source(), **options)
