"""What goes wrong in a user's first hour, and what he is told: the thing that is wrong by its name, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as ps
from penstock.engine.core.errors import PenstockError

TABLE = pa.table({"user_id": [3, 1, 2], "price": [1.5, 2.0, None], "s": ["a", "b", "c"]})


def rows() -> ps.Stream:
    return ps.Flow("mistakes").from_tables([TABLE])


def run_to_end(stream: ps.Stream) -> None:
    stream.collect("found")
    with ps.run_local(stream.flow) as job:
        job.wait(30)


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "a column in an expression": (
        lambda: rows().filter(ps.col("pirce") > 1),
        "no column 'pirce'.*did you mean 'price'",
    ),
    "a column in a key": (lambda: rows().aggregate(["userid"], n="count"), "'userid'.*did you mean 'user_id'"),
    "a column by name": (lambda: rows().project("user_idd"), "'user_idd'.*did you mean 'user_id'"),
    "a text and a number": (lambda: rows().filter(ps.col("s") > 1), "string, int8.*check the types of the columns"),
    "no condition": (lambda: rows().filter("user_id"), "user_id is int64, not a condition.*compare it"),
    "a function of Python": (lambda: rows().filter(lambda row: row > 1), "does not fit.*give an Expression or text"),
    "and": (
        lambda: rows().filter((ps.col("price") > 1) and (ps.col("user_id") > 1)),
        "is known for each row alone.*join conditions by &",
    ),
    "a folder that is not there": (lambda: rows().flow.read_parquet("nope/"), "nope does not exist.*check the path"),
    "half an expression": (lambda: rows().filter("user_id >"), "cannot read 'user_id >'.*write one SQL expression"),
    "a whole query": (lambda: rows().filter("select * from x"), "does not know 'SELECT"),
    "a name": (lambda: ps.Flow("x/y z"), "'x/y z' is no name for a flow.*use letters"),
    "a duration": (lambda: ps.Checkpoints("x", every="1 sec"), "'1 sec' is no duration.*give seconds"),
    "a mode": (lambda: rows().write_parquet("out", mode="replace"), "mode='replace'.*'overwrite'"),  # type: ignore[arg-type]
    "a type of join": (lambda: (one := rows()).hash_join(one, ["user_id"], how="outer"), "how='outer'.*'full'"),
    "a minus for descending": (lambda: rows().sort("-price"), "no column '-price'.*did you mean 'price'"),
    "no sink": (lambda: ps.run_local(rows().flow), "has no sink.*write_parquet"),
    "a function that does not return": (
        lambda: run_to_end(rows().map_batches(lambda batch: None, TABLE.schema)),
        "gave a NoneType.*did you forget to return",
    ),
    "columns that were not promised": (
        lambda: run_to_end(rows().map_batches(lambda batch: {"user_id": [1]}, TABLE.schema)),
        "gave no column 'price'.*user_id, price, s",
    ),
    "a merge join of what is not sorted": (
        lambda: run_to_end((left := rows()).merge_join(left.flow.from_tables([TABLE]), ["user_id"])),
        "is not sorted by user_id.*sort",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_with_what_to_do(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make, told = MISTAKES[mistake]
    with pytest.raises(PenstockError, match=f"(?s){told}"):
        make()


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            lambda: rows().hash_join(rows(), ["user_id"], hwo="left"),
            r"hash_join\(\) has no argument 'hwo'; did you mean 'how'",
        ),
        (lambda: ps.run_local(rows().flow, checkpoint="x"), r"no argument 'checkpoint'; did you mean 'checkpoints'"),
        (
            lambda: rows().limit(3, zzz=1),
            r"limit\(\) has no argument 'zzz'; it has at_barrier, count, name, offset, per",
        ),
    ],
)
def test_an_argument_that_there_is_not_is_told_which_was_meant(call: Callable[[], Any], told: str) -> None:
    with pytest.raises(TypeError, match=told):
        call()
