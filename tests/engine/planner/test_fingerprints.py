"""The identity of a flow with each operator is what it was: a job goes on from the checkpoints of earlier versions.

A value here may change only where what an operator does to rows has changed: then such checkpoints must be refused.
A field that a config gets has to leave it as it was.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

import penstock as ps

TABLE = pa.table({"k": [1], "v": [2], "l": [[1]], "s": ["a"]})
Build = Callable[[ps.Stream], ps.Stream]

KNOWN: dict[str, tuple[Build, str]] = {
    "filter": (lambda s: s.filter("v > 0"), "b1413b95cb36c5e16c0743f5e5f99a18"),
    "filter by expression": (lambda s: s.filter(ps.field("v") > 0), "a519ee1813f49d69ec38c59091d0c75c"),
    "project": (lambda s: s.project("k", w="v + 1"), "04e594804e28e5ca34631a24c09544c8"),
    "unnest": (lambda s: s.unnest("l"), "bec408b0779e3db3262e4aff788dfad2"),
    "aggregate": (lambda s: s.aggregate(["k"], n="count"), "e58a6a6b0b1660a3f8414ab424061b17"),
    "aggregate in order": (lambda s: s.aggregate(["k"], n=("v", "first")), "a9e2872f0791f4b50348bfeec9b0a41b"),
    "stream aggregate": (lambda s: s.stream_aggregate(["k"], n="count"), "f490d4386d4fa21249f837c3444af9b2"),
    "distinct": (lambda s: s.distinct("k"), "aa9c6433728f8ec57ca0ea5c53039bc1"),
    "distinct by key": (lambda s: s.distinct("k", exchange="key"), "8c5378f571a2082458c6c2b769419aaa"),
    "mark distinct": (lambda s: s.mark_distinct("k", marker="m"), "4ef0aeed5793e3bc011722981b0e14ac"),
    "sort": (lambda s: s.sort("v"), "ebaa68784327aca520351b246b5c44a7"),
    "top n": (lambda s: s.top_n(3, "v"), "ee92c7fd66e6efcd96c97b180f3a9b91"),
    "limit": (lambda s: s.limit(3), "6f574f1cd2ac7f2b0b6cbad4cc28585a"),
    "window": (lambda s: s.window(["k"], ["v"], n="rank"), "6cf791382115768b5ec55322bbe09efa"),
    "window by key": (lambda s: s.window(["k"], ["v"], exchange="key", n="rank"), "3a1dc768887e58c71d8a99f5733a2a8a"),
    "union": (lambda s: s.union(s), "992d292b2923cac685ccf566ae91b2f1"),
    "hash join": (lambda s: s.hash_join(s, ["k"]), "b9aa76754f1a38d3a703b95deed87b8d"),
    "hash join by key": (lambda s: s.hash_join(s, ["k"], exchange="key"), "8a10c2705342b7fe360b048a53e5f799"),
    "merge join": (lambda s: s.merge_join(s, ["k"]), "0f1a5bbab0304bde6b1ffde4acca3413"),
    "shuffle": (lambda s: s.shuffle(10), "e75181919814ca2d113f2e1de43b7dc1"),
    "pack": (lambda s: s.pack(8, tokens="l"), "31f17da8b2421a52ff7a2481b9ac16d0"),
    "rebalance": (lambda s: s.rebalance(), "9599728537bf91f5178ebfbedfaf6023"),
    "by range": (lambda s: s.partition_by_range("k", [3]), "5904f3d6e66700e96d452bdf28fd22a0"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_identity_of_a_flow_is_what_it_was(name: str) -> None:
    build, known = KNOWN[name]
    flow = ps.Flow("x", lanes=4)
    build(flow.from_tables(TABLE, name="src")).write_parquet("out")
    # manifests of versions that did not say how many parts there are
    assert flow.with_parts_of(0).fingerprint() == known


@pytest.mark.parametrize("name", KNOWN)
def test_flow_goes_on_with_the_parts_that_its_checkpoint_was_taken_with(name: str) -> None:
    build, _ = KNOWN[name]
    flows = [ps.Flow("x", lanes=4), ps.Flow("x", lanes=4, parts=5), ps.Flow("x", lanes=4, parts=8)]
    for flow in flows:
        build(flow.from_tables(TABLE, name="src")).write_parquet("out")
    default, five, eight = flows
    assert default.fingerprint() == eight.fingerprint()
    assert default.with_parts_of(5).fingerprint() == five.fingerprint()
    assert five.with_parts_of(8) is five, "what the flow says itself holds"
