"""Digests of global batches: the same however rows come, and the first one that differs is found."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.engine.feed.digests import BatchDigests, DigestRun, OrderHash, compare, merged

HASHES = np.random.Generator(np.random.Philox(1)).integers(0, 2**63, 200, dtype=np.uint64)


def expected(size: int, rows: int) -> list[int]:
    """Every batch by itself."""
    return [OrderHash().extended(HASHES[at : min(at + size, rows)]).value for at in range(0, rows, size)]


@settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault of the test
@given(
    size=st.integers(1, 50),
    rows=st.integers(0, 200),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    start=st.integers(0, 200),
)
def test_digests_do_not_depend_on_pieces_and_begin_with_the_first_whole_batch(
    size: int, rows: int, cuts: list[int], start: int
) -> None:
    start = min(start, rows)
    made, runs = BatchDigests(size, start), []
    borders = [start, *sorted(min(max(cut, start), rows) for cut in cuts), rows]
    for one, two in itertools.pairwise(borders):
        made.add(HASHES[one:two])
        runs.append(made.take())
    made.end()
    runs.append(made.take())
    first = -(-start // size)
    assert runs[0].first == first
    assert all(before.end == after.first for before, after in itertools.pairwise(runs))
    assert [digest for run in runs for digest in run.digests.tolist()] == expected(size, rows)[first:]


def test_two_rows_that_change_places_change_the_digest_of_their_batch_alone() -> None:
    order = np.arange(200)
    order[[101, 109]] = order[[109, 101]]
    runs = []
    for hashes in (HASHES, HASHES[order]):
        digests = BatchDigests(10)
        digests.add(hashes)
        runs.append(digests.take())
    assert np.flatnonzero(runs[0].digests != runs[1].digests).tolist() == [10]
    assert compare(merged([runs[0]]), merged([runs[1]])).first == 10


def run(first: int, *digests: int) -> DigestRun:
    return DigestRun(first, np.array(digests, dtype=np.uint64))


def test_feeds_are_compared_where_both_know_something() -> None:
    def compared(one: DigestRun, two: DigestRun) -> tuple[int | None, int, tuple[int, int]]:
        found = compare(merged([one]), merged([two]))
        return found.first, found.compared, found.only

    assert compared(run(0, 1, 2, 3), run(0, 1, 2, 3)) == (None, 3, (0, 0))
    assert compared(run(0, 1, 2, 3, 4), run(2, 3, 9, 5)) == (3, 2, (2, 1))
    assert compared(run(0, 1, 2), run(7, 1, 2)) == (None, 0, (2, 2))
    assert compared(run(0), run(0)) == (None, 0, (0, 0))


def test_a_batch_that_no_rank_has_taken_may_be_another_one_in_a_later_attempt() -> None:
    """The weights of a mixture were changed, and a checkpoint that had it was not completed."""

    def known(*runs: DigestRun) -> tuple[list[int], int | None]:
        found = merged(runs)
        return list(zip(found.batches.tolist(), found.digests.tolist(), strict=True)), found.contradiction

    lost = replace(run(0, 10, 11, 12, 13), taken=2, attempt=(1, 1))
    later = replace(run(2, 92, 93, 94), taken=2, attempt=(2, 1))
    now = [(0, 10), (1, 11), (2, 92), (3, 93), (4, 94)]
    assert known(lost, later) == known(later, lost) == (now, None)
    assert known(replace(run(2, 92), taken=3, attempt=(3, 1)), later, lost) == (now, None)
    assert known(lost, later, replace(run(3, 83), taken=0, attempt=(3, 1)))[0][3] == (3, 83)
    assert known(replace(lost, taken=3), later)[1] == 2
    assert known(replace(lost, taken=None), later)[1] == 2
    same = replace(run(0, 10, 11, 12), taken=0, attempt=(1, 2))
    assert known(replace(lost, taken=3), same, later)[1] == 2, "what was taken stays so, though recorded again"


def test_what_was_recorded_twice_must_be_the_same() -> None:
    found = merged([run(3, 13, 14), run(0, 10, 11, 12, 13)])
    assert (found.batches.tolist(), found.digests.tolist()) == ([0, 1, 2, 3, 4], [10, 11, 12, 13, 14])
    assert found.contradiction is None
    assert merged([run(3, 13, 14), run(0, 10, 11, 12, 99), run(4, 98)]).contradiction == 3
