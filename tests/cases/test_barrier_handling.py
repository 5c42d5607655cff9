"""Runs the scenario table of barrier handling: one test per row, named by its id, with the outcome after every step.

A row that the runner does not understand (an unknown event, expectation, …) fails. ``deviations.py`` names the rows of
modes that there are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from cases.deviations import barriers_left_out
from cases.tables import Row, refuse_unknown, rows, table

from penstock.engine.alignment import AlignedHandler, BarrierArrival
from support.barrier_gate import AtOnce, BarrierGate, BarrierItem, Cancel, Data, End, Item

FILE = "barrier_handling.json"
HANDLERS: dict[str, type[AlignedHandler[int]] | type[AtOnce]] = {"aligned": AlignedHandler, "unaligned": AtOnce}
INFORMATIVE = {"flink_expects", "origin", "note", "declared_source", "detail", "flink_test"}
KEYS = {
    "config": {"handler", "channels", "checkpoints_after_tasks_finish"},
    "step": {"i", "event", "ch", "cp", "bytes", "ms", "after"},
}


def check_keys(what: str, found: Row) -> None:
    refuse_unknown(found, KEYS[what] | INFORMATIVE, f"keys of a {what}")


@dataclass
class Run:
    """One row being run."""

    gate: BarrierGate
    handler: AlignedHandler[int] | AtOnce
    #: creation time of barriers; None: now
    created: int | None
    #: numbers of the steps whose data were kept as channel state
    persisted: list[int] = field(default_factory=list)
    #: how much of the gate's record the steps before this one had made
    before: tuple[int, int] = (0, 0)
    is_persisted: bool = False

    @classmethod
    def of(cls, row: Row) -> Run:
        config = row["config"]
        check_keys("config", config)
        assert config["handler"] == row["group"], "the group names the handler"
        handler = HANDLERS[config["handler"]](config["channels"])
        created = 0 if "start_delay_ms" in row["expect"] else None
        return cls(BarrierGate(handler, config["channels"]), handler, created)

    # ------------------------------------------------------------------ steps

    def step(self, step: Row) -> None:
        """The event goes to the handler directly."""
        check_keys("step", step)
        self.before = (len(self.gate.triggered), len(self.gate.aborted))
        self.is_persisted = False
        event = step["event"]
        if event == "advance_clock":
            self.gate.now += step["ms"]
            return
        if event == "data" and isinstance(self.handler, AtOnce) and self.handler.persists(step["ch"]) is not None:
            self.is_persisted = True
            self.persisted.append(step["i"])
        self.gate.handle(step["ch"], self.item({**step, "type": event}))

    def item(self, found: Row) -> Item:
        match found["type"]:
            case "data":
                return Data(found.get("bytes", 0))
            case "barrier":
                return BarrierItem(self.barrier(found))
            case "rpc_barrier":
                return BarrierItem(self.barrier(found), injected=True)
            case "cancel":
                return Cancel(found["cp"])
            case "end_of_partition":
                return End()
            case unknown:
                pytest.fail(f"an event that the runner does not know: {unknown}")

    def barrier(self, found: Row) -> BarrierArrival[int]:
        return BarrierArrival(found["cp"], self.gate.now if self.created is None else self.created)

    # ------------------------------------------------------------------ outcomes

    def aborts(self, since: int = 0) -> list[Any]:
        return [{"cp": one.checkpoint, "reason": one.reason.value} for one in self.gate.aborted[since:]]

    def duration(self) -> float:
        """Of the alignment, up to now if it is under way."""
        times = self.handler.times
        return times.duration if times.began is None else self.gate.now - times.began

    def state(self) -> dict[str, Callable[[], Any]]:
        """What both a step and the end of a row may say about the handler."""
        handler = self.handler
        return {
            "pending": lambda: handler.pending,
            "latest_cp": lambda: -1 if handler.latest is None else handler.latest,
            "blocked": lambda: sorted(handler.blocked),
            "open_channels": lambda: len(handler.open),
            "bytes_processed_during_alignment": lambda: handler.times.processed_bytes,
            "alignment_duration_ms": self.duration,
            "start_delay_ms": lambda: handler.times.start_delay,
        }

    def after(self) -> dict[str, Callable[[], Any]]:
        triggered, aborted = self.before
        return self.state() | {
            "triggered": lambda: self.gate.triggered[triggered:],
            "aborted": lambda: self.aborts(aborted),
            "persisted_as_inflight": lambda: self.is_persisted,
        }

    def total(self) -> dict[str, Callable[[], Any]]:
        return self.state() | {
            "triggered": lambda: self.gate.triggered,
            "aborted": self.aborts,
            "inflight_step_indices": lambda: self.persisted,
        }


def check(expected: Row, found: dict[str, Callable[[], Any]], where: str) -> None:
    """Compare all that is expected; ``any_x`` holds if x is one of the alternatives, or if it is there at all."""
    for key, value in expected.items():
        if key in INFORMATIVE:
            continue
        name = key.removeprefix("any_")
        assert name in found, f"{where}: an expectation that the runner does not know: {key}"
        actual = found[name]()
        if key == name:
            assert actual == value, f"{where}: {key}"
        elif isinstance(value, bool):
            assert bool(actual) == value, f"{where}: {key}"
        else:
            assert actual in value or any(one in value for one in actual), f"{where}: {key}"


def run(row: Row) -> None:
    running = Run.of(row)
    for step in row["steps"]:
        running.step(step)
        if "after" in step:
            check(step["after"], running.after(), f"after step {step['i']}")
    check(row["expect"], running.total(), "at the end")


@pytest.mark.parametrize("row", [each for each in rows(FILE, "cases") if not barriers_left_out(each.values[0])])
def test_barrier_handling(row: Row) -> None:
    run(row)


def test_rows_of_both_ways_to_handle_barriers_are_run() -> None:
    cases = table(FILE).get("cases", [])
    groups = [row["group"] for row in cases if not barriers_left_out(row)]
    assert not cases or (groups.count("aligned") == 8 and groups.count("unaligned") == 5)


def small_row(**changes: Any) -> Row:
    """One channel, one barrier, and an expectation that holds."""
    config = {"handler": "aligned", "channels": 1, "checkpoints_after_tasks_finish": True}
    step = {"i": 0, "event": "barrier", "ch": 0, "cp": 1, "after": {"triggered": [1]}}
    return {"id": "x", "group": "aligned", "config": config, "steps": [step], "expect": {"aborted": []}} | changes


def test_runner_accepts_a_row_that_holds() -> None:
    run(small_row())


@pytest.mark.parametrize(
    "changes",
    [
        {"group": "eager", "config": {"handler": "eager", "channels": 1, "checkpoints_after_tasks_finish": True}},
        {"steps": [{"i": 0, "event": "watermark", "ch": 0}]},
        {"steps": [{"i": 0, "event": "barrier", "ch": 0, "cp": 1, "twice": True}]},
        {"expect": {"snapshots": 1}},
        {"expect": {"any_snapshots": [1]}},
        {"expect": {"triggered": [2]}},
        {"expect": {"any_triggered": False}},
        {"expect": {"any_triggered": [2, 3]}},
        {"steps": [{"i": 0, "event": "barrier", "ch": 0, "cp": 1, "after": {"aborted": [1]}}]},
    ],
)
def test_runner_refuses_what_it_does_not_understand_and_what_does_not_hold(changes: Row) -> None:
    # pytest.fail raises Failed, which is not an Exception
    with pytest.raises((AssertionError, KeyError, pytest.fail.Exception)):
        run(small_row(**changes))
