"""A table of moves, the one place that makes them, and what an illegal one tells."""

from __future__ import annotations

import pickle

import pytest

from penstock.engine.core.channel_states import END_MOVES, EndState
from penstock.engine.core.state_machine import IllegalTransition, StateMachine


def test_illegal_move_names_the_machine_both_states_and_the_moves_before() -> None:
    machine = StateMachine("the end", END_MOVES, EndState.OPEN)
    machine.move(EndState.DATA_ENDED)
    machine.move(EndState.CLOSED)
    with pytest.raises(IllegalTransition, match="the end may not go from closed to data ended") as caught:
        machine.move(EndState.DATA_ENDED)
    assert caught.value.detail == "its last states: open → data ended → closed"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert machine.state is EndState.CLOSED
