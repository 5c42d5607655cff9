"""A feed in the simulated cluster: what trainers have seen, whatever happens to the flow, to the ranks or in between.

The seeds of ``test_simulation.py`` contain feeds too. Here the rules of the sequencer are broken one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.engine.core.errors import ConfigurationError
from penstock.engine.feed.cursor import ReadCursor
from penstock.engine.feed.messages import Slice
from penstock.engine.feed.sequencer import Sequencer
from support.simulated_cluster import SimulatedCluster
from support.simulated_cuts import CutTask
from support.simulated_faults import FAULTS, NO_FAULTS, SETTINGS, Faults
from support.simulated_feed import FeedEnd, Trainers
from support.simulated_flows import SHAPES, fed, that_cut
from support.simulated_runs import check, cluster_for
from support.simulated_task import SimulatedTask

FEEDS = range(SHAPES.index(fed), 2800, len(SHAPES))
ROUGH = replace(FAULTS, kill_task=0.5, kill_coordinator=0.1, kill_rank=0.3, ask_stop=0.0)


def run(seed: int, faults: Faults = ROUGH) -> SimulatedCluster:
    """A feed without order where the seed says so, often with tasks that cut as a whole."""
    cluster = cluster_for(seed)
    rough = SimulatedCluster(seed, cluster._flows, faults, cluster._settings, task_type=cluster.task_type, steps=4000)
    check(rough.run(), seed)
    return rough


def first_caught(seeds: range = FEEDS) -> str:
    for seed in seeds:
        try:
            run(seed)
        except (AssertionError, ConfigurationError) as error:
            return str(error)
    return ""


def test_trainers_see_what_they_see_in_a_run_without_failures() -> None:
    kinds: set[str] = set()
    for seed in FEEDS[:60]:
        kinds |= run(seed).seen
    assert {"kill_rank", "slow_rank", "kill_task", "kill_coordinator", "rows of a cut"} <= kinds


@pytest.mark.parametrize("cuts", [True, False])
@pytest.mark.parametrize("ordered", [True, False])
def test_rank_that_stands_still_holds_no_checkpoint_up(ordered: bool, cuts: bool) -> None:
    flows, settings = (fed(2, ordered),), replace(SETTINGS, interval=0.2, unaligned=cuts)
    task_type = CutTask if cuts else SimulatedTask
    cluster = SimulatedCluster(5, that_cut(flows) if cuts else flows, NO_FAULTS, settings, task_type=task_type)
    assert checkpoints_beside_a_rank_that_stands_still(cluster) >= 5


def checkpoints_beside_a_rank_that_stands_still(cluster: SimulatedCluster) -> int:
    assert cluster.trainers is not None
    for rank in cluster.trainers.ranks:
        rank.still_until = 1e9
    cluster.trainers.next_at = lambda: float("inf")  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match=r"nothing is runnable|no end in sight"):
        cluster.run()
    status = cluster._incarnations[-1].core.status()
    assert status.checkpoints_failed <= 1
    return status.checkpoints_completed


# --- broken on purpose -------------------------------------------------------------------------------------------


def test_feed_that_is_not_told_of_checkpoints_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedTask, "expect", lambda self, checkpoint: None)
    cluster = SimulatedCluster(5, (fed(2, True),), NO_FAULTS, replace(SETTINGS, interval=0.2))
    with pytest.raises(AssertionError):
        assert checkpoints_beside_a_rank_that_stands_still(cluster) >= 5


def without_kept_rows(snapshot: Callable[..., object]) -> Callable[..., object]:
    def forgetful(self: Sequencer, checkpoint: object) -> object:  # type: ignore[type-arg]
        state = snapshot(self, checkpoint)
        return replace(state, first=state.position, rows=())  # type: ignore[attr-defined, type-var]

    return forgetful


def test_rows_that_were_not_read_before_the_cut_and_are_not_in_the_snapshot_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sequencer, "snapshot", without_kept_rows(Sequencer.snapshot))
    assert first_caught()


def test_rows_without_an_order_that_are_handed_out_before_they_are_committed_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sequencer, "_deliverable", property(lambda self: self.position))
    assert "feed" in first_caught()


def test_reader_that_takes_a_batch_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: ReadCursor) -> Slice | None:  # type: ignore[type-arg]
        found = self._arrived.pop(min(self._arrived)) if self._arrived else None
        self.next_batch += found is not None
        return found

    def on_answer(self: ReadCursor, answer: object) -> None:  # type: ignore[type-arg]
        if isinstance(answer, Slice) and answer.rank == self.rank and answer.generation == self.group.generation:
            self._arrived[answer.batch] = answer
        elif not isinstance(answer, Slice):
            heard(self, answer)  # type: ignore[arg-type]

    heard = ReadCursor.on_answer
    monkeypatch.setattr(ReadCursor, "take", take)
    monkeypatch.setattr(ReadCursor, "on_answer", on_answer)
    assert "was due" in first_caught()


def test_end_of_the_task_before_every_rank_has_read_everything_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sequencer, "is_finished", property(lambda self: self.ended))
    assert "feed" in first_caught()


def test_sequencer_and_readers_are_the_real_ones() -> None:
    cluster = SimulatedCluster(5, (fed(2, True),), NO_FAULTS)
    assert isinstance(cluster.trainers, Trainers)
    assert isinstance(cluster.trainers.ranks[0].reader, ReadCursor)
    assert isinstance(FeedEnd(fed(2, True), None).sequencer, Sequencer)
