"""Runs the rows about key groups and about channel state at another parallelism."""

from __future__ import annotations

import pytest
from cases.tables import Row, by_subtask, rows

from penstock.coordinator.model.rescaling import ChannelMapper, RescaleError, owned_groups, owner

FILE = "checkpoint_plan.json"
GROUPS = 128
"""What the table's RANGE mappings are made with."""


@pytest.mark.parametrize("row", rows(FILE, "key_group_cases"))
def test_key_groups(row: Row) -> None:
    groups, parallelism = row["max_parallelism"], row["parallelism"]
    ranges = [owned_groups(subtask, parallelism, groups) for subtask in range(parallelism)]
    assert [[owned[0], owned[-1]] for owned in ranges] == row["expect_ranges_inclusive"]
    assert [owner(group, parallelism, groups) for group in range(groups)] == [
        subtask for subtask, owned in enumerate(ranges) for _ in owned
    ]


@pytest.mark.parametrize("row", rows(FILE, "channel_state_rescale_cases"))
def test_channel_state(row: Row) -> None:
    old, new = row["old_parallelism"], row["new_parallelism"]
    for name, expected in row["expect"].items():
        mapper = ChannelMapper[name]
        if mapper is ChannelMapper.UNSUPPORTED:
            with pytest.raises(RescaleError):
                mapper.old_subtasks(0, old, new, GROUPS)
            continue
        groups = row.get("max_parallelism", GROUPS)
        found = [list(mapper.old_subtasks(subtask, old, new, groups)) for subtask in range(new)]
        assert by_subtask(found) == expected, name
        is_read_twice = len({each for part in found for each in part}) < sum(map(len, found))
        assert is_read_twice <= (name in row["ambiguous_needs_filtering"]), name
