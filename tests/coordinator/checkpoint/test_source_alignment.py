"""Sources that are far ahead of others at a checkpoint wait for them; nobody waits for one that waits."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from penstock.coordinator.checkpoint import checkpoints
from penstock.coordinator.checkpoint.checkpoints import align_sources
from penstock.coordinator.checkpoint.pending import HeldSources, PendingCheckpoint
from penstock.coordinator.model.commands import AbortCheckpoint, ProposeRound, TriggerCheckpoint
from penstock.coordinator.model.events import Failure, RoundProposed, StopRequested, TaskDeclined
from penstock.coordinator.model.execution_graph import ExecutionGraph, JobEdge, Pattern, Vertex
from penstock.coordinator.model.kinds import StopMode
from penstock.coordinator.model.settings import Settings
from penstock.engine.core.identity import CLOSING_ROUND, FINAL_ROUND, TaskId
from support.coordinator_driver import A1, FIRST, SINK, CoordinatorDriver
from support.simulated_cluster import SimulatedCluster
from support.simulated_faults import NO_FAULTS, SETTINGS
from support.simulated_flows import SHAPES, flows_for
from support.sweeps import swept

SLOW, FAST, FASTER = (TaskId("source", subtask) for subtask in range(3))
ONE_REGION = dict.fromkeys((SLOW, FAST, FASTER), 0)


def test_source_at_the_largest_round_waits_for_those_far_behind() -> None:
    waiting = align_sources({SLOW: 2, FAST: 9, FASTER: 10}, ONE_REGION, {"source"}, 8)
    assert waiting == {0: HeldSources({FASTER}, {SLOW, FAST})}


@pytest.mark.parametrize(
    ("proposals", "aligned_sources", "max_drift"),
    [
        ({SLOW: 3, FAST: 9, FASTER: 10}, {"source"}, 8),
        ({SLOW: 0, FASTER: 10}, {"another"}, 8),
        ({SLOW: 0, FASTER: 10}, {"source"}, 0),
        ({SLOW: FINAL_ROUND, FASTER: 10}, {"source"}, 1),
        ({SLOW: CLOSING_ROUND, FASTER: 10}, {"source"}, 1),
        ({SLOW: 10, FAST: 10, FASTER: 10}, {"source"}, 1),
    ],
    ids=["near", "not kept in step", "switched off", "ended", "about to end", "side by side"],
)
def test_nobody_waits(proposals: dict[TaskId, int], aligned_sources: set[str], max_drift: int) -> None:
    assert align_sources(proposals, ONE_REGION, aligned_sources, max_drift) == {}


def test_regions_do_not_wait_for_each_other() -> None:
    regions = {SLOW: 0, FAST: 1, FASTER: 1}
    assert align_sources({SLOW: 0, FAST: 90, FASTER: 100}, regions, {"source"}, 8) == {1: HeldSources({FASTER}, {FAST})}


# --- the coordinator -------------------------------------------------------------------------------------------------


def proposing(*rounds: int, stop: bool = False, max_drift: int = 8) -> CoordinatorDriver:
    """Sources that feed one sink have been asked for their rounds, and all but the last have answered."""
    vertices = (Vertex("source", len(rounds), aligned_sources=True), Vertex("sink", 1))
    edges = (JobEdge("source", "sink", Pattern.ALL_TO_ALL),)
    settings = Settings(interval=None if stop else 1.0, resend=2.0, max_drift=max_drift)
    driver = CoordinatorDriver(ExecutionGraph(vertices, edges, deterministic=True), settings)
    driver.claim()
    driver.run()
    if stop:
        driver.tell(StopRequested("stop", "place", StopMode.SUSPEND, 0.5))
    else:
        driver.pass_time(1.0)
    for subtask, round in enumerate(rounds[:-1]):
        assert driver.tell(RoundProposed(TaskId("source", subtask), A1, FIRST, round, 1.1)) == []
    return driver


def triggered(orders: Collection[object]) -> list[tuple[TaskId, int | None]]:
    return [(order.task, order.at_round) for order in orders if isinstance(order, TriggerCheckpoint)]


def test_source_far_ahead_gets_its_trigger_when_those_behind_have_cut() -> None:
    driver = proposing(20, 3, 4)
    orders = driver.tell(RoundProposed(FASTER, A1, FIRST, 4, 1.2))
    assert triggered(orders) == [(FAST, 20), (FASTER, 20)]
    assert triggered(driver.ack(FASTER, FIRST)) == []
    assert triggered(driver.ack(FAST, FIRST)) == [(SLOW, 20)]
    driver.ack(SLOW, FIRST)
    driver.stored(driver.ack(SINK, FIRST)[-1])
    assert driver.core.status().checkpoints_completed == 1


def test_order_that_is_given_again_leaves_out_who_waits() -> None:
    driver = proposing(20, 3)
    driver.tell(RoundProposed(FAST, A1, FIRST, 3, 1.2))
    assert triggered(driver.pass_time(4.0)) == [(FAST, 20)]
    driver.ack(FAST, FIRST)
    assert triggered(driver.pass_time(8.0)) == [(SLOW, 20)]


def test_source_that_has_no_rows_up_to_the_round_lets_go_of_those_that_wait() -> None:
    driver = proposing(20, 3)
    driver.tell(RoundProposed(FAST, A1, FIRST, 3, 1.2))
    about_to_end = Failure("it is about to end", retry=True)
    orders = driver.tell(TaskDeclined(FAST, A1, FIRST, about_to_end, 1.3, True))
    assert {order.task for order in orders if isinstance(order, AbortCheckpoint)} >= {SLOW, FAST}


def test_nobody_waits_at_the_barrier_that_the_job_stops_with() -> None:
    driver = proposing(20, 3, stop=True)
    assert triggered(driver.tell(RoundProposed(FAST, A1, FIRST, 3, 1.2))) == [(SLOW, 20), (FAST, 20)]


def test_next_checkpoint_does_not_begin_while_a_source_waits() -> None:
    """Its proposal would lie before the barrier that it still has to place."""
    driver = proposing(20, 3)
    driver.tell(RoundProposed(FAST, A1, FIRST, 3, 1.2))
    orders = driver.pass_time(2.0)
    assert not any(isinstance(order, ProposeRound) for order in orders)


# --- nobody waits for ever -------------------------------------------------------------------------------------------


def run_patiently(seed: int) -> None:
    """No faults, and no timeout that would end a deadlock."""
    flows = flows_for(seed)
    SimulatedCluster(seed, flows, NO_FAULTS, replace(SETTINGS, timeout=1e9, max_drift=1), steps=2500).run()


ORDERED = [seed for seed in range(200) if (seed // len(SHAPES)) % 2 == 0]


@pytest.mark.parametrize("seeds", [ORDERED[:10], swept(ORDERED[10:60])])
def test_sources_that_wait_never_stop_those_that_they_wait_for(
    seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[int] = []

    def counted(
        proposals: Mapping[TaskId, int], regions: Mapping[TaskId, int], aligned_sources: Collection[str], max_drift: int
    ) -> dict[int, HeldSources]:
        waiting = align_sources(proposals, regions, aligned_sources, max_drift)
        waited.extend(waiting)
        return waiting

    monkeypatch.setattr(checkpoints, "align_sources", counted)
    for seed in seeds:
        run_patiently(seed)
    assert len(waited) >= len(seeds) // 3


def test_source_that_nobody_lets_go_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its barrier never comes: the checkpoint has no end of its own, and the coordinator says so when asked."""
    monkeypatch.setattr(PendingCheckpoint, "left", lambda *_: ())

    def run_all() -> None:
        for seed in ORDERED:
            run_patiently(seed)

    with pytest.raises(AssertionError, match="wait for no snapshot"):
        run_all()
