"""The trace: who ran what and when, and why it waited, in the format that trace viewers read."""

import json
from itertools import pairwise

from penstock.engine.scheduler.observation import RUNNABLES, WORKERS, Trace
from penstock.engine.scheduler.pool import PoolScheduler
from penstock.engine.scheduler.protocol import Blocked
from penstock.engine.scheduler.serial import SerialScheduler
from support.scheduling import INPUT, PROGRESS, Script, add_chain


class Ticking:
    """A clock that moves a second whenever it is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_trace_shows_turns_by_worker_and_stays_by_runnable(tmp_path) -> None:
    trace = Trace()
    scheduler = SerialScheduler(clock=Ticking(), trace=trace)
    query = scheduler.open("query")
    query.add(Script("scan", PROGRESS, Blocked(INPUT, wake_at=20.0)))
    query.start()
    scheduler.turn()
    scheduler.turn(now=20.0)
    trace.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    turns = [event for event in events if event["ph"] == "X" and event["pid"] == WORKERS]
    stays = [(event["name"], event["ts"]) for event in events if event["ph"] == "X" and event["pid"] == RUNNABLES]
    assert [event["name"] for event in turns] == ["scan"] * 3
    assert [event["dur"] for event in turns] == [1e6, 1e6, 0]
    assert [name for name, _ in stays] == ["ready", "waits for input: somebody"]
    assert {(event["name"], event["args"]["name"]) for event in events if event["ph"] == "M"} == {
        ("process_name", "workers"),
        ("process_name", "runnables"),
        ("thread_name", "worker 0"),
        ("thread_name", "query scan"),
    }


def test_trace_forgets_the_oldest() -> None:
    trace = Trace(capacity=10)
    scheduler = SerialScheduler(trace=trace)
    query = scheduler.open("query")
    query.add(Script("scan", *[PROGRESS] * 100))
    query.start()
    scheduler.turn()
    assert len(trace) == 10


def test_trace_of_a_pool_shows_no_runnable_on_two_workers_at_once() -> None:
    trace = Trace()
    with PoolScheduler(4, trace=trace) as pool:
        query = pool.open("chain")
        add_chain(query, range(300), length=2)
        query.start()
        query.closed.result(60)
    turns: dict[str, list[tuple[float, float]]] = {}
    for event in trace.events():
        if event["ph"] == "X" and event["pid"] == WORKERS:
            turns.setdefault(event["name"], []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(turns) == 4
    for spans in turns.values():
        spans.sort()
        assert all(end <= start + 1e-3 for (_, end), (start, _) in pairwise(spans))
