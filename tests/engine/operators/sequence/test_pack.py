"""Pack, against its definition written as a loop over tokens."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.engine.core.errors import DataError, FlowError
from penstock.engine.operators import Pack
from penstock.engine.state.memory import TaskMemory
from support.operator_harness import LANES, SIZES, rows_of, run
from support.operator_windows import windows_of

SCHEMA = pa.schema([("id", pa.int64()), ("tokens", pa.list_(pa.int32()))])
Sequences = list[list[int] | None]

sequences = st.lists(st.none() | st.lists(st.integers(1, 99), max_size=9), max_size=6)


def table(rows: Sequences, type: pa.DataType | None = None) -> pa.Table:
    tokens = pa.array(rows, pa.list_(pa.int32())).cast(type or pa.list_(pa.int32()))
    return pa.table({"id": pa.array(range(len(rows)), pa.int64()), "tokens": tokens})


def packed(rows: Sequences, config: Pack) -> list[tuple[Any, ...]]:
    """Rows of (tokens, segments, positions, documents), one token after the other."""
    line: list[tuple[int, int]] = []
    for number, tokens in enumerate(rows):
        if tokens:
            ends = [] if config.separator is None else [config.separator]
            line += [(token, number) for token in (*tokens, *ends)]
    found = []
    for start in range(0, len(line), config.length):
        part = line[start : start + config.length]
        if len(part) < config.length and config.remainder == "drop":
            break
        segments, positions = [], []
        for place, (_, document) in enumerate(part):
            goes_on = place > 0 and part[place - 1][1] == document
            segments.append(segments[-1] if goes_on else 1 + (segments[-1] if segments else 0))
            positions.append(positions[-1] + 1 if goes_on else 0)
        missing = config.length - len(part)
        found.append(
            (
                [token for token, _ in part] + [config.pad] * missing,
                segments + [0] * missing,
                positions + [0] * missing,
                [document for _, document in part] + [-1] * missing,
            )
        )
    return found


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 7),
    separator=st.none() | st.just(100),
    remainder=st.sampled_from(("pad", "drop")),
    units=st.dictionaries(st.tuples(st.integers(0, 3), st.integers(0, LANES - 1)), sequences, max_size=8),
    size=st.sampled_from(SIZES),
    restore=st.booleans(),
    output_rows=st.sampled_from((1, 1024)),
)
def test_rows_are_those_of_the_definition_whatever_the_batches_and_restores(
    length: int,
    separator: int | None,
    remainder: Any,
    units: dict[tuple[int, int], Sequences],
    size: int,
    restore: bool,
    output_rows: int,
) -> None:
    config = Pack(length, separator=separator, pad=-7, remainder=remainder, documents="documents")
    outcome = run(
        config,
        {unit: table(rows) for unit, rows in units.items()},
        schemas=[SCHEMA],
        size=size,
        restore=restore,
        output_rows=output_rows,
        memory=TaskMemory(),
    )
    everything = [tokens for unit in sorted(units) for tokens in units[unit]]
    assert rows_of(outcome.table) == packed(everything, config)


def test_a_row_tells_its_sequences_apart() -> None:
    rows = table([[11, 12, 13], [], None, [21], [31, 32, 33, 34]])
    found = run(Pack(5, separator=1, documents="of"), {(0, 0): rows})
    assert found.schema.names == ["tokens", "segment_ids", "position_ids", "of"]
    assert rows_of(found.table) == [
        ([11, 12, 13, 1, 21], [1, 1, 1, 1, 2], [0, 1, 2, 3, 0], [0, 0, 0, 0, 3]),
        ([1, 31, 32, 33, 34], [1, 2, 2, 2, 2], [0, 0, 1, 2, 3], [3, 4, 4, 4, 4]),
        ([1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0], [4, -1, -1, -1, -1]),
    ]


@pytest.mark.parametrize("size", SIZES)
def test_a_row_leaves_with_the_round_and_lane_of_its_last_token(size: int) -> None:
    units = {(0, 1): table([[1, 2, 3]]), (1, 0): table([[4], [5, 6]]), (1, 3): table([[7], None])}
    found = run(Pack(4, segments=None, positions=None), units, size=size).units
    assert {unit: [row[0] for row in rows] for unit, rows in found.items()} == {
        (1, 0): [[1, 2, 3, 4]], max(found): [[5, 6, 7, 0]],
    }  # fmt: skip


@pytest.mark.parametrize(
    "type",
    [pa.large_list(pa.int64()), pa.list_(pa.uint16()), pa.list_(pa.float32()), pa.list_(pa.float64())],
)
def test_tokens_keep_their_type(type: pa.DataType) -> None:
    found = run(Pack(2), {(0, 0): table([[1, 2, 3]], type)}, restore=True)
    assert found.schema.field("tokens").type == pa.list_(pa.field("item", type.value_type, False), 2)
    assert found.table.column("tokens").to_pylist() == [[1, 2], [3, 0]]


def test_sequences_of_one_size_are_sliced_rightly() -> None:
    rows = pa.table({"tokens": pa.array([[9, 9], [1, 2], None, [3, 4]], pa.list_(pa.int16(), 2))}).slice(1)
    found = run(Pack(3, segments=None, positions=None, documents="of"), {(0, 0): rows}, size=2)
    assert rows_of(found.table) == [([1, 2, 3], [0, 0, 2]), ([4, 0, 0], [2, -1, -1])]


def test_a_barrier_gives_the_remainder_and_counts_sequences_anew() -> None:
    config = Pack(4, segments=None, positions=None, documents="of")
    row = ([5, 6, 7, 0], [0, 0, 1, -1])
    assert windows_of(config, [table([[5, 6], [7]])] * 2, 1) == [[row], [row], []]
    assert windows_of(Pack(4, remainder="drop"), [table([[5, 6], [7]])] * 2) == [[], [], []]


def test_the_open_row_is_accounted_for() -> None:
    memory = TaskMemory()
    run(Pack(1000), {(0, 0): table([[1] * 900])}, memory=memory)
    assert memory.statistics().peak == 900 * (4 + 8)


def test_a_null_token_is_refused_with_its_sequence() -> None:
    rows = table([[1], None, [2, None, 3]])  # type: ignore[list-item]
    with pytest.raises(DataError, match="sequence 2 in column 'tokens' is null"):
        run(Pack(4), {(0, 0): rows}, size=1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Pack(0), "rows of 0 tokens"),
        (Pack(4, "nope"), "no column 'nope'"),
        (Pack(4, "id"), "column 'id' is int64"),
        (Pack(4, "words"), "elements of 'words' are string"),
        (Pack(4, pad=2**31), "pad 2147483648 is no int32"),
        (Pack(4, separator=-(2**40)), "separator"),
        (Pack(4, remainder="keep"), "remainder is 'keep'"),  # type: ignore[arg-type]
        (Pack(4, segments="tokens"), "one name"),
    ],
)
def test_pack_refuses_what_it_cannot_pack(config: Pack, message: str) -> None:
    schema = SCHEMA.append(pa.field("words", pa.list_(pa.string())))
    with pytest.raises(FlowError, match=message):
        config.output_schema([schema])
