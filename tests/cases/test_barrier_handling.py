"""Runs the scenario table of barrier handling: one test per row, named by its id, with the outcome after every step.

A row that the runner does not understand (an unknown event, item, expectation, …) fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from cases.tables import Row, refuse_unknown, rows

from penstock.engine.alignment import (
    AlignedHandler,
    AlternatingHandler,
    BarrierArrival,
    BarrierTracker,
    SnapshotMode,
    UnalignedHandler,
)
from support.barrier_gate import Announcement, BarrierGate, BarrierItem, Cancel, Data, End, Item

Handler = AlignedHandler[int] | UnalignedHandler[int] | AlternatingHandler[int] | BarrierTracker[int]

HANDLERS: dict[str, type[Handler]] = {
    "aligned": AlignedHandler,
    "unaligned": UnalignedHandler,
    "alternating": AlternatingHandler,
    "tracker": BarrierTracker,
}
INFORMATIVE = {"flink_expects", "origin", "note", "declared_source", "detail", "flink_test"}
KEYS = {
    "config": {"handler", "channels", "checkpoints_after_tasks_finish", "channel_kinds"},
    "step": {"i", "event", "op", "ch", "cp", "bytes", "ms", "ts", "item", "expect_item", "run_timers", "after"},
    "item": {"type", "cp", "align", "ts", "timeout_ms", "snapshot", "of", "bytes"},
}
KINDS = {"local": False, "test": False, "remote": True}
ITEM_TYPES = {
    Data: "data",
    BarrierItem: "barrier",
    Announcement: "announcement",
    Cancel: "cancel",
    End: "end_of_partition",
}


def check_keys(what: str, found: Row) -> None:
    refuse_unknown(found, KEYS[what] | INFORMATIVE, f"keys of a {what}")


@dataclass
class Run:
    """One row being run."""

    gate: BarrierGate
    handler: Handler
    #: whether outcomes name the mode of a snapshot
    names_mode: bool
    #: creation time of barriers that do not say theirs; None: now
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
        channels = config["channels"]
        kinds = config.get("channel_kinds", ["local"] * channels)
        assert len(kinds) == channels
        handler = HANDLERS[config["handler"]](channels, ends_count=config.get("checkpoints_after_tasks_finish", True))
        queued = row["group"] == "alternating"
        created = 0 if "start_delay_ms" in row["expect"] and not queued else None
        return cls(BarrierGate(handler, [KINDS[kind] for kind in kinds]), handler, queued, created)

    # ------------------------------------------------------------------ steps

    def step(self, step: Row) -> None:
        check_keys("step", step)
        self.before = (len(self.gate.triggered), len(self.gate.aborted))
        self.is_persisted = False
        if self.names_mode:
            self.operate(step)
        else:
            self.feed(step)

    def feed(self, step: Row) -> None:
        """A step of the modes without queues: the event goes to the handler directly."""
        event = step["event"]
        if event == "advance_clock":
            self.gate.now += step["ms"]
            return
        if event == "data" and self.handler.persists(step["ch"]) is not None:
            self.is_persisted = True
            self.persisted.append(step["i"])
        self.gate.handle(step["ch"], self.item({**step, "type": event}))

    def operate(self, step: Row) -> None:
        """A step of the gate."""
        match step["op"]:
            case "arrive":
                self.gate.arrive(step["ch"], self.described(step["item"]))
            case "deliver":
                self.gate.deliver(step["ch"], self.described(step["item"]))
            case "handle":
                self.gate.handle(step["ch"], self.described(step["item"]))
            case "poll":
                polled = self.gate.poll()
                assert polled is not None, "nothing can be polled"
                assert ITEM_TYPES[type(polled)] == step["expect_item"]
            case "advance_clock":
                self.gate.now += step["ms"]
                if step.get("run_timers"):
                    self.gate.fire()
            case "run_timers":
                self.gate.fire()
            case "close":
                self.handler.close()
                self.handler.validate()
            case unknown:
                pytest.fail(f"an operation that the runner does not know: {unknown}")

    def described(self, item: Row) -> Item:
        check_keys("item", item)
        return self.item(item)

    def item(self, found: Row) -> Item:
        match found["type"]:
            case "data":
                return Data(found.get("bytes", 0))
            case "barrier":
                return BarrierItem(self.barrier(found))
            case "rpc_barrier":
                return BarrierItem(self.barrier(found), injected=True)
            case "announcement":
                return Announcement(self.barrier(found["of"]))
            case "cancel":
                return Cancel(found["cp"])
            case "end_of_partition":
                return End()
            case unknown:
                pytest.fail(f"an event that the runner does not know: {unknown}")

    def barrier(self, found: Row) -> BarrierArrival[int]:
        created = found.get("ts", self.gate.now if self.created is None else self.created)
        assert found.get("snapshot", "checkpoint") in {"checkpoint", "savepoint"}
        if not self.names_mode:
            return BarrierArrival(found["cp"], created, unaligned=isinstance(self.handler, UnalignedHandler))
        match found["align"]:
            case "unaligned":
                return BarrierArrival(found["cp"], created, unaligned=True)
            case "aligned_no_timeout":
                return BarrierArrival(found["cp"], created)
            case "aligned_with_timeout":
                return BarrierArrival(found["cp"], created, timeout=found["timeout_ms"])
            case unknown:
                pytest.fail(f"an alignment that the runner does not know: {unknown}")

    # ------------------------------------------------------------------ outcomes

    def triggers(self, since: int = 0) -> list[Any]:
        found = self.gate.triggered[since:]
        if self.names_mode:
            return [{"cp": one.checkpoint, "mode": one.mode.value} for one in found]
        return [one.checkpoint for one in found]

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
            "pending_cps": lambda: list(handler.pending_checkpoints) if isinstance(handler, BarrierTracker) else None,
            "open_channels": lambda: len(handler.open),
            "bytes_processed_during_alignment": lambda: handler.times.processed_bytes,
            "alignment_duration_ms": self.duration,
            "start_delay_ms": lambda: handler.times.start_delay,
        }

    def after(self) -> dict[str, Callable[[], Any]]:
        triggered, aborted = self.before
        return self.state() | {
            "triggered": lambda: self.triggers(triggered),
            "aborted": lambda: self.aborts(aborted),
            "persisted_as_inflight": lambda: self.is_persisted,
        }

    def total(self) -> dict[str, Callable[[], Any]]:
        return self.state() | {
            "triggered": self.triggers,
            "aborted": self.aborts,
            "inflight_step_indices": lambda: self.persisted,
            "captured_inflight_items_at_start": self.captured,
        }

    def captured(self) -> dict[str, int]:
        """Data items per channel that the newest unaligned snapshot found queued."""
        unaligned = [one.checkpoint for one in self.gate.triggered if one.mode is SnapshotMode.UNALIGNED]
        items = self.gate.captured[unaligned[-1]] if unaligned else []
        return {str(channel): len(queued) for channel, queued in enumerate(items) if queued}


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


@pytest.mark.parametrize("row", rows("barrier_handling.json", "cases"))
def test_barrier_handling(row: Row) -> None:
    run(row)


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
