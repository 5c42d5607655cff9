"""Every type of Arrow from a source through every operator, a checkpoint and a restore to sinks and feeds: the same
values in the documented type, or an error when the flow is built or planned. ``SLOW``: the product, one type at a time.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import penstock as ps
from penstock.engine.arrow.plain_types import plain_array, plain_type
from penstock.engine.core.errors import FlowError, PenstockError
from support.arrow_types import COLUMNS, KEYED, PAYLOAD, ROWS, SPLITS, shown, tables

PACE = 300.0
PATIENCE = 60
GIVES_VALUES = ("first", "last", "stream aggregate", "collect list")
"""Operators that give the values of a dictionary column, not its codes."""


def documented(name: str, operator: str) -> pa.DataType:
    """The type that a column has behind an operator."""
    plain = plain_type(COLUMNS[name].type)
    if operator in GIVES_VALUES and pa.types.is_dictionary(plain):
        plain = plain.value_type
    return pa.list_(plain) if operator == "collect list" else plain


def given(name: str) -> list[str]:
    """What stands in the rows of a split."""
    return shown(plain_array(COLUMNS[name]))


def flow_of(columns: dict[str, pa.Array], operator: str, rate: float = 0.0) -> ps.Flow:
    flow = ps.Flow("types", lanes=2)
    made = {**PAYLOAD, **KEYED}[operator]
    made(flow, flow.from_tables(tables(columns), name="rows", rate=rate), columns).collect("out")
    return flow


def interrupted(flow: ps.Flow, folder: Path, parallelism: int = 2) -> None:
    often = ps.Checkpoints(folder, every="10ms", retention="always")
    with ps.run_local(flow, parallelism=parallelism, checkpoints=often) as job:
        job.wait_until(lambda status: status.checkpoints_completed >= 2, PATIENCE)


def carried(names: list[str], operator: str, folder: Path) -> None:
    """The columns go through the operator and a restart in the middle, and come out as they went in."""
    columns = {name: COLUMNS[name] for name in names}
    interrupted(flow_of(columns, operator, PACE), folder)
    job = ps.run_local(flow_of(columns, operator), parallelism=2, checkpoints=folder).wait(PATIENCE)
    assert job.status().restored_from is not None
    table = job.result("out")
    assert table.num_rows >= 30
    keys = table.column("k").to_pylist()
    for name in names:
        assert table.schema.field(name).type == documented(name, operator), name
        found, wanted = table.column(name), given(name)
        if operator == "collect list":
            assert found.combine_chunks().value_lengths().to_pylist() == [2] * len(keys), name
            assert shown(found.combine_chunks().flatten()) == [
                wanted[key % ROWS + more] for key in keys for more in (0, 1)
            ]
            continue
        shift = 1 if operator == "last" else 0
        assert shown(found) == [wanted[(key + shift) % ROWS] for key in keys], name


@pytest.mark.parametrize("operator", PAYLOAD)
def test_columns_of_all_types_pass_through_an_operator_and_a_restart(operator: str, tmp_path: Path) -> None:
    carried(list(COLUMNS), operator, tmp_path)


LOOKED_AT = (
    "decimal32",
    "halffloat",
    "string_view",
    "runs of string",
    "dictionary of list",
    "deep",
    "uuid",
    "sparse union",
)
"""Those of which operators that look at values are tried in every run; ``slow``: all."""


def is_clear(error: PenstockError) -> None:
    """The refusal names the column, and what to do."""
    assert "'v'" in error.message
    assert error.remedy


def looked_at(name: str, operator: str) -> None:
    """The operator takes the column, and ends, or refuses it when the flow is built, by name."""
    columns = {"v": COLUMNS[name]}
    try:
        flow = flow_of(columns, operator)
    except FlowError as error:
        is_clear(error)
        return
    table = ps.run_local(flow, parallelism=2).wait(PATIENCE).result("out")
    finds_nothing = name == "null" and operator == "join on it"  # nulls are equal to nothing
    assert bool(table.num_rows) is not finds_nothing
    if operator in ("group by it", "distinct by it"):
        found, wanted = shown(table.column("v")), given(name)
        assert {each.replace("-0.0", "0.0") for each in found} == {each.replace("-0.0", "0.0") for each in wanted}
        assert len(found) == len(set(found))


def goes_on(name: str, operator: str, folder: Path) -> None:
    """The operator's state, with keys of the type in it, goes through a restart: the rows are those of a whole run."""
    columns = {"v": COLUMNS[name]}
    try:
        whole = ps.run_local(flow_of(columns, operator), parallelism=2).wait(PATIENCE).result("out")
    except FlowError:  # looked_at tests what it says
        return
    interrupted(flow_of(columns, operator, PACE), folder)
    job = ps.run_local(flow_of(columns, operator), parallelism=2, checkpoints=folder).wait(PATIENCE)
    assert job.status().restored_from is not None
    found = job.result("out")
    assert found.schema == whole.schema
    for column in whole.schema.names:
        assert shown(found.column(column)) == shown(whole.column(column)), column


@pytest.mark.parametrize("operator", KEYED)
def test_operators_that_look_at_values_keep_them_through_a_restart(operator: str, tmp_path: Path) -> None:
    for number, name in enumerate(("string_view", "decimal32", "dictionary by int8")):
        goes_on(name, operator, tmp_path / str(number))


@pytest.mark.large
@pytest.mark.parametrize("operator", KEYED)
@pytest.mark.parametrize("name", COLUMNS)
def test_all_types_are_kept_through_a_restart(name: str, operator: str, tmp_path: Path) -> None:
    goes_on(name, operator, tmp_path)


@pytest.mark.parametrize("operator", KEYED)
def test_operators_take_a_type_or_refuse_it_when_the_flow_is_built(operator: str) -> None:
    for name in LOOKED_AT:
        looked_at(name, operator)


@pytest.mark.large
@pytest.mark.parametrize("operator", KEYED)
@pytest.mark.parametrize("name", COLUMNS)
def test_all_types_are_taken_or_refused(name: str, operator: str) -> None:
    looked_at(name, operator)


@pytest.mark.large
@pytest.mark.parametrize("operator", PAYLOAD)
@pytest.mark.parametrize("name", COLUMNS)
def test_each_type_alone_passes_through_an_operator_and_a_restart(name: str, operator: str, tmp_path: Path) -> None:
    carried([name], operator, tmp_path)


def test_a_feed_of_all_types_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    def flow() -> ps.Flow:
        flow = ps.Flow("fed")
        flow.from_tables(tables(COLUMNS)).feed(16, room=64)
        return flow

    found: list[pa.RecordBatch] = []
    with ps.run_local(flow(), checkpoints=tmp_path) as job:
        reader = job.feed().reader(timeout=PATIENCE)
        found.append(next(iter(reader)))
        reader.commit("model")
        reader.flush(PATIENCE)
        reader.close(0.0)
    with ps.run_local(flow(), checkpoints=tmp_path, resume_model="model") as job:
        with job.feed().resume("model").reader(timeout=PATIENCE) as reader:
            found += list(reader)
        job.wait(PATIENCE)
    table = pa.Table.from_batches(found)
    for name in COLUMNS:
        assert table.schema.field(name).type == plain_type(COLUMNS[name].type), name
        assert shown(table.column(name)) == given(name) * SPLITS, name


@pytest.mark.parametrize("name", COLUMNS)
def test_a_parquet_sink_keeps_the_values_or_refuses_the_column(name: str, tmp_path: Path) -> None:
    flow = ps.Flow("stored")
    try:
        flow.from_tables(pa.table({"v": COLUMNS[name]})).write_parquet(tmp_path / "out")
        job = ps.run_local(flow, audit="content")
    except PenstockError as error:
        is_clear(error)
        return
    audit = job.wait(PATIENCE).audit()
    assert [sink.grade for sink in audit.sinks] == ["proven"]
    assert ds.dataset(tmp_path / "out").count_rows() == ROWS
