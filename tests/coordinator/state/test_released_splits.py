"""Split sets: where their splits stand, what their log says, and how much of it may be released when."""

from __future__ import annotations

import random

import msgspec
import pytest

from penstock.coordinator.model.split_sets import (
    FORMAT,
    NoMoreSets,
    SetAdded,
    SetPosition,
    SplitEntry,
    SplitRef,
    WindowEnded,
    decode_splits,
    encode_splits,
    following,
)
from penstock.coordinator.state.released_splits import WINDOWS_AHEAD, ReleasedSplits


def entries(kinds: str, at: SetPosition | None = None) -> list[SplitEntry]:
    """``s``: a set of one round, ``b``: a barrier, ``e``: the end."""
    at, found = at or SetPosition(), list[SplitEntry]()
    for kind in kinds:
        entry: SplitEntry = NoMoreSets(at=at)
        if kind == "s":
            entry = SetAdded(at=at, splits={"rows": (SplitRef(id="0", rows=0),)}, rounds=1)
        elif kind == "b":
            entry = WindowEnded(at=at)
        found.append(entry)
        at = following(entry)
    return found


def fed(kinds: str) -> ReleasedSplits:
    feed = ReleasedSplits()
    feed.begin(SetPosition())
    assert feed.note(entries(kinds))
    return feed


def released(feed: ReleasedSplits, *, whole_windows: bool) -> int:
    feed.release(whole_windows=whole_windows)
    feed.validate()
    return feed.released


# ---- what the log says


def test_entries_come_back_from_json_and_say_what_comes_before_the_next() -> None:
    found = entries("ssbe")
    assert [decode_splits(encode_splits(entry)) for entry in found] == found
    assert following(found[-1]) == SetPosition(number=4, sets=2, windows=1, rounds=2)


def test_entry_of_a_newer_form_is_refused() -> None:
    data = encode_splits(WindowEnded(format=FORMAT + 1, at=SetPosition()))
    with pytest.raises(msgspec.ValidationError, match="this version knows"):
        decode_splits(data)


# ---- what is known


def test_entries_are_known_without_gaps_and_once() -> None:
    feed, found = fed(""), entries("sbsb")
    assert not feed.note(found[1:2]), "one before it is missing"
    assert feed.note(found[:2])
    assert feed.note(found[:3])
    assert feed.known == SetPosition(number=3, sets=2, windows=1, rounds=2)


def test_feed_that_goes_on_counts_from_what_a_checkpoint_covers() -> None:
    feed, found = ReleasedSplits(), entries("sbsbs")
    feed.begin(following(found[1]))
    assert feed.note(found[2:])
    assert released(feed, whole_windows=False) == 5
    assert [entry.at.number for entry in feed.since(0)] == [2, 3, 4]


# ---- what is released


def test_sets_of_an_open_window_are_kept_while_a_checkpoint_is_wanted() -> None:
    feed = fed("sbss")
    assert released(feed, whole_windows=True) == 2
    assert feed.is_between_windows
    assert released(feed, whole_windows=False) == 4
    assert not feed.is_between_windows


def test_open_window_that_is_on_its_way_goes_on_up_to_its_barrier() -> None:
    feed = fed("s")
    assert released(feed, whole_windows=False) == 1
    feed.note(entries("ss")[1:])
    assert released(feed, whole_windows=True) == 2, "nothing is gained by keeping the rest of it"
    feed.note(entries("ssbs")[2:])
    assert released(feed, whole_windows=True) == 3
    assert feed.is_between_windows


def test_end_is_released_behind_the_last_barrier_and_is_no_part_of_the_cut() -> None:
    feed = fed("sbe")
    assert released(feed, whole_windows=True) == 3
    assert feed.is_between_windows
    assert feed.boundary == SetPosition(number=2, sets=1, windows=1, rounds=1)
    assert feed.ended


def test_so_many_windows_are_released_beyond_what_is_covered() -> None:
    feed = fed("sb" * 10)
    assert released(feed, whole_windows=False) == 2 * WINDOWS_AHEAD
    assert feed.cover(feed.boundary) == range(2 * WINDOWS_AHEAD)
    assert released(feed, whole_windows=False) == 4 * WINDOWS_AHEAD


@pytest.mark.parametrize("seed", range(50))
def test_whatever_comes_is_released_once_in_order_and_windows_stay_whole(seed: int) -> None:
    draw = random.Random(seed)
    found = entries("".join(draw.choice("ssb") for _ in range(40)) + "be")
    feed, given, told = fed(""), list[SplitEntry](), 0
    while feed.released < len(found):
        told = min(len(found), told + draw.randrange(4))
        feed.note(found[max(0, told - draw.randrange(6)) : told]) or feed.note(found[:told])
        before, wanted = feed.released, draw.random() < 0.5
        was_between = feed.is_between_windows
        feed.release(whole_windows=wanted)
        given += feed.since(before)
        if wanted and was_between:
            assert feed.is_between_windows
        if feed.is_between_windows and draw.random() < 0.5:
            feed.cover(feed.boundary)
        feed.validate()
    assert given == found
