"""The real engine under the real coordinator where barriers overtake batches: whatever goes wrong, each row once.

As in ``test_engine_simulation`` the second half breaks one rule a test, and wants the oracles to notice.
"""

from __future__ import annotations

import pytest

from penstock.engine.core.elements import Batch
from penstock.engine.exchange.channel_state import ChannelPart
from penstock.engine.exchange.channels import InputChannel
from penstock.engine.runtime.checkpointing import Checkpointing, _PendingSnapshot
from penstock.engine.runtime.task_builder import _Builder
from support.engine_simulation_arrival import ARRIVAL, SHAPES, check, expected_rows, simulate, varied
from support.sweeps import swept
from support.trailer_flows import TRAILERS

SEEDS = 110
FEW = 44
PER_TEST = 22


@pytest.mark.parametrize("first", [first if first < FEW else swept(first) for first in range(0, SEEDS, PER_TEST)])
def test_committed_rows_equal_those_of_a_run_without_failures(first: int) -> None:
    for seed in range(first, first + PER_TEST):
        simulate(seed)


@pytest.mark.parametrize("shape", [SHAPES.index(shape) for shape in TRAILERS])
def test_what_operators_emit_at_their_end_comes_once(shape: int) -> None:
    for seed in range(PER_TEST // 2):
        simulate(seed, shape=shape)


def test_everything_that_matters_happens() -> None:
    seen: set[str] = set()
    for seed in range(66):
        seen |= simulate(seed).seen
    assert seen >= {"unaligned", "input", "output", "restored input", "restored output", "kill_task", "restart_job"}


def first_caught(seeds: int = 200) -> str:
    """What the oracles say about the first seed that they refuse; empty if they refuse none."""
    for seed in range(seeds):
        shape = seed % len(ARRIVAL)
        try:
            check(varied(seed).run(), shape)
        except AssertionError as error:
            return str(error)
    return ""


@pytest.fixture(autouse=True)
def _references_of_the_engine_as_it_is() -> None:
    for shape in range(len(ARRIVAL)):
        expected_rows(shape)


def test_restore_that_forgets_what_consumers_had_not_read_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InputChannel, "refill", lambda self, batches: None)
    assert "restored with 0" in first_caught()


def test_restore_that_reads_twice_what_consumers_had_not_read_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    refill = InputChannel.refill
    monkeypatch.setattr(InputChannel, "refill", lambda self, batches: refill(self, [*batches, *batches]))
    assert "rows in flight of exchange" in first_caught()


def test_restored_rows_that_are_not_handed_on_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The opening balance is told, and then the rows are lost."""

    def forgetful(self: InputChannel, batches: list[Batch]) -> None:
        for batch in batches:
            self.restored.add(batch)

    monkeypatch.setattr(InputChannel, "refill", forgetful)
    assert "do not balance" in first_caught()


def test_restore_that_forgets_what_producers_had_not_sent_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Builder, "_unsent", lambda self, edge: [])
    assert "restored with 0" in first_caught()


def test_cut_that_keeps_nothing_of_what_comes_before_the_last_barrier_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = Checkpointing._record

    def hasty(self: Checkpointing, found: _PendingSnapshot, passed: dict[int, list[Batch]]) -> None:
        record(self, found, passed)
        found.recording.clear()

    monkeypatch.setattr(Checkpointing, "_record", hasty)
    assert "do not balance" in first_caught()


def test_cut_that_is_told_twice_over_what_it_kept_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Checkpointing._parts

    def generous(self: Checkpointing, found: _PendingSnapshot) -> tuple[ChannelPart, ...]:
        found.inputs = {feed: batches * 2 for feed, batches in found.inputs.items()}
        return parts(self, found)

    monkeypatch.setattr(Checkpointing, "_parts", generous)
    assert "rows of exchange" in first_caught()
