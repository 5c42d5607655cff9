"""The compiled kernels beside their twins: the same bits, for whatever keys and numbers there are."""

from __future__ import annotations

from _ctypes import FUNCFLAG_PYTHONAPI
from decimal import Context, Decimal

import numpy as np
import pyarrow as pa
import pytest

from penstock.engine.kernels import native
from penstock.engine.kernels.accumulators import Counting, FloatSums, GroupRows
from penstock.engine.kernels.extreme import Extremes
from penstock.engine.kernels.hashing import hashes, part_numbers, part_order, parts_of
from penstock.engine.kernels.key_dictionary import HashedValues
from penstock.engine.kernels.key_dictionary import numbered as numbered_values
from penstock.engine.kernels.key_table import KeyTable
from penstock.engine.kernels.sorting import SortKey, sorted_order
from penstock.engine.kernels.string_table import StringTable
from penstock.engine.kernels.whole_sums import decimal_sums, decimal_words, narrowed, whole_sums
from penstock.engine.operators.aggregate.aggregates import Aggregate, AggregateColumns, arguments_of
from penstock.engine.plan.partitioning import MAX_PARTS

SEEDS = range(20)
COMPILED = native.kernels()
WORDS = [f"{'x' * (n % 40)}{n}" for n in range(3_000)]


def test_kernels_are_compiled() -> None:
    assert COMPILED is not None, "run make: it compiles engine/kernels/native.c"


@pytest.fixture(params=["compiled", "twins"])
def which(request, monkeypatch) -> str:
    monkeypatch.setattr(native, "_kernels", COMPILED if request.param == "compiled" else None)
    return request.param


def columns(seed: int) -> list[list[pa.Array]]:
    """Batches of key columns, some below and some above what is worth a call."""
    random = np.random.default_rng(seed)
    kinds = random.choice(["narrow", "wide", "double", "text", "bytes", "large text", "codes", "decimal"], 1 + seed % 3)
    batches = []
    for rows in random.integers(0, 4_000, 6):
        batches.append([column(kind, int(rows), random, nulls=bool(seed % 2)) for kind in kinds])
    return batches


def column(kind: str, rows: int, random: np.random.Generator, *, nulls: bool) -> pa.Array:
    mask = random.random(rows) < 0.1 if nulls else None
    few = random.integers(0, 1 + random.integers(1, 3_000), rows)
    if kind == "double":
        return pa.array(np.where(few % 7 == 0, np.nan, few * 0.5 - 3), mask=mask, from_pandas=False)
    if kind == "wide":
        return pa.array(few * 2**50 - 2**62, mask=mask)
    if kind == "decimal":
        return pa.array(few, mask=mask).cast(pa.decimal128(25, 2))
    if kind == "narrow":
        return pa.array(few, mask=mask)
    found = pa.array([WORDS[n % len(WORDS)] for n in few], pa.string(), mask=mask)
    types = {"bytes": pa.binary(), "large text": pa.large_string(), "codes": pa.dictionary(pa.int32(), pa.string())}
    return found.cast(types[kind]) if kind in types else found


def numbered(seed: int) -> list[tuple[list[int], list[int]]]:
    table = KeyTable()
    found = []
    for batch in columns(seed):
        rows = len(batch[0])
        start = min(seed % 5, rows)  # slices: offsets into buffers
        ids, new = table.number([each.slice(start) for each in batch], rows - start)
        found.append((ids.tolist(), new.tolist()))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_have_the_parts_and_the_order_of_the_twins(seed: int, monkeypatch) -> None:
    random = np.random.default_rng(seed)
    parts = int(random.choice([1, 2, 16, 128, MAX_PARTS]))
    rows = int(random.integers(native.WORTH, 20_000))
    keys = [column(kind, rows, random, nulls=bool(seed % 2)) for kind in ("wide", "double", "text")][: 1 + seed % 3]
    start = seed % 7
    found = []
    for kernels in (COMPILED, None):
        monkeypatch.setattr(native, "_kernels", kernels)
        numbers = part_numbers(hashes([key.slice(start) for key in keys]), parts)
        order, ordered = part_order(numbers[::2])
        assert (np.diff(ordered.astype(int)) >= 0).all()
        assert (numbers[::2][order] == ordered).all()
        found.append((numbers.tolist(), order.tolist(), ordered.tolist()))
    assert found[0] == found[1]
    assert len(set(found[0][0])) > 1 or parts == 1


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize(
    "type",
    [
        *(pa.int32(), pa.int64(), pa.uint32(), pa.uint64(), pa.float64(), pa.bool_()),
        *(pa.date32(), pa.date64(), pa.time32("s"), pa.timestamp("us"), pa.duration("ns")),
    ],
    ids=str,
)
def test_parts_of_one_column_are_those_of_its_hashes(type: pa.DataType, nulls: bool, monkeypatch) -> None:
    random = np.random.default_rng(1)
    for rows, start in ((native.WORTH + 9, 3), (70_001, 1)):
        words = random.integers(-(2**31), 2**31, size=2 * rows, dtype=np.int64) << random.integers(0, 33, 2 * rows)
        valid = pa.array(random.integers(0, 3, rows) > 0) if nulls else None
        bits = [None if valid is None else valid.buffers()[1], pa.py_buffer(words)]
        key = pa.Array.from_buffers(type, rows, bits).slice(start)
        for parts in (1, 16, MAX_PARTS):
            found = parts_of([key], parts)
            assert found.dtype == np.uint16
            assert found.tolist() == part_numbers(hashes([key]), parts).tolist()
            monkeypatch.setattr(native, "_kernels", None)
            assert found.tolist() == parts_of([key], parts).tolist()
            monkeypatch.setattr(native, "_kernels", COMPILED)


@pytest.mark.parametrize("seed", SEEDS)
def test_keys_have_the_numbers_of_the_twins(seed: int, monkeypatch) -> None:
    found = {}
    for kernels in (COMPILED, None):
        monkeypatch.setattr(native, "_kernels", kernels)
        found[kernels is None] = numbered(seed)
    assert found[True] == found[False]
    assert any(new for _, new in found[True])


def test_strings_differ_by_every_byte_and_by_their_length(which: str) -> None:
    """Of all lengths around the words that are read at once, also with zeros at the end."""
    strings = [b"a" * length + end for length in range(70) for end in (b"", b"\0", b"\0\0", b"b")]
    strings += [bytes([255]) * length for length in range(1, 70)]
    strings = list(dict.fromkeys(strings)) * 3
    ids, new = KeyTable().number([pa.array(strings, pa.binary())], len(strings))
    assert ids.tolist() == list(range(len(strings) // 3)) * 3
    assert len(new) == len(strings) // 3


@pytest.mark.parametrize("type", [pa.string(), pa.large_string(), pa.binary()], ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_strings_are_found_where_the_twins_find_them(type: pa.DataType, seed: int, monkeypatch) -> None:
    """Numbers are in no particular order: those of the same values must be one another's."""
    random = np.random.default_rng(seed)
    built = pa.array([WORDS[n] for n in random.integers(0, 1_500, 2_000 * (seed > 0))], type)
    keys = pa.array([WORDS[n] for n in random.integers(0, 3_000, 1_000)], pa.string())
    found = {}
    for kernels, expected in ((COMPILED, StringTable), (None, HashedValues)):
        monkeypatch.setattr(native, "_kernels", kernels)
        dictionary = numbered_values(built)[0]
        assert isinstance(dictionary, expected)
        places = dictionary.place(keys if kernels else keys.cast(type))
        found[expected] = len(dictionary), places
    (count, mine), (others, theirs) = found.values()
    assert count == others
    assert ((mine < 0) == (theirs < 0)).all()
    assert len(set(zip(mine.tolist(), theirs.tolist(), strict=True))) == len(set(theirs.tolist()))
    assert set(mine.tolist()) <= set(range(-1, count))


def odd_doubles(random: np.random.Generator, rows: int) -> pa.Array:
    """Of all sizes and signs, with NaNs of several bits, zeros of both signs, and infinities."""
    bits = random.integers(-(2**63), 2**63 - 1, rows)
    special = random.choice([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 5e-324, -5e-324], rows)
    return pa.array(np.where(random.random(rows) < 0.5, special, bits.view(np.float64)))


SORTED = {
    "doubles": odd_doubles,
    "floats": lambda random, rows: odd_doubles(random, rows).cast(pa.float32()),
    "wide": lambda random, rows: pa.array(random.integers(-(2**63), 2**63 - 1, rows)),
    "wide, many alike": lambda random, rows: pa.array(random.choice(random.integers(-(2**63), 2**63 - 1, 9), rows)),
    "narrow": lambda random, rows: pa.array(random.integers(-3, 4, rows)),
    "one": lambda random, rows: pa.array(np.full(rows, 7)),
    "nulls": lambda random, rows: pa.array(random.integers(0, 9, rows), mask=random.random(rows) < 0.5),
    "text": lambda random, rows: pa.array([WORDS[n] for n in random.integers(0, len(WORDS), rows)]),
}


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(
    "kinds", [[kind] for kind in SORTED] + [["nulls", "doubles"], ["narrow", "wide", "text"]], ids=str
)
def test_rows_are_ordered_as_by_the_twins(kinds: list[str], descending: bool, monkeypatch) -> None:
    random = np.random.default_rng(len(kinds))
    columns = [SORTED[kind](random, 3_000) for kind in kinds]
    keys = [SortKey(kind, descending) for kind in kinds]
    found = []
    for kernels in (COMPILED, None):
        monkeypatch.setattr(native, "_kernels", kernels)
        found.append(sorted_order(columns, keys).tolist())
    assert found[0] == found[1]


VALUES = {
    "int64": lambda random, rows: pa.array(random.integers(-(2**40), 2**40, rows)),
    "large int64": lambda random, rows: pa.array(random.integers(-(2**63), 2**63 - 1, rows)),
    "int32": lambda random, rows: pa.array(random.integers(-5, 5, rows).astype(np.int32)),
    "int8": lambda random, rows: pa.array(random.integers(-5, 5, rows).astype(np.int8)),
    "double": lambda random, rows: pa.array(random.normal(0, 1e10, rows)),
    "odd double": lambda random, rows: pa.array(random.choice([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-300], rows)),
    "float": lambda random, rows: pa.array(random.normal(0, 1, rows).astype(np.float32)),
    "nulls": lambda random, rows: pa.array(random.integers(0, 9, rows), mask=random.random(rows) < 0.5),
}


@pytest.mark.parametrize("groups", [1, 2, 700, 5_000])
@pytest.mark.parametrize("kind", VALUES)
def test_totals_are_bit_for_bit_those_of_the_twins(kind: str, groups: int, monkeypatch) -> None:
    found = []
    for kernels in (COMPILED, None):
        monkeypatch.setattr(native, "_kernels", kernels)
        random = np.random.default_rng(groups)
        made = VALUES[kind](random, 1)
        sums = FloatSums() if pa.types.is_floating(made.type) else whole_sums(made.type)
        totals = [Counting(), sums, Extremes("min", made.type), Extremes("max", made.type)]
        for rows in (3_000, 10, 2_000):
            ids, values = random.integers(0, groups, rows), VALUES[kind](random, rows)
            for total in totals:
                total.add(values, GroupRows(ids, groups))
        found.append([_bits(part) for total in totals for part in total.state()])
    assert found[0] == found[1]


@pytest.mark.parametrize("kernels", [COMPILED, None])
def test_sum_that_is_no_number_has_the_same_bits_whatever_made_it(kernels, monkeypatch) -> None:
    monkeypatch.setattr(native, "_kernels", kernels)
    bits = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000000, 0xFFF0000000000000], np.uint64)
    sums = FloatSums()
    sums.add(pa.array(bits.view(np.float64)), GroupRows(np.array([0, 1, 2, 2]), 3))
    found = np.frombuffer(sums.state()[0].buffers()[1], np.uint64, 3)
    assert list(found) == [np.array(np.nan).view(np.uint64)] * 3


@pytest.mark.parametrize("seed", range(12))
def test_totals_of_one_pass_are_those_of_a_pass_each(seed: int, monkeypatch) -> None:
    """Any number of sums of whole numbers, decimals and doubles, with rows that the pass cannot take in between."""
    random = np.random.default_rng(seed)
    names = random.choice(["whole", "large", "narrow", "decimal", "double"], 12)
    columns = {
        "whole": lambda rows: pa.array(random.integers(-9, 9, rows), mask=random.random(rows) < 0.1 * (rows < 700)),
        "large": lambda rows: pa.array(random.integers(-(2**63), 2**63 - 1, rows)),
        "narrow": lambda rows: pa.array(random.integers(-5, 5, rows).astype(np.int16)),
        "decimal": lambda rows: pa.array(random.integers(-(2**63), 2**63 - 1, rows)).view(pa.decimal64(18, 2)),
        "double": lambda rows: pa.array(random.normal(0, 1e10, rows)),
    }
    types = {name: pa.decimal128(15, 2) if name == "decimal" else made(1).type for name, made in columns.items()}
    schema = pa.schema([(str(n), types[name]) for n, name in enumerate(names)])
    asked = [Aggregate(f"a{n}", str(n), "mean" if n % 2 else "sum") for n in range(len(names))]
    asked.append(Aggregate("n", None, "count"))
    batches = []
    for rows in (3_000, 600, 20, 2_000):
        ids = random.integers(0, 40, rows)
        made = [columns[name](rows) for name in names]
        batches.append((ids, pa.RecordBatch.from_arrays(made, names=schema.names)))
    found = []
    for kernels in (COMPILED, None):
        monkeypatch.setattr(native, "_kernels", kernels)
        together = AggregateColumns("test", asked, arguments_of(asked, schema), "single")
        accumulators = together.accumulators()
        for ids, records in batches:
            together.add(accumulators, records, GroupRows(ids, 40))
        found.append([_bits(part) for state in together.states(accumulators) for part in state])
    assert found[0] == found[1]


@pytest.mark.parametrize("seed", range(6))
def test_states_of_whole_sums_are_merged_like_those_of_the_twins(seed: int, monkeypatch) -> None:
    random, found = np.random.default_rng(seed), []
    values = [pa.array(random.integers(-(2**63), 2**63 - 1, 2_000)) for _ in range(4)]
    ids = [random.integers(0, 30, 2_000) for _ in values]
    for kernels in (COMPILED, None):
        monkeypatch.setattr(native, "_kernels", kernels)
        merged = whole_sums(pa.int64())
        for numbers, groups in zip(values, ids, strict=True):
            part = whole_sums(pa.int64())
            part.add(numbers, GroupRows(groups, 30))
            merged.merge(part.state(), GroupRows(np.arange(30), 30))
        found.append([_bits(part) for part in merged.state()])
    totals = [sum(int(n) for v, i in zip(values, ids, strict=True) for n in v.to_numpy()[i == g]) for g in range(30)]
    assert [(high << 32) + low for high, low in zip(*found[0], strict=True)] == totals
    assert found[0] == found[1]


def whole(words: list[int]) -> int:
    """The number that these words of 64 bits are."""
    *lower, upper = words
    return sum(word % 2**64 << 64 * place for place, word in enumerate(lower)) + (upper << 64 * len(lower))


def decimals(kind: str, random: np.random.Generator, rows: int) -> pa.Array:
    """Of any digits, near both ends too, some null, behind an offset."""
    width = {"decimal64": 1, "decimal128": 2, "decimal256": 4}[kind]
    words = random.integers(-(2**63), 2**63 - 1, (rows + 3, width))
    words[random.random(rows + 3) < 0.5] >>= 1
    if width > 1:
        few = random.random(rows + 3) < 0.3
        words[few, 1:] = words[few, :1] >> 63
    if width == 4:  # what sums of decimals of 128 bits may be
        words[:, 2] >>= 20
        words[:, 3] = words[:, 2] >> 63
    type = {1: pa.decimal64(18, 2), 2: pa.decimal128(38, 2), 4: pa.decimal256(76, 2)}[width]
    valid = pa.array(random.random(rows + 3) < 0.9).buffers()[1] if random.random() < 0.5 else None
    return pa.Array.from_buffers(type, rows + 3, [valid, pa.py_buffer(np.ascontiguousarray(words))]).slice(3)


@pytest.mark.parametrize("groups", [1, 2, 700])
@pytest.mark.parametrize("seed", range(6))
def test_sums_of_decimals_are_exact_in_both(seed: int, groups: int, monkeypatch) -> None:
    """Numbers of one word alone, of two, sums of others in between: in any order, far beyond 128 bits."""
    found = []
    for kernels in (COMPILED, None):
        monkeypatch.setattr(native, "_kernels", kernels)
        random, sums = np.random.default_rng([seed, groups]), decimal_sums(pa.decimal128(38, 2))
        wanted: list[int | None] = [None] * groups
        for kind in (
            ["decimal64", "decimal64"] if seed % 3 == 0 else ["decimal64", "decimal128", "decimal256", "decimal64"]
        ):
            rows = int(random.integers(0, 2_000))
            ids, values = random.integers(0, groups, rows), decimals(kind, random, rows)
            if kind == "decimal256":
                sums.merge((values,), GroupRows(ids, groups, True))
            else:
                sums.add(values, GroupRows(ids, groups, True))
            valid = values.is_valid().to_pylist()
            for group, is_there, words in zip(ids.tolist(), valid, decimal_words(values).tolist(), strict=True):
                if is_there:
                    wanted[group] = (wanted[group] or 0) + whole(words)
        state = sums.state()[0]
        table = zip(state.is_valid().to_pylist(), decimal_words(state).tolist(), strict=True)
        found.append([whole(words) if is_there else None for is_there, words in table])
        assert found[-1] == wanted
    assert found[0] == found[1]


def _bits(column: pa.Array) -> list[object]:
    if pa.types.is_floating(column.type):
        width = {16: np.uint16, 32: np.uint32, 64: np.uint64}[column.type.bit_width]
        return column.fill_null(0).to_numpy().view(width).tolist() + column.is_null().to_pylist()
    return column.to_pylist()


@pytest.mark.parametrize("digits", [0, 1, 2**63, -(2**64), 10**38 - 1, 1 - 10**38, 10**38, -(10**38), 2**127, 2**200])
def test_sums_are_narrowed_exactly_or_not_at_all(digits: int) -> None:
    words = np.array([[digits >> 64 * n & 2**64 - 1 for n in range(4)] for digits in (5, digits, -7)], dtype=np.uint64)
    sums = pa.Array.from_buffers(pa.decimal256(76, 2), 3, [None, pa.py_buffer(words)]).slice(1)
    if abs(digits) >= 10**38:
        with pytest.raises(pa.ArrowInvalid):
            narrowed(sums, pa.decimal128(38, 2))
        return
    assert narrowed(sums, pa.decimal128(38, 2)).to_pylist() == [
        Decimal(digits).scaleb(-2, Context(prec=60)),
        Decimal("-0.07"),
    ]


def test_calls_for_few_rows_keep_the_lock_of_the_interpreter(monkeypatch) -> None:
    brief, other = native.kernels_for(native.BRIEF), native.kernels_for(native.BRIEF + 1)
    assert brief is not None
    assert brief is not other is native.kernels()
    keeps = [bool(each._functions["mixed"]._flags_ & FUNCFLAG_PYTHONAPI) for each in (brief, other)]
    assert keeps == [True, False]
    monkeypatch.setattr(native, "_kernels", None)
    assert native.kernels_for(native.BRIEF) is None


def test_library_that_lacks_a_function_is_of_another_version() -> None:
    """Two changes may have made the same version of the sources."""
    with pytest.raises(OSError, match="another version"):
        native.functions_of(native.PATH, "pages", 3, {"column_read": "pipi", "column_of_tomorrow": "p"})


def test_library_of_another_version_is_not_used(monkeypatch) -> None:
    monkeypatch.setattr(native, "VERSION", -1)
    with pytest.raises(OSError, match="another version"):
        native.Kernels(native.PATH)


def test_environment_chooses_the_twins(monkeypatch) -> None:
    monkeypatch.setenv("PENSTOCK_KERNELS", "python")
    assert native._load() is None
    monkeypatch.delenv("PENSTOCK_KERNELS")
    assert native._load() is not None


@pytest.mark.parametrize("index", [-1, 3, 2**31 - 1])
def test_codes_outside_of_a_dictionary_are_not_read(index: int) -> None:
    assert COMPILED is not None
    codes = np.array([7, 8, 9], dtype=np.int64)
    assert COMPILED.pick_codes(codes, np.array([0, index, 1], dtype=np.int32)) is None
    found = COMPILED.pick_codes(codes, np.array([2, 0], dtype=np.int32))
    assert found is not None
    assert found.tolist() == [9, 7]


@pytest.mark.parametrize("is_wide", [True, False], ids=["wide", "narrow"])
@pytest.mark.parametrize("seed", range(12))
def test_hashes_of_bytes_and_lists_are_those_of_the_twins(seed: int, is_wide: bool, monkeypatch) -> None:
    """Also as processors without AVX-512 do it, where this one has it."""
    draw = np.random.default_rng(seed)
    counts = draw.integers(0, [1, 3, 40, 400][seed % 4] + 1, 600)
    total, ends = int(counts.sum()), np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    content = draw.integers(0, 256, total, np.uint8)
    numbers: list[pa.Array] = [
        pa.array(draw.integers(0, 2**8, total, np.uint64) << np.uint64(draw.integers(0, 56))),
        *(pa.array(content.astype(kind) - kind(7)) for kind in (np.int8, np.int16, np.int32, np.int64)),
        *(pa.array(content.astype(kind)) for kind in (np.uint8, np.uint16, np.uint32, np.float16)),
        pa.array(draw.choice([0.0, -0.0, np.nan, -np.nan, np.inf, 1e-40, 1.5], total).astype(np.float32)),
        pa.array(draw.choice([0.0, -0.0, np.nan, -np.nan, np.inf, 1e-310, 1.5], total)),
        pa.array(content.astype(np.int64), pa.timestamp("us")),
        pa.array([None if each < 9 else int(each) for each in content], pa.int32()),
    ]
    columns = [pa.ListArray.from_arrays(pa.array(ends), each) for each in numbers]
    columns.append(pa.BinaryArray.from_buffers(pa.binary(), 600, [None, pa.py_buffer(ends), pa.py_buffer(content)]))
    columns.append(pa.array([bytes(content[: seed + 1].tolist() + [0] * 13)[:13]] * 600, pa.binary(13)))
    for column in columns:
        for part in (column, column.slice(5, 590), column.slice(599)):
            with monkeypatch.context() as patched:
                for each in (native._kernels, native._brief):
                    patched.setattr(each, "is_wide", each.is_wide and is_wide)
                compiled = hashes([part])
                patched.setattr(native, "_kernels", None)
                twin = hashes([part])
            assert compiled.tolist() == twin.tolist(), column.type
