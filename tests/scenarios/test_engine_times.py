"""Cuts of the real engine under the real coordinator, by a clock that is simulated: none waits for more than pieces and
disks, none is given up, and no rows change."""

from __future__ import annotations

import pytest

from support.engine_simulation_shapes import SHAPES
from support.engine_simulation_timed import simulate, simulate_chain
from support.sweeps import swept

FEW, SEEDS = 1, 10


@pytest.mark.parametrize("number", [number if number < FEW else swept(number) for number in range(SEEDS)])
@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=[shape.__name__ for shape in SHAPES])
def test_checkpoint_takes_its_longest_piece_and_its_writes_and_none_is_given_up(shape: int, number: int) -> None:
    simulate(1_000 * shape + number, shape)


@pytest.mark.parametrize("seed", range(6))
def test_time_to_place_is_the_longest_piece_where_all_tasks_on_the_way_are_busy(seed: int) -> None:
    """Not the sum: the barrier overtakes the pieces."""
    assert len(simulate_chain(seed).completed) > 5


def test_checkpoints_are_complete_while_a_task_is_slow() -> None:
    """So slow that the job would need minutes for what is queued."""
    slow = [run for run in map(simulate, range(0, 60, 4)) if run.now > 1.0]
    assert sum(len(run.completed) for run in slow) > 50, [(run.seed, run.now, len(run.completed)) for run in slow]
