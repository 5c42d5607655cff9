"""The chain of waiting: from the consumer back to the culprit, one sentence a task."""

from __future__ import annotations

import pytest

from penstock.actors.hosting.waiting_chain import Standing, chain_of_waiting, checkpoint_waits, what_it_is_at
from penstock.coordinator.model.statistics import PendingStatus
from penstock.engine.core.identity import Attempt, CheckpointId, TaskId
from penstock.engine.runtime.statistics import (
    NOTHING_HELD,
    CutStatistics,
    DriverWait,
    PieceStatistics,
    TaskStatistics,
)
from penstock.engine.runtime.task_cut import CutPhase
from penstock.engine.scheduler.protocol import HandleStatistics, Wait, WaitReason

READ, READ_2, MAP, SINK = TaskId("read", 0), TaskId("read", 1), TaskId("map", 0), TaskId("sink", 0)
TASKS = [READ, READ_2, MAP, SINK]
RUNNING = dict.fromkeys(TASKS, "running")


def driver(name: str, state: str, cpu: float = 0.0, waited: float = 0.0) -> HandleStatistics:
    return HandleStatistics(name, state, 1.0, 0.0, 0.0, {"input": waited}, cpu, 1, 1, 0, 0)


def waiting(task: TaskId, reason: WaitReason, *whom: TaskId) -> Standing:
    wait = Wait(reason, ", ".join(map(str, whom)) or "the pace of numbers", whom)
    name = task.vertex
    drivers, waits = (driver(name, "waiting"),), (DriverWait(name, wait),)
    return Standing(TaskStatistics(task, Attempt(1, 1), "running", (), (), (f"{name} {wait}",), drivers, waits=waits))


def working(task: TaskId, cpu: float = 0.9) -> Standing:
    drivers = (driver(task.vertex, "ready", cpu), driver("other", "waiting", 0.0, 1.0))
    waits = (DriverWait("other", Wait(WaitReason.INPUT, "inside", (task,))),)
    return Standing(TaskStatistics(task, Attempt(1, 1), "running", (), (), (), drivers, waits=waits))


def test_chain_leads_from_the_consumer_back_to_the_source_that_is_paced() -> None:
    standings = {
        READ: waiting(READ, WaitReason.TIMER),
        READ_2: working(READ_2),
        MAP: waiting(MAP, WaitReason.INPUT, READ),
        SINK: waiting(SINK, WaitReason.INPUT, MAP),
    }
    assert chain_of_waiting(TASKS, standings, RUNNING) == [
        f"{SINK}: sink waits for input: {MAP}",
        f"{MAP}: map waits for input: {READ}",
        f"{READ}: read waits for timer: the pace of numbers; others wait for it",
        f"{READ_2}: works, in read (90% of its time)",
    ]


def test_slow_function_in_the_middle_is_named_by_both_sides() -> None:
    standings = {
        READ: waiting(READ, WaitReason.OUTPUT, MAP),
        READ_2: waiting(READ_2, WaitReason.OUTPUT, MAP),
        MAP: Standing(None, 5.0),
        SINK: waiting(SINK, WaitReason.INPUT, MAP),
    }
    assert chain_of_waiting(TASKS, standings, RUNNING) == [
        f"{SINK}: sink waits for input: {MAP}",
        f"{MAP}: busy in one step for 5 s, in a user's function maybe; others wait for it",
        f"{READ_2}: read waits for output: {MAP}",
        f"{READ}: read waits for output: {MAP}",
    ]


def test_stalled_sink_comes_first_and_its_producers_after_it() -> None:
    standings = {
        READ: waiting(READ, WaitReason.OUTPUT, MAP),
        READ_2: waiting(READ_2, WaitReason.OUTPUT, MAP),
        MAP: waiting(MAP, WaitReason.OUTPUT, SINK),
        SINK: Standing(None, 5.0),
    }
    told = chain_of_waiting(TASKS, standings, RUNNING)
    assert [sentence.split(":")[0] for sentence in told] == [str(task) for task in (SINK, MAP, READ_2, READ)]
    assert told[0].endswith("others wait for it")
    assert [sentence.endswith("others wait for it") for sentence in told[1:]] == [False] * 3


def test_tasks_that_wait_for_each_other_are_told_once_each() -> None:
    standings = {MAP: waiting(MAP, WaitReason.OUTPUT, SINK), SINK: waiting(SINK, WaitReason.INPUT, MAP)}
    told = chain_of_waiting([MAP, SINK], standings, RUNNING)
    assert [sentence.split(":")[0] for sentence in told] == [str(SINK), str(MAP)]


def test_what_is_not_there_is_told_by_its_state_and_what_has_finished_is_not() -> None:
    states = {READ: "finished", READ_2: "deploying", MAP: "running", SINK: "deployed"}
    told = chain_of_waiting(TASKS, {READ_2: Standing(None), SINK: Standing(None)}, states)
    assert told == [f"{SINK}: deployed", f"{MAP}: running, and its process does not answer", f"{READ_2}: deploying"]


def test_a_task_whose_drivers_wait_for_each_other_waits_for_no_other_task() -> None:
    inner = waiting(MAP, WaitReason.OUTPUT, MAP)
    assert chain_of_waiting([MAP], {MAP: inner}, RUNNING) == [f"{MAP}: map waits for output: {MAP}"]


def test_open_checkpoint_says_of_each_task_which_piece_which_bytes_or_which_barriers_it_waits_for() -> None:
    pending = PendingStatus(CheckpointId(1, 7), "triggered", 0.0, 0, 4, waits_for=(READ, READ_2, MAP, SINK))
    pieces = (PieceStatistics("map", "score", 2.25), PieceStatistics("ask", "own", 3.0, is_whole=True))
    busy, written = (*pieces, PieceStatistics("read", "", 0.5)), (3 * 2**20, 1.5)
    told = TaskStatistics(MAP, Attempt(1, 1), "running", (), (), (), (), (), NOTHING_HELD, (), busy, *written)
    standings = {
        READ: Standing(None, 5.0),
        MAP: Standing(told),
        SINK: waiting(SINK, WaitReason.ALIGNMENT, MAP),
    }
    assert checkpoint_waits(pending, standings) == [
        f"checkpoint 1.7 waits for {READ}: busy in one step for 5 s, in a user's function maybe",
        f"checkpoint 1.7 waits for {READ_2}: has no attempt, and its process does not answer",
        f"checkpoint 1.7 waits for {MAP}: it has been writing 3.0 MiB for 1.5 s; score has been at a piece for 2.2 s; "
        "own has been at a piece for 3.0 s, which ps.Traits(rows_at_once=…) would make shorter; "
        "read has been at a piece for 0.5 s",
        f"checkpoint 1.7 waits for {SINK}: sink waits for alignment: {MAP}",
    ]


SCORES = (PieceStatistics("map", "score", 2.25),)
SECOND, THIRD = CheckpointId(1, 2), CheckpointId(1, 3)


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (
            CutStatistics(SECOND, CutPhase.NONE, missing=(("gather-1", READ), ("gather-1", READ_2)), missing_count=9),
            "score has been at a piece for 2.2 s; it has seen no barrier: that of gather-1 from read[0], read[1] and 7 "
            "more is missing",
        ),
        (CutStatistics(None, CutPhase.NONE), "score has been at a piece for 2.2 s"),
        (
            CutStatistics(THIRD, CutPhase.ASKED, 2.5, late=("sort",)),
            "score has been at a piece for 2.2 s; it was asked to cut 2.5 s ago, and does between two pieces, when "
            "sort is through a task barrier or has spilled",
        ),
        (
            CutStatistics(THIRD, CutPhase.OPEN, 2.5, (("gather-1", READ_2),), 1),
            "it has cut, asked 2.5 s ago, and the barrier of gather-1 from read[1] is missing",
        ),
        (
            CutStatistics(THIRD, CutPhase.OPEN, 2.5, unwritten=("write",)),
            "what the sinks of write flushed is being written",
        ),
    ],
)
def test_a_cut_waits_for_pieces_until_it_is_taken_and_for_barriers_and_sinks_behind_it(
    cut: CutStatistics, words: str
) -> None:
    told = TaskStatistics(MAP, Attempt(1, 1), "running", (), (), (), pieces=SCORES, cut=cut)
    assert what_it_is_at(told, THIRD) == words
