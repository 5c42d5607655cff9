"""Cuts of the real engine under the real coordinator, by a clock that is simulated: none waits for more than pieces and
disks, none is given up, and no rows change."""

from __future__ import annotations

import pytest

from support.engine_simulation_shapes import SHAPES
from support.engine_simulation_timed import simulate
from support.sweeps import swept

FEW, SEEDS = 1, 10


@pytest.mark.parametrize("number", [number if number < FEW else swept(number) for number in range(SEEDS)])
@pytest.mark.parametrize("shape", range(len(SHAPES)), ids=[shape.__name__ for shape in SHAPES])
def test_checkpoint_takes_the_pieces_on_the_way_and_its_writes_and_none_is_given_up(shape: int, number: int) -> None:
    simulate(1_000 * shape + number, shape)


def test_checkpoints_are_complete_while_a_task_is_slow() -> None:
    """So slow that the job would need minutes for what is queued."""
    slow = [run for run in map(simulate, range(0, 60, 4)) if run.now > 1.0]
    assert sum(len(run.completed) for run in slow) > 50, [(run.seed, run.now, len(run.completed)) for run in slow]
