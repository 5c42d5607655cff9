"""Every pair of states: which moves are legal, by the table and by the core that uses it."""

import itertools
from pathlib import Path

import pytest

from penstock.engine.core.errors import InternalError
from penstock.engine.scheduler.core import Moves
from penstock.engine.scheduler.protocol import LEGAL, DriverState, Wait, WaitReason
from penstock.engine.scheduler.protocol import MOVES as TABLE
from support.scheduling import CoreDriver

MOVES = """
created → ready finishing closed
ready → running paused finishing
running → ready waiting paused finishing
waiting → ready paused finishing
paused → ready waiting finishing
finishing → closed
closed → released
released →
"""
EXPECTED = {(line.split(" →")[0], to) for line in MOVES.strip().splitlines() for to in line.partition("→")[2].split()}
PAIRS = list(itertools.product(DriverState, DriverState))


def draw_states() -> str:
    """The table as a Mermaid diagram, as docs/design/scheduler.md shows it."""
    lines = ["stateDiagram-v2", f"    [*] --> {DriverState.CREATED.value}"]
    lines += [f"    {start.value} --> {to.value}: {event}" for (start, to), event in TABLE.items()]
    return "\n".join([*lines, f"    {DriverState.RELEASED.value} --> [*]"])


@pytest.mark.parametrize(("start", "to"), PAIRS, ids=lambda state: state.value)
def test_move_is_legal_exactly_if_the_table_of_the_test_says_so(start: DriverState, to: DriverState) -> None:
    assert (to in LEGAL[start]) == ((start.value, to.value) in EXPECTED)


@pytest.mark.parametrize(("start", "to"), PAIRS, ids=lambda state: state.value)
def test_scheduler_makes_a_move_exactly_if_it_is_legal(start: DriverState, to: DriverState) -> None:
    driver = CoreDriver()
    entry = driver.add(driver.open(), "r")
    entry.state = start
    if (start.value, to.value) in EXPECTED:
        Moves(1, None, (0.0,)).move(entry, to, 1.0)
        assert (entry.state, entry.since) == (to, 1.0)
    else:
        with pytest.raises(InternalError, match=f"driver r may not go from {start.value} to {to.value}"):
            Moves(1, None, (0.0,)).move(entry, to, 1.0)
        assert entry.state is start


def test_final_state_is_never_left_and_every_other_one_can_be() -> None:
    assert [state for state in DriverState if not LEGAL[state]] == [DriverState.RELEASED]


def test_every_state_but_the_first_can_be_reached_from_the_first() -> None:
    reached = {DriverState.CREATED}
    for _ in DriverState:
        reached |= {to for state in reached for to in LEGAL[state]}
    assert reached == set(DriverState)


def test_design_page_shows_exactly_the_diagram_of_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "design" / "scheduler.md").read_text(encoding="utf-8")
    assert f"```mermaid\n{draw_states()}\n```" in page


def test_wait_reads_as_a_sentence() -> None:
    assert str(Wait(WaitReason.OUTPUT, "sink 1")) == "waits for output: sink 1"
