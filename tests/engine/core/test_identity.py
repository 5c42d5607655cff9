"""Where sources agree to place a barrier."""

from __future__ import annotations

from itertools import permutations

import pytest

from penstock.engine.core.identity import CLOSING_ROUND, FINAL_ROUND, UNDECIDED_ROUND, later_round


@pytest.mark.parametrize(
    ("rounds", "agreed"),
    [
        ((-1, -1), -1),
        ((3, 7, -1), 7),
        ((FINAL_ROUND, 7), 7),
        ((FINAL_ROUND, -1), -1),
        ((FINAL_ROUND, FINAL_ROUND), FINAL_ROUND),
        ((FINAL_ROUND, CLOSING_ROUND), CLOSING_ROUND),
        ((CLOSING_ROUND, 7), UNDECIDED_ROUND),
        ((CLOSING_ROUND, 7, FINAL_ROUND), UNDECIDED_ROUND),
        ((UNDECIDED_ROUND, FINAL_ROUND), UNDECIDED_ROUND),
        ((UNDECIDED_ROUND, 3, CLOSING_ROUND), UNDECIDED_ROUND),
    ],
)
def test_sources_agree_on_the_latest_round_in_whatever_order_they_answer(rounds: tuple[int, ...], agreed: int) -> None:
    for order in permutations(rounds):
        assert later_round(*order) == agreed
        reached = FINAL_ROUND
        for each in order:
            reached = later_round(each, reached)
        assert reached == agreed, "one by one"
