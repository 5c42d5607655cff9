"""Split sets and task barriers of a simulated job: every row visible once, in its window, whoever is lost."""

from __future__ import annotations

from collections import Counter

import pytest

from support.simulated_windows import World


def check(seed: int) -> Counter[str]:
    world = World(seed)
    world.run()
    status = world.core.status()
    assert status.state == "finished"
    visible = [(barrier, row) for rows in world.visible.values() for barrier, row in rows]
    assert sorted(row for _, row in visible) == sorted(world.fed), "every row is visible once"
    windows: dict[str, set[int]] = {}
    for barrier, row in visible:
        windows.setdefault(barrier, set()).add(world.fed[row])
    assert all(len(found) == 1 for found in windows.values()), "a barrier stands behind the rows of one window"
    assert status.splits is not None
    assert status.splits.published == status.splits.reached == status.splits.requested
    return world.seen


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_every_row_is_visible_once_in_its_window_whatever_is_lost(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + 8):
        seen += check(seed)
    assert seen["losses"] > 8, "tasks were lost"
    assert seen["coordinators"] > 2, "coordinators began anew"
