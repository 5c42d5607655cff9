"""State at another parallelism: operator state, key groups, channel state."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.coordinator.channel_mapping import ChannelMapper, RescaleError, restore_mapping
from penstock.coordinator.events import Failure
from penstock.coordinator.key_groups import (
    UPPER_BOUND,
    adopt_max_parallelism,
    default_max_parallelism,
    former_owners,
    owned_groups,
    owner,
    shared_groups,
)
from penstock.coordinator.redistribution import NamedState, StateMode, redistribute

SPLIT, UNION, BROADCAST = StateMode.SPLIT_DISTRIBUTE, StateMode.UNION, StateMode.BROADCAST


def split(*items: int) -> NamedState[int]:
    return NamedState(SPLIT, items)


# --- operator state --------------------------------------------------------------------------------------------------


def test_shares_are_contiguous_and_the_next_name_begins_where_the_left_overs_ended() -> None:
    old = [{"a": split(1, 2, 3), "b": split(10)}, {"a": split(4), "b": split(11, 12, 13)}]
    assert redistribute(old, 3) == (
        {"a": split(1, 2), "b": split(13)},
        {"a": split(3), "b": split(10, 11)},
        {"a": split(4), "b": split(12)},
    )


def test_a_name_without_left_overs_leaves_the_next_one_where_it_began() -> None:
    old = [{"a": split(1, 2), "b": split(3)}]
    assert redistribute(old, 2) == ({"a": split(1), "b": split(3)}, {"a": split(2)})


def test_everybody_keeps_its_own_at_the_same_parallelism_except_for_union_state() -> None:
    union = [NamedState(UNION, (number,)) for number in range(2)]
    old = [{"a": split(1, 2, 3), "u": union[0]}, {"a": split(4), "u": union[1]}]
    everything = NamedState(UNION, (0, 1))
    assert redistribute(old, 2) == ({"a": split(1, 2, 3), "u": everything}, {"a": split(4), "u": everything})


def test_finished_subtask_begins_empty_at_the_same_parallelism_and_hands_nothing_over_at_another() -> None:
    old = [None, {"a": split(1, 2)}]
    assert redistribute(old, 2) == ({}, {"a": split(1, 2)})
    assert redistribute(old, 1) == ({"a": split(1, 2)},)
    assert redistribute([None, None], 3) == ({}, {}, {})


def test_broadcast_copies_are_dealt_out_in_turn() -> None:
    old = [{"b": NamedState(BROADCAST, (number,))} for number in range(2)]
    assert [state["b"].items for state in redistribute(old, 5)] == [(0,), (1,), (0,), (1,), (0,)]


def test_a_name_with_two_modes_is_refused() -> None:
    with pytest.raises(ValueError, match="'a' was stored as SPLIT_DISTRIBUTE by one subtask, as UNION by another"):
        redistribute([{"a": split(1)}, {"a": NamedState(UNION, (1,))}], 2)


@given(st.lists(st.none() | st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)), min_size=1), st.integers(1, 8))
def test_redistribution_loses_and_repeats_nothing_and_is_even(
    counts: list[dict[str, int] | None], parallelism: int
) -> None:
    old = [
        None if held is None else {name: split(*range(100 * task, 100 * task + n)) for name, n in held.items()}
        for task, held in enumerate(counts)
    ]
    new = redistribute(old, parallelism)
    for name in "abc":
        before = [item for state in old for item in (state or {}).get(name, split()).items]
        after = [state.get(name, split()).items for state in new]
        assert Counter(before) == Counter(item for items in after for item in items)
        if parallelism != len(old):
            assert max(map(len, after)) - min(map(len, after)) <= 1
    if parallelism != len(old):
        totals = [sum(len(state.items) for state in one.values()) for one in new]
        assert max(totals) - min(totals) <= 1, "left-overs pile up"


# --- key groups ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 600), st.data())
def test_key_groups_have_one_owner_each_and_ranges_are_even(groups: int, data: st.DataObject) -> None:
    parallelism = data.draw(st.integers(1, groups))
    ranges = [owned_groups(subtask, parallelism, groups) for subtask in range(parallelism)]
    assert [group for owned in ranges for group in owned] == list(range(groups))
    assert all(owner(group, parallelism, groups) == task for task, owned in enumerate(ranges) for group in owned)
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@given(st.integers(1, 40), st.integers(1, 40), st.integers(40, 200))
def test_former_owners_are_exactly_those_whose_groups_meet_the_new_ones(old: int, new: int, groups: int) -> None:
    for subtask in range(new):
        mine = owned_groups(subtask, new, groups)
        meeting = [one for one in range(old) if len(shared_groups(owned_groups(one, old, groups), mine))]
        assert list(former_owners(subtask, old, new, groups)) == meeting
        taken = [group for one in meeting for group in shared_groups(owned_groups(one, old, groups), mine)]
        assert taken == list(mine)


@pytest.mark.parametrize(
    ("parallelism", "expected"), [(1, 128), (85, 128), (86, 256), (171, 256), (172, 512), (UPPER_BOUND, UPPER_BOUND)]
)
def test_default_leaves_room_for_half_as_many_again(parallelism: int, expected: int) -> None:
    assert default_max_parallelism(parallelism) == expected


def test_stored_number_of_key_groups_wins_over_a_default_only() -> None:
    assert adopt_max_parallelism("v", stored=128, configured=256, is_explicit=False, parallelism=4) == 128
    assert adopt_max_parallelism("v", stored=128, configured=128, is_explicit=True, parallelism=128) == 128
    for explicit, parallelism, said in ((True, 4, "256 key groups"), (False, 200, "only 128 key groups")):
        refusal = adopt_max_parallelism("v", 128, 256, explicit, parallelism)
        assert isinstance(refusal, Failure)
        assert said in refusal.message


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: owned_groups(0, 3, 2), "3 subtasks cannot share 2 key groups"),
        (lambda: owned_groups(2, 2, 8), "no subtask 2"),
        (lambda: owner(8, 2, 8), "no key group 8"),
        (lambda: default_max_parallelism(UPPER_BOUND + 1), "between 1 and 32768"),
    ],
)
def test_numbers_that_do_not_exist_are_refused(call: object, said: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=said):
        call()


# --- channel state ---------------------------------------------------------------------------------------------------


def test_everybody_reads_its_own_channels_at_the_same_parallelism_whatever_the_mapper() -> None:
    for mapper in ChannelMapper:
        assert restore_mapping("v", [mapper], 3, 3) == (range(1), range(1, 2), range(2, 3))


def test_gates_of_one_vertex_must_agree() -> None:
    agreed = restore_mapping("v", [ChannelMapper.ARBITRARY, ChannelMapper.ROUND_ROBIN], 3, 2)
    assert [list(subtasks) for subtasks in agreed] == [[0, 2], [1]]
    with pytest.raises(RescaleError, match="one RANGE, one FULL"):
        restore_mapping("v", [ChannelMapper.RANGE, ChannelMapper.FULL], 3, 2)


def test_pointwise_exchange_is_not_rescaled() -> None:
    with pytest.raises(RescaleError, match="restore at the parallelism 3"):
        restore_mapping("v", [ChannelMapper.UNSUPPORTED], 3, 2)


def test_vertex_without_gates_has_no_channel_state() -> None:
    with pytest.raises(ValueError, match="'v' has no gate"):
        restore_mapping("v", [], 3, 2)


@given(st.sampled_from(list(ChannelMapper)), st.integers(1, 30), st.integers(1, 30))
def test_every_old_subtask_is_read_by_somebody_and_by_one_only_unless_ambiguous(
    mapper: ChannelMapper, old: int, new: int
) -> None:
    if mapper is ChannelMapper.UNSUPPORTED:
        return
    read = Counter(one for subtasks in mapper.mapping(old, new) for one in subtasks)
    assert set(read) == set(range(old))
    assert mapper.is_ambiguous or set(read.values()) == {1}
