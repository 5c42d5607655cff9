"""A rank of a mesh reads what its place says: rows by its data dimensions, sequences by its sequence dimension."""

from __future__ import annotations

import itertools
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as ps
from penstock.actors.feed.mesh import MeshPlace, MeshRoles, place_of
from penstock.engine.core.errors import ConfigurationError, DataError

SCHEMA = pa.schema({"row": pa.int64(), "tokens": pa.list_(pa.int32()), "labels": pa.list_(pa.int32(), 8)})


def place(rank: int | None, mesh: Any, data: Any = "dp", size: int | None = None, **roles: Any) -> MeshPlace:
    made = MeshRoles(
        data, roles.get("replicate", ()), roles.get("sequence"), roles.get("zigzag", False), roles.get("columns")
    )
    return place_of(rank, size, mesh, made, SCHEMA)


def rows() -> pa.Table:
    lengths = [8 * (row % 5) for row in range(50)]
    tokens = [None if row % 11 == 7 else list(range(row, row + length)) for row, length in enumerate(lengths)]
    labels = [list(range(row, row + 8)) for row in range(50)]
    return pa.table({"row": range(50), "tokens": tokens, "labels": labels}, SCHEMA)


def flow() -> ps.Flow:
    made = ps.Flow("mesh", lanes=2)
    made.from_tables([rows()]).shuffle(20, seed=1).feed(7, keep=100)
    return made


@pytest.fixture
def job(tmp_path: Path) -> Any:
    with ps.run_local(flow(), checkpoints=ps.Checkpoints(tmp_path, every="50ms")) as running:
        yield running


@pytest.fixture(scope="module")
def whole() -> list[pa.RecordBatch]:
    """The global batches."""
    with ps.run_local(flow()) as job, job.feed().reader(0, 1, timeout=60) as reader:
        return list(reader)


def read(readers: list[Any], steps: int | None = None) -> list[list[pa.RecordBatch]]:
    """By rank: the slices of so many steps."""
    found: list[list[pa.RecordBatch]] = [[] for _ in readers]

    def one(number: int) -> None:
        found[number] += itertools.islice(readers[number].iter_batches(), steps)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(readers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return found


def test_ranks_that_read_the_same_are_neighbours_whatever_the_order_of_the_dimensions() -> None:
    for names in itertools.permutations(["dp", "tp", "cp"]):
        mesh = dict(zip(names, (2, 3, 4), strict=True))
        places = [place(rank, mesh, replicate="tp", sequence="cp") for rank in range(24)]
        assert sorted(each.rank for each in places) == list(range(24))
        assert {each.copies for each in places} == {mesh["tp"] * mesh["cp"]}
        at = [dict(zip(names, np.unravel_index(rank, (2, 3, 4)), strict=True)) for rank in range(24)]
        for (one, here), (other, there) in itertools.combinations(zip(places, at, strict=True), 2):
            same = here["dp"] == there["dp"]
            assert same == (one.rank // one.copies == other.rank // other.copies)
        assert [each.part for each in places] == [each["cp"] for each in at]


def test_each_part_of_a_mesh_gets_its_rows_and_its_pieces_of_sequences(job: Any, whole: list[pa.RecordBatch]) -> None:
    mesh = {"pp": 2, "dp": 3, "cp": 2}
    roles: dict[str, Any] = {"mesh": mesh, "replicate": "pp", "sequence": "cp", "zigzag": True}
    roles["sequence_columns"] = ["labels", "tokens"]
    feed = job.feed()
    readers = [feed.reader(rank, 12, timeout=60, **roles) for rank in range(12)]
    slices = read(readers)
    for reader in readers:
        reader.close()
    for step, batch in enumerate(whole):
        for pp, cp in itertools.product(range(2), range(2)):
            ranks = [int(np.ravel_multi_index((pp, dp, cp), (2, 3, 2))) for dp in range(3)]
            got = [row for rank in ranks for row in slices[rank][step].to_pylist()]
            wanted = [pieces(row, cp, 2) for row in batch.to_pylist()]
            assert got == wanted


def pieces(row: dict[str, Any], part: int, parts: int) -> dict[str, Any]:
    def cut(values: Any) -> Any:
        if values is None:
            return None
        each = len(values) // (2 * parts)
        return [value for piece in (part, 2 * parts - 1 - part) for value in values[piece * each : (piece + 1) * each]]

    return {"row": row["row"], "tokens": cut(row["tokens"]), "labels": cut(row["labels"])}


def test_copies_of_a_balanced_feed_read_the_same(tmp_path: Path) -> None:
    made = ps.Flow("balanced", lanes=2)
    made.from_tables([rows()]).feed(10, balance="row * row")
    with ps.run_local(made) as job:
        roles: dict[str, Any] = {"mesh": {"tp": 2, "dp": 2}, "replicate": "tp", "timeout": 60}
        readers = [job.feed().reader(rank, 4, **roles) for rank in range(4)]
        slices = read(readers)
        for reader in readers:
            reader.close()
    with ps.run_local(made) as job:
        halves = read([job.feed().reader(rank, 2, timeout=60) for rank in range(2)])
    assert slices == [halves[0], halves[1], halves[0], halves[1]]


def test_a_part_of_a_sequence_is_its_piece_of_slices_too() -> None:
    chance = random.Random(3)
    for _ in range(200):
        parts = chance.choice([1, 2, 4])
        kind = chance.choice([pa.list_(pa.int64()), pa.large_list(pa.int64()), pa.list_(pa.int64(), parts * 2)])
        fixed = parts * 2 if pa.types.is_fixed_size_list(kind) else None
        made = [
            None
            if chance.random() < 0.2
            else [chance.randrange(99) for _ in range(fixed or parts * chance.randrange(4))]
            for _ in range(chance.randrange(9))
        ]
        column = pa.array(made, kind)
        records = pa.record_batch({"x": column}).slice(min(len(made), chance.randrange(3)), chance.randrange(9))
        got = [MeshPlace(part=part, parts=parts, columns=("x",)).of(records).to_pydict()["x"] for part in range(parts)]
        for row, whole in enumerate(records.to_pydict()["x"]):
            own = [each[row] for each in got]
            assert own == [None] * parts if whole is None else [value for each in own for value in each] == whole


def test_arrays_have_the_lengths_of_the_parts(job: Any) -> None:
    readers = [
        job.feed().reader(rank, 2, mesh={"cp": 2, "dp": 1}, sequence="cp", sequence_columns=["labels"], timeout=60)
        for rank in range(2)
    ]

    def first(reader: Any) -> Any:
        return next(reader.iter_batches(batch_format="numpy"))

    found: list[Any] = [None, None]

    def take(rank: int) -> None:
        found[rank] = first(readers[rank])

    threads = [threading.Thread(target=take, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [each["labels"].shape for each in found] == [(7, 4), (7, 4)]
    assert (found[0]["labels"] + 4 == found[1]["labels"]).all()
    assert [len(each) for each in found[0]["tokens"]] == [len(each) for each in found[1]["tokens"]], "not named"


def test_the_layout_may_be_another_one_when_a_run_goes_on(job: Any, whole: list[pa.RecordBatch]) -> None:
    """Also without a new reader: ranks go, and others come."""
    feed = job.feed()
    readers = [feed.reader(rank, 4, mesh={"dp": 2, "tp": 2}, replicate="tp", timeout=60) for rank in range(4)]
    before = read(readers, 3)
    assert before[0] == before[1]
    state = readers[2].state_dict()
    assert state["mesh"] == {"data": 2, "copies": 2, "sequence": 1, "order": "contiguous"}
    for rank, reader in enumerate(readers[:3]):
        reader.rejoin(rank, 4)
    readers[3].close(0)
    new = feed.reader(3, 4, timeout=60)
    new.load_state_dict(state)
    after = read([*readers[:3], new])
    assert readers[0].state_dict()["mesh"]["data"] == 4
    for reader in (*readers[:3], new):
        reader.close()
    seen = [row for step in zip(*before, strict=True) for each in step[::2] for row in each.to_pydict()["row"]]
    seen += [row for step in zip(*after, strict=True) for each in step for row in each.to_pydict()["row"]]
    assert seen == [row for batch in whole for row in batch.to_pydict()["row"]]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mesh": {"dp": 2, "tp": 2}}, "what is dimension 'tp' of the mesh"),
        ({"mesh": {"dp": 2, "tp": 2}, "replicate": ["tp", "pp"]}, "no dimension 'pp': it has dp"),
        ({"mesh": {"dp": 2, "tp": 2}, "replicate": "tp", "sequence": "tp"}, "named twice"),
        ({"mesh": {"dp": 3, "tp": 2}, "replicate": "tp"}, "the mesh has 6 ranks, and there are 4"),
        ({"mesh": {"dp": 4, "cp": 1}, "sequence": "cp", "sequence_columns": ["row"]}, "'row' is no column of lists"),
        (
            {"mesh": {"dp": 2, "cp": 2}, "sequence": "cp", "sequence_columns": ["tokens", "tokens"]},
            "sequence_columns: column 'tokens' is given twice",
        ),
        ({"mesh": {"dp": 2, "cp": 2}, "replicate": "cp", "zigzag": True}, "zigzag=True says how sequences are cut"),
        ({"mesh": {"dp": 4}, "sequence_columns": ["tokens"]}, "sequence_columns= says how sequences are cut"),
        ({"zigzag": True}, "and no dimension cuts them"),
        ({"mesh": {"dp": 0}}, "sizes by name"),
        ({"mesh": 4}, "no dimensions with names"),
        ({"replicate": "tp"}, "there is none"),
        ({"mesh": {"dp": 4}, "rank": 4}, "rank 4 of 4"),
        ({"rank": None}, "rank None of 4"),
    ],
)
def test_what_a_mesh_does_not_say_is_refused(job: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        job.feed().reader(**{"rank": 0, "world_size": 4, **given})


def test_sequences_that_cannot_be_cut_are_an_error_that_names_the_column() -> None:
    records = pa.record_batch({"tokens": [[1, 2, 3, 4], [1, 2, 3]]})
    with pytest.raises(
        DataError,
        match=r"'tokens' has a sequence of 3 values, which cannot be cut into 4 equal pieces[\s\S]*multiple of 4",
    ):
        MeshPlace(part=0, parts=2, zigzag=True, columns=("tokens",)).of(records)


@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_(pa.int32(), 4)])
def test_lists_that_nobody_named_are_cut_only_if_those_of_a_row_are_of_one_length(kind: pa.DataType) -> None:
    """The boundaries of a packed row must not be divided among ranks because their number is even."""
    boundaries, tokens = [[0, 4, 8, 12], [0, 1, 2, 12]], list(range(12))
    found = {"id": [1, 2], "tokens": [None, tokens], "labels": [tokens] * 2, "cu": pa.array(boundaries, kind)}
    records = pa.record_batch(found)

    def own(records: pa.RecordBatch, columns: Any = None) -> dict[str, Any]:
        roles = MeshRoles((), (), "cp", True, columns)
        cut: dict[str, Any] = place_of(0, 2, {"cp": 2}, roles, records.schema).of(records).to_pydict()
        return cut

    asked = r"'labels' and 'cu' have lists of 12 and 4 values in one row[\s\S]*sequence_columns=\['labels'\]"
    with pytest.raises(DataError, match=asked):
        own(records)
    own_part = [0, 1, 2, 9, 10, 11]
    wanted = {"id": [1, 2], "tokens": [None, own_part], "labels": [own_part] * 2}
    assert own(records, ["tokens", "labels"]) == {**wanted, "cu": boundaries}
    assert own(records.drop_columns(["cu"])) == wanted


def test_a_reader_says_of_a_sequence_that_cannot_be_cut_how_it_can(job: Any) -> None:
    roles: dict[str, Any] = {"mesh": {"cp": 3}, "data": (), "sequence": "cp", "timeout": 60}
    roles["sequence_columns"] = ["labels"]
    readers = [job.feed().reader(rank, 3, **roles) for rank in range(3)]
    threads = [threading.Thread(target=readers[rank]._join) for rank in (1, 2)]
    for thread in threads:
        thread.start()
    with pytest.raises(DataError, match=r"batch 0 at rank 0 of 3: [\s\S]*remedy: pad sequences, or pack them"):
        next(iter(readers[0]))
    for reader in readers:
        reader.close(0)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_model_is_bound_though_its_rank_goes_on_in_another_group_at_once(job: Any, order: tuple[int, int]) -> None:
    feed = job.feed()
    readers = [feed.reader(rank, 2, timeout=60) for rank in range(2)]
    for step in (3, 5):
        read(readers, step - readers[0].step)
        readers[0].commit(f"model {step}")
        for rank in order:
            readers[rank].rejoin(rank, 2)
    read(readers, 1)
    readers[0].flush(60)
    assert [feed.resume(f"model {step}").start for step in (3, 5)] == [3, 5]
    for reader in readers:
        reader.close(0)


def test_rank_and_size_come_from_the_environment_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (place(None, None).rank, place(None, None).ranks) == (0, 1)
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert (place(None, None).rank, place(None, None).ranks) == (5, 6)
    assert place(None, {"dp": 3, "tp": 2}, replicate="tp") == MeshPlace(5, 6, 2)
    assert (place(1, None, size=2).rank, place(1, None, size=2).ranks) == (1, 2), "what is given holds"
