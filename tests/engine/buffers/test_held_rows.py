"""Rows that are held in whatever form columns come in: their values and weights are those of the declared types."""

from __future__ import annotations

from decimal import Decimal
from random import Random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.arrow.compact import plain_records
from penstock.engine.buffers import stored_rows
from penstock.engine.buffers.held_rows import HeldRows
from penstock.engine.core.elements import Batch, Tag
from support.compact_columns import compacted

SCHEMA = pa.schema([("text", pa.string()), ("bytes", pa.large_binary()), ("price", pa.decimal128(15, 2))])

rows = st.tuples(
    st.none() | st.sampled_from(["", "a", "bb", "a longer text"]),
    st.none() | st.sampled_from([b"", b"x", b"yy"]),
    st.none() | st.integers(-(10**9), 10**9).map(lambda digits: Decimal(digits).scaleb(-2)),
)
batches = st.lists(st.lists(rows, max_size=12), min_size=1, max_size=6)


def records_of(found: list[tuple[object, ...]]) -> pa.RecordBatch:
    columns = list(zip(*found, strict=True)) if found else [()] * len(SCHEMA)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, type) for column, type in zip(columns, SCHEMA.types, strict=True)], schema=SCHEMA
    )


def held(parts: list[pa.RecordBatch]) -> HeldRows:
    made = HeldRows(SCHEMA)
    for number, records in enumerate(parts):
        made.add(Batch(records, Tag(0, number, 0)))
    return made


def texts(values: list[str]) -> pa.RecordBatch:
    nothing = [None] * len(values)
    return records_of(list(zip(values, nothing, nothing, strict=True)))


@settings(deadline=None, max_examples=100)
@given(batches, st.integers(0, 10**6), st.integers(0, 3))
def test_rows_held_in_any_forms_are_those_that_came(found: list[list[tuple[object, ...]]], seed: int, start: int):
    chooser, parts = Random(seed), [records_of(each) for each in found]
    mixed = held([compacted(each, chooser).slice(start) for each in parts]).peek()
    assert mixed.records.num_rows == 0 or mixed.records.validate(full=True) is None
    expected = held([each.slice(start) for each in parts]).peek()
    assert mixed.plain(SCHEMA).records.equals(expected.records)
    assert mixed.lanes.tolist() == expected.lanes.tolist()


@settings(deadline=None, max_examples=100)
@given(batches)
def test_rows_weigh_in_any_form_about_what_they_do_in_the_declared_types(found: list[list[tuple[object, ...]]]):
    parts = [records_of(each) for each in found]
    bits_of_validity = sum(each.num_rows + 32 for each in parts)  # which arrays without nulls do without
    assert abs(held([compacted(each) for each in parts]).bytes - held(parts).bytes) <= bits_of_validity


def test_few_words_of_several_dictionaries_become_one_dictionary():
    parts = [compacted(texts(["a", "b", "a"])), compacted(texts(["b", "c", "c"]))]
    column = held(parts).peek().records.column("text")
    assert pa.types.is_dictionary(column.type)
    assert column.dictionary.to_pylist() == ["a", "b", "c"]
    assert column.to_pylist() == ["a", "b", "a", "b", "c", "c"]


def test_many_words_become_text_where_rows_are_brought_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stored_rows, "MANY_WORDS", 3)
    one, other = compacted(texts(["a", "b", "a"])), compacted(texts(["b", "c", "c"]))
    assert held([one, other]).peek().records.column("text").type == pa.string()
    same = held([one.slice(0, 2), one]).peek().records.column("text")
    assert pa.types.is_dictionary(same.type)


def test_a_dictionary_is_not_held_for_fewer_rows_than_it_has_words():
    few = compacted(texts(["a", "b", "c", "a"])).slice(2)
    assert held([few]).peek().records.column("text").type == pa.string()
    assert held([few]).peek().plain(SCHEMA).records.equals(plain_records(few, SCHEMA))
