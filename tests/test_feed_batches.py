"""Feeds whose batches are bounded by what rows cost: whoever reads, whatever dies, the same batches.

The oracle of an elastic case is the feed of one rank that nothing disturbs; where rows stay in order, the definition.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.coordinator.model.events import TaskLost
from penstock.engine.core.errors import ConfigurationError, DataError, FlowError
from penstock.engine.feed.marks import balanced
from penstock.jobs.verify_order import verify_order
from support.feeds import batches_of, read_group, take
from support.sweeps import seeds

ROWS, SPLITS = 240, 8
RULES: dict[str, dict[str, Any]] = {
    "tokens": {"tokens": 64},
    "padded": {"tokens": 90, "padded": True},
    "window": {"tokens": 64, "window": 50},
    "padded window": {"tokens": 90, "padded": True, "window": 40},
    "cost": {"tokens": 400, "cost": "n % 17 + 3"},
    "buckets": {"bucket_by": "tokens", "boundaries": [4, 9], "batch_sizes": [20, 9, 5]},
    "buckets of tokens": {"tokens": 64, "bucket_by": "tokens", "boundaries": [4, 9]},
    "balanced": {"tokens": 120, "balance": "tokens"},
    "quadratic": {"batch_size": 24, "balance": "cardinality(tokens) * cardinality(tokens)"},
    "split": {"tokens": 11, "too_long": "split"},
    "truncate": {"tokens": 11, "too_long": "truncate"},
    "drop": {"tokens": 11, "too_long": "drop"},
}


def rows_of() -> list[dict[str, Any]]:
    chance = random.Random(5)
    return [{"n": n, "tokens": [n] * min(40, int(chance.lognormvariate(1.5, 1)))} for n in range(ROWS)]


SCHEMA = pa.schema([("n", pa.int64()), ("tokens", pa.list_(pa.int64()))])


def stream_of() -> ps.Stream:
    whole = pa.Table.from_pylist(rows_of(), SCHEMA)
    tables = [whole.slice(at, ROWS // SPLITS) for at in range(0, ROWS, ROWS // SPLITS)]
    return ps.Flow("by-cost", lanes=4).from_tables(tables)


def in_order() -> list[dict[str, Any]]:
    """The rows as the flow orders them."""
    stream = stream_of()
    stream.gather().collect("rows")
    return ps.run_local(stream.flow).result("rows").to_pylist()


def flow_of(rules: dict[str, Any], shuffle: int | None = None, epochs: int = 1, **options: Any) -> ps.Flow:
    stream = stream_of()
    given = {"room": 60, "keep": 10_000, "shuffle": shuffle, "epochs": epochs, "seed": 3, **rules, **options}
    stream.feed(given.pop("batch_size", None), **given)
    return stream.flow


@pytest.fixture(autouse=True)
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine.planner.pipelines.ROUND_QUOTA", 11)


def as_sets(batches: list[list[Any]]) -> list[Counter[str]]:
    """Batches, however their rows are divided among ranks."""
    return [Counter(map(str, batch)) for batch in batches]


def undisturbed(rules: dict[str, Any], **options: Any) -> list[list[Any]]:
    job = ps.run_local(flow_of(rules, **options), parallelism=1)
    found = read_group(job.feed(), 1)
    job.wait(120)
    return found


@pytest.mark.parametrize("tokens", [40, 64, 1000])
def test_a_batch_is_as_many_rows_as_fit(tokens: int) -> None:
    expected: list[list[Any]] = [[]]
    left = tokens
    for row in in_order():
        cost = max(1, len(row["tokens"]))
        if cost > left:
            expected.append([])
            left = tokens
        expected[-1].append(row)
        left -= cost
    with ps.run_local(flow_of({"tokens": tokens}), parallelism=2) as job:
        assert read_group(job.feed(), 3) == expected


def test_rows_that_are_too_long_are_an_error_cut_or_left_out() -> None:
    given, most = in_order(), 11
    long = [row for row in given if len(row["tokens"]) > most]
    assert long
    found = {how: [row for batch in undisturbed(RULES[how]) for row in batch] for how in ("split", "truncate", "drop")}
    assert found["drop"] == [row for row in given if row not in long]
    assert found["truncate"] == [{**row, "tokens": row["tokens"][:most]} for row in given]
    parts = [
        {**row, "tokens": row["tokens"][at : at + most]}
        for row in given
        for at in range(0, max(1, len(row["tokens"])), most)
    ]
    assert found["split"] == parts
    with pytest.raises(DataError, match=r"more than the 11 of a whole batch[\s\S]*too_long="):
        ps.run_local(flow_of({"tokens": most})).wait(60)


def test_several_lists_are_cut_alike_and_must_be_equally_long() -> None:
    table = pa.table({"tokens": [[1, 2, 3], None, [4]], "labels": [[5, 6, 7], [], [8]], "n": [0, 1, 2]})
    for how, expected in (("truncate", [[5, 6], [], [8]]), ("split", [[5, 6], [7], [], [8]])):
        flow = ps.Flow("alike")
        flow.from_tables(table).feed(tokens=2, length=["tokens", "labels"], too_long=how)
        found = [row for batch in batches_of(flow) for row in batch]
        assert [row["labels"] for row in found] == expected
    flow = ps.Flow("unlike")
    flow.from_tables(pa.table({"tokens": [[1, 2, 3]], "labels": [[5]]})).feed(
        tokens=2, length=["tokens", "labels"], too_long="split"
    )
    with pytest.raises(DataError, match="3 elements in 'tokens' and 1 in 'labels'"):
        ps.run_local(flow).wait(60)


@pytest.mark.parametrize("rules", ["balanced", "quadratic"])
def test_a_share_of_equal_cost_is_a_function_of_batch_rank_and_ranks(rules: str) -> None:
    expected = undisturbed(RULES[rules])
    power = 1 if rules == "balanced" else 2
    for ranks in (2, 3):
        job = ps.run_local(flow_of(RULES[rules]), parallelism=2)
        found = read_group(job.feed(), ranks)
        job.wait(60)
        for batch, whole in zip(found, expected, strict=True):
            shares = balanced(np.array([len(row["tokens"]) ** power for row in whole]), ranks)
            assert batch == [whole[row] for share in shares for row in share]


def test_ranks_are_within_five_percent_of_each_other() -> None:
    chance = np.random.default_rng(0)
    for ranks in (4, 8):
        for _ in range(20):
            lengths = np.clip(chance.lognormal(5.5, 1.1, 512), 8, 4096).astype(np.int64)
            loads = np.array([lengths[share].sum() for share in balanced(lengths, ranks)])
            assert (loads.max() - loads.min()) / loads.mean() <= 0.05
            squares = np.minimum(lengths, 2048) ** 2
            loads = np.array([squares[share].sum() for share in balanced(squares, ranks)])
            assert (loads.max() - loads.min()) / loads.mean() <= 0.05


def kill_a_task(job: ps.Job) -> None:
    for task, counts in list(job.statistics().items())[-1:]:
        job._request(TaskLost(task, counts.attempt, "the test says so", 0.0))


@pytest.mark.parametrize("seed", seeds(16, of=400))
def test_any_rules_give_one_sequence_of_batches_whatever_reads_it_and_whatever_dies(seed: int) -> None:
    chance = random.Random(seed)
    name = list(RULES)[seed % len(RULES)]
    rules = {"rules": RULES[name], "shuffle": chance.choice([None, 37, True]), "epochs": chance.choice([1, 2, 3])}
    expected = undisturbed(**rules)
    epochs = [0]  # of each batch, by the rows that have come
    fed, each = 0, sum(map(len, expected)) // rules["epochs"]
    for batch in expected:
        fed += len(batch)
        epochs.append(min(fed // each, rules["epochs"] - 1) if rules["epochs"] > 1 else 0)
    found: list[list[Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(chance.randint(1, 3)):
            job = ps.run_local(flow_of(**rules), parallelism=chance.randint(1, 4), checkpoints=folder)
            count = min(chance.randint(0, 7), len(expected) - 1 - len(found))
            at = len(found)
            if count > 0:
                found += read_group(job.feed(), chance.randint(1, 5), at, count, close=False, epoch=epochs[at])
            job.checkpoint(60)
            if chance.random() < 0.4:
                kill_a_task(job)
                if (at := len(found)) < len(expected) - 1:
                    found += read_group(job.feed(), 1, at, 1, close=False, epoch=epochs[at])
                job.checkpoint(60)
            job.shutdown()
        job = ps.run_local(flow_of(**rules), parallelism=chance.randint(1, 4), checkpoints=folder)
        at = len(found)
        found += read_group(job.feed(), chance.randint(1, 5), at, epoch=epochs[at])
        job.wait(120)
        assert as_sets(found) == as_sets(expected), (name, rules)
        assert job.audit_feed().clean
        if rules["epochs"] == 1 and rules["shuffle"] is None:
            assert job.audit_feed().same


@pytest.mark.parametrize("rules", ["window", "balanced", "buckets"])
def test_batches_are_replayed_checked_and_compared(rules: str, tmp_path: Path) -> None:
    kept = ps.Checkpoints(tmp_path / "one", every=None, retained=9)
    found: list[list[Any]] = []
    for parallelism in (1, 3):
        job = ps.run_local(flow_of(RULES[rules]), checkpoints=kept, parallelism=parallelism)
        found += read_group(job.feed(), 1, len(found), 3, close=False)
        job.checkpoint(60)
        job.shutdown()
    job = ps.run_local(flow_of(RULES[rules]), checkpoints=tmp_path / "two", parallelism=2)
    whole = read_group(job.feed(), 2)
    job.wait(60)
    assert as_sets(whole[:6]) == as_sets(found)
    verdict = verify_order(tmp_path / "one", tmp_path / "two")
    assert verdict.same, verdict
    assert "batches by cost are equal, in order" in verdict.lines[0]
    with pytest.raises(ConfigurationError, match=f"has {len(whole)} batches of at most .* none with number 99"):
        ps.replay(flow_of(RULES[rules]), checkpoints=tmp_path / "one", step=99)
    for step in (0, 4):
        again = ps.replay(flow_of(RULES[rules]), checkpoints=tmp_path / "one", step=step)
        assert (again.rows.to_pylist(), again.verified) == (found[step], True)
        assert again.lineage.column("row").null_count == 0
        shares = [
            ps.replay(flow_of(RULES[rules]), checkpoints=tmp_path / "one", step=step, rank=rank, world_size=2)
            for rank in range(2)
        ]
        assert [row for share in shares for row in share.rows.to_pylist()] == whole[step]


def test_a_model_goes_on_with_another_number_of_ranks_and_not_in_other_batches(tmp_path: Path) -> None:
    rules = RULES["window"]
    expected = undisturbed(rules)
    kept = ps.Checkpoints(tmp_path / "state", every="50ms", retained=1)
    job = ps.run_local(flow_of(rules, keep=0), checkpoints=kept)
    reader = job.feed().reader(timeout=60)
    assert take(reader, 5) == expected[:5]
    reader.commit("m")
    reader.flush(60)
    assert [records.to_pylist() for _, records in zip(range(4), reader.iter_batches(), strict=False)] == expected[5:9]
    state = reader.state_dict()
    reader.close(0.0)
    job.shutdown()
    job = ps.run_local(flow_of(rules, keep=0), checkpoints=kept, resume_model="m", parallelism=2)
    assert read_group(job.feed().resume("m"), 3) == expected[5:]
    job.wait(60)
    other = ps.run_local(flow_of({**rules, "tokens": 65}))
    with pytest.raises(ConfigurationError, match="with batches of 64, not"):
        other.feed().reader().load_state_dict(state)
    other.shutdown()


@pytest.mark.parametrize(("wrong", "told"), [(None, "is null for a row"), (-5, "is -5 for a row")])
def test_a_row_that_cannot_be_balanced_ends_the_job(wrong: int | None, told: str) -> None:
    flow = ps.Flow("unbalanced")
    flow.from_tables(pa.table({"n": pa.array([*range(20), wrong, *range(20)], pa.int64())})).feed(8, balance="n")
    with ps.run_local(flow) as job, pytest.raises(DataError, match=told):
        job.wait(30)


def test_a_batch_that_is_larger_than_the_room_comes() -> None:
    assert [len(batch) for batch in undisturbed({"tokens": 100_000}, room=1)] == [ROWS]


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ({}, "without the size"),
        ({"batch_size": 3, "tokens": 4}, "several sizes"),
        ({"batch_size": 3, "window": 4}, "window in a feed of batches of rows"),
        ({"tokens": 3, "length": "n", "cost": "n"}, "length and cost"),
        ({"tokens": 3, "length": "none"}, "none"),
        ({"tokens": 3, "cost": "n / 2.0"}, "is decimal"),
        ({"tokens": 3, "cost": "n", "too_long": "split"}, "whose cost is no list"),
        ({"tokens": 3, "drop_last": True}, "drop_last"),
        ({"tokens": 0}, "batches of"),
        ({"tokens": 3, "bucket_by": "n"}, "0 boundaries"),
        ({"tokens": 3, "bucket_by": "n", "boundaries": [3, 3]}, "boundaries"),
        ({"tokens": 3, "bucket_by": "n", "boundaries": [3], "window": 3}, "within buckets"),
        ({"bucket_by": "n", "boundaries": [3], "batch_sizes": [3]}, "1 boundaries"),
        ({"batch_size": 3, "bucket_by": "n", "boundaries": [3]}, "one batch_size"),
        ({"tokens": 3, "balance": "none"}, "none"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_asked_for(rules: dict[str, Any], told: str) -> None:
    with pytest.raises(FlowError, match=told):
        flow_of(rules)
