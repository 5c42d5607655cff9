"""In which lanes and rounds the splits stand that a caller adds to a plan or a job. Pure.

Rule: a split set is whole rounds, ``lanes`` places to a round. Where its splits stand depends on their number and on
how many sets came before, never on the parallelism, nor on when something was added.
"""

from __future__ import annotations


def rounds_of(count: int, lanes: int) -> int:
    """How many rounds a set of ``count`` splits a source is."""
    return max(1, -(-count // lanes))


def places(count: int, lanes: int, turn: int) -> tuple[int, ...]:
    """Where the splits of a set stand in its rounds, ``lanes`` places to a round, ascending: so their order is that of
    the splits. They are spread evenly over the lanes, and small sets stand in other lanes each ``turn``, so that
    subtasks that own neighbouring lanes all get some."""
    size = lanes * rounds_of(count, lanes)
    spread = size // count if count else 1
    first = _scattered(turn, spread)
    return tuple(number * size // count + first for number in range(count))


def _scattered(turn: int, size: int) -> int:
    """The numbers below ``size``, in an order in which those of successive turns lie far apart (van der Corput)."""
    steps = 1
    while steps < size:
        steps *= 2
    # of 0 … steps-1 with their bits reversed, those below size, in turn
    found = [each for each in (_reversed(number, steps) for number in range(steps)) if each < size]
    return found[turn % size]


def _reversed(number: int, steps: int) -> int:
    result = 0
    while steps > 1:
        result, number, steps = 2 * result + number % 2, number // 2, steps // 2
    return result
