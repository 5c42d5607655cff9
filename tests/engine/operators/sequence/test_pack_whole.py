"""Whole sequences in rows, against the definition written as a loop over them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import DataError, FlowError
from penstock.engine.feed.marks import END
from penstock.engine.operators import PackWhole
from penstock.engine.state.memory import TaskMemory
from support.feeds import batches_of, read_group
from support.operator_harness import LANES, SIZES, run
from support.sweeps import seeds

LENGTH = 9
LISTS = pa.list_(pa.int32())
SCHEMA = pa.schema(
    [("tokens", LISTS), ("mask", LISTS), ("name", pa.string()), pa.field(END, pa.bool_(), nullable=False)]
)
CONFIG = PackWhole(
    LENGTH, "tokens", ("mask",), ("name",), -1, documents="documents", cu_seqlens="cu_seqlens", labels="labels"
)
Sequence = dict[str, Any]


def groups_of(chance: random.Random) -> list[list[Sequence]]:
    """Sequences in groups that fit into a row; some have no token."""
    found = []
    for _ in range(chance.randrange(6)):
        group, left = [], LENGTH
        for _ in range(chance.randint(1, 5)):
            count = chance.randint(0, left)
            left -= count
            tokens = [chance.randint(1, 99) for _ in range(count)]
            nothing = tokens or chance.choice(([], None))
            group.append({"tokens": nothing, "mask": nothing, "name": f"{chance.random():.3f}"})
        found.append(group)
    return found


def packed(group: list[Sequence], first: int) -> dict[str, Any]:
    """A row, one sequence after the other."""
    row: dict[str, Any] = {name: [] for name in ("tokens", "labels", "segment_ids", "position_ids", "documents")}
    row |= {"cu_seqlens": [0], "name": []}
    for number, sequence in enumerate(group):
        if not (tokens := sequence["tokens"]):
            continue
        row["name"].append(sequence["name"])
        row["tokens"] += tokens
        row["labels"] += [-100, *tokens[1:]]
        row["segment_ids"] += [len(row["name"])] * len(tokens)
        row["position_ids"] += range(len(tokens))
        row["documents"] += [first + number] * len(tokens)
        row["cu_seqlens"].append(len(row["tokens"]))
    missing = LENGTH - len(row["tokens"])
    fills = {"tokens": -1, "labels": -100, "segment_ids": 0, "position_ids": 0, "documents": -1}
    for name, fill in fills.items():
        row[name] += [fill] * missing
    return {**row, "mask": row["tokens"]}


@pytest.mark.parametrize("seed", seeds(30, of=300))
def test_rows_are_those_of_the_definition_whatever_the_batches_and_restores(seed: int) -> None:
    chance = random.Random(seed)
    units, expected, count = {}, [], 0
    for unit in sorted({(chance.randrange(3), chance.randrange(LANES)) for _ in range(4)}):
        rows = []
        for group in groups_of(chance):
            if any(sequence["tokens"] for sequence in group):
                expected.append(packed(group, count))
            count += len(group)
            rows += [{**sequence, END: False} for sequence in group[:-1]] + [{**group[-1], END: True}]
        units[unit] = pa.Table.from_pylist(rows, SCHEMA)
    outcome = run(
        CONFIG,
        units,
        schemas=[SCHEMA],
        size=chance.choice(SIZES),
        restore=chance.random() < 0.5,
        output_rows=chance.choice((1, 1024)),
        memory=TaskMemory(),
    )
    found = outcome.table.to_pylist()
    assert found == [{name: row[name] for name in outcome.schema.names} for row in expected]


def corpus(rows: int = 3000) -> pa.Table:
    chance = np.random.default_rng(2)
    lengths = np.clip(chance.lognormal(3.5, 1.0, rows), 1, 200).astype(int)
    tokens = [(np.arange(count) % 90 + 1).tolist() for count in lengths]
    return pa.table({"id": range(rows), "tokens": tokens})


def flow_of(length: int = 256, epochs: int = 1, **options: Any) -> ps.Flow:
    flow, table = ps.Flow("packed", lanes=4), corpus()
    rows = flow.from_tables([table.slice(at, 500) for at in range(0, 3000, 500)])
    rows.pack(length, window=1000, each=["id"], **options).feed(4, epochs=epochs)
    return flow


def test_each_sequence_is_in_one_row_and_rows_are_full_whoever_reads() -> None:
    found = batches_of(flow_of(), parallelism=1)
    rows = [row for batch in found for row in batch]
    assert sorted(id for row in rows for id in row["id"]) == list(range(3000))
    share = sum(segment > 0 for row in rows for segment in row["segment_ids"]) / (256 * len(rows))
    assert share >= 0.97, share
    assert batches_of(flow_of(), 3, parallelism=3) == found
    twice = batches_of(flow_of(epochs=2))
    assert twice[: len(found)] == found
    assert sorted(id for batch in twice[len(found) :] for row in batch for id in row["id"]) == list(range(3000))


def test_sequences_that_are_too_long_are_cut_only_if_that_is_asked_for() -> None:
    with pytest.raises(DataError, match="too_long="):
        ps.run_local(flow_of(100)).wait(60)
    rows = [row for batch in batches_of(flow_of(100, too_long="split")) for row in batch]
    assert sum(segment > 0 for row in rows for segment in row["segment_ids"]) == sum(
        map(len, corpus()["tokens"].to_pylist())
    )


def test_packed_rows_are_replayed_with_the_rows_that_they_are_made_of(tmp_path: Any) -> None:
    job = ps.run_local(flow_of(), checkpoints=tmp_path)
    found = read_group(job.feed(), 1)
    job.wait(60)
    again = ps.replay(flow_of(), checkpoints=tmp_path, step=3)
    assert (again.rows.to_pylist(), again.verified) == (found[3], True)
    assert again.lineage.num_rows == sum(len(row["id"]) for row in found[3])
    assert again.lineage.column("row").null_count == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"window": 8, "separator": 1}, "a separator"),
        ({"alike": ["mask"]}, "only in a window"),
        ({"window": 8, "alike": ["id"]}, "'id' is int64"),
        ({"window": 8, "each": ["none"]}, "none"),
        ({"window": 8, "labels": "tokens", "each": ["id"], "cu_seqlens": "id"}, "one name"),
        ({"window": 8, "pad": 1.5}, "pad"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(FlowError, match=told):
        ps.Flow("refused").from_tables(corpus(3)).pack(256, **options)


def test_columns_that_are_not_as_long_as_the_tokens_are_refused() -> None:
    flow = ps.Flow("unlike")
    table = pa.table({"tokens": [[1, 2]], "mask": [[1]]})
    flow.from_tables(table).pack(4, window=3, alike=["mask"]).collect("rows")
    with pytest.raises(DataError, match="2 tokens and 1 elements in 'mask'"):
        ps.run_local(flow).wait(60)


def test_labels_of_ones_own_are_masked_at_borders() -> None:
    flow = ps.Flow("labels")
    table = pa.table({"tokens": [[1, 2], [3, 4, 5]], "labels": [[7, 8], [0, 0, 9]]})
    flow.from_tables(table).pack(6, window=3, labels="labels", ignore=-1).collect("rows")
    (row,) = ps.run_local(flow).result("rows").to_pylist()
    assert (row["tokens"], row["labels"]) == ([1, 2, 3, 4, 5, 0], [-1, 8, -1, 0, 9, -1])
