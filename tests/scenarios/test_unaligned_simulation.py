"""The real engine under the real coordinator where rows go in the order of their arrival, and tasks cut wherever they
stand: whatever goes wrong, each row once, also when the job goes on at another parallelism.

As in ``test_engine_simulation`` the second half breaks one rule a test, and wants the oracles to notice.
"""

from __future__ import annotations

import pytest

from penstock.engine.core.elements import Batch
from penstock.engine.exchange.channels import InputChannel
from penstock.engine.exchange.flight import FlightReader
from penstock.engine.runtime import places
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
    assert seen >= {"cut", "restored", "moves", "moved", "kill_task", "restart_job"}


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
    put_back = InputChannel.put_back

    def forgetful(self: InputChannel, elements, end, *, drained) -> None:
        put_back(self, [each for each in elements if not isinstance(each, Batch)], end, drained=drained)

    monkeypatch.setattr(InputChannel, "put_back", forgetful)
    assert "missing" in first_caught()


def test_restore_that_reads_twice_what_consumers_had_not_read_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    put_back = InputChannel.put_back

    def generous(self: InputChannel, elements, end, *, drained) -> None:
        batches = [each for each in elements if isinstance(each, Batch)]
        put_back(self, [*batches, *elements], end, drained=drained)

    monkeypatch.setattr(InputChannel, "put_back", generous)
    assert "extra" in first_caught()


def test_restored_rows_that_are_not_handed_on_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted, and then lost. (Edges inside a task have no account.)"""
    put_back = InputChannel.put_back

    def forgetful(self: InputChannel, elements, end, *, drained) -> None:
        lost = [] if self.is_local else [each for each in elements if isinstance(each, Batch)]
        for each in lost:
            self.restored.add(each)
        put_back(self, [each for each in elements if each not in lost], end, drained=drained)

    monkeypatch.setattr(InputChannel, "put_back", forgetful)
    assert "do not balance" in first_caught()


def test_restore_that_does_not_read_all_of_a_flight_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose rows are left out, and where they stood, does not matter: the coordinator counts them."""
    take = FlightReader.take
    monkeypatch.setattr(FlightReader, "take", lambda self, marks: take(self, list(marks)[:1]))
    assert "and it was restored with" in first_caught()


def test_cut_that_keeps_nothing_of_what_comes_before_the_last_barrier_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record = InputChannel.record

    def hasty(self: InputChannel, checkpoint) -> None:
        record(self, checkpoint)
        self.recorded = None

    monkeypatch.setattr(InputChannel, "record", hasty)
    assert first_caught()


def test_cut_that_is_told_twice_over_what_it_kept_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    in_flight = places.in_flight

    def twice(elements):
        found = list(in_flight(elements))
        return [each for each in found if isinstance(each, Batch)] + found

    monkeypatch.setattr(places, "in_flight", twice)
    assert "extra" in first_caught()
