"""The real engine, cut at random moments under the real coordinator: rows and order are those of a run without cuts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.engine_simulation import NO_FAULTS
from support.engine_simulation_cuts import simulate, simulate_moves
from support.engine_simulation_shapes import SHAPES
from support.moved_flows import MOVED
from support.sweeps import swept

FEW, SEEDS, PER_TEST = 1, 10, 1
MOVING = 12


@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=[shape.__name__ for shape in SHAPES])
def test_cuts_that_nobody_goes_back_to_change_nothing(shape: int) -> None:
    assert "cut" in simulate(shape, shape, NO_FAULTS).seen


@pytest.mark.parametrize("first", [first if first < FEW else swept(first) for first in range(0, SEEDS, PER_TEST)])
@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=[shape.__name__ for shape in SHAPES])
def test_rows_and_their_order_are_those_of_a_run_that_was_never_cut(shape: int, first: int) -> None:
    for seed in range(first, first + PER_TEST):
        simulate(1_000 * shape + seed, shape)


@pytest.mark.parametrize("flow", MOVED)
def test_lanes_take_what_is_in_flight_with_them_to_another_parallelism(flow: Callable[..., None]) -> None:
    seen = [simulate_moves(seed, SHAPES.index(flow)).seen for seed in range(MOVING)]
    assert any("moves in the middle" in each for each in seen)
    assert not any("moves" in each for each in seen), "a stage without an exchange goes by way of no other shape"


def test_tasks_go_on_in_the_middle_of_what_they_were_doing() -> None:
    assert any("restored" in simulate(seed).seen for seed in range(30))
