"""What follows from a condition for other columns: true wherever it is, and only about those."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine.expressions.expressions import as_expression
from penstock.engine.expressions.implied import implied
from penstock.engine.expressions.kernel_calls import columns_of

VALUES = [None, 0, 1, 2, 3]
ROWS = pa.table({"a": [a for a in VALUES for _ in range(25)], "b": [b for b in VALUES for _ in range(5)] * 5,
                 "c": VALUES * 25, "t": [None if a is None else "xyz"[a % 3] for a in VALUES] * 25})  # fmt: skip
OTHERS = ROWS.select(["a", "b"]).rename_columns(["other", "further"])
"""The same rows, by other names, and without some columns."""
STANDS_FOR = {"a": pc.field("other"), "b": pc.field("further")}


def drawn(chance: random.Random, depth: int) -> pc.Expression:
    """A condition."""
    if depth:
        one, other = drawn(chance, depth - 1), drawn(chance, depth - 1)
        return chance.choice(
            [one & other, one | other, ~one, pc.if_else(one, other, pa.scalar(None, pa.bool_())), one & other & one]
        )
    column = pc.field(chance.choice("abc"))
    return chance.choice(
        [column > chance.randrange(3), column.isin([1, 2]), column.is_null(), column == pc.field(chance.choice("abc")),
         pc.scalar(chance.random() < 0.7), pc.match_like(pc.field("t"), "x%")]
    )  # fmt: skip


def truths(rows: pa.Table, condition: pc.Expression) -> list[bool | None]:
    numbered = rows.append_column("n", pa.array(range(len(rows))))
    passed = set(numbered.filter(condition)["n"].to_pylist())
    return [at in passed for at in range(len(rows))]


def test_where_a_condition_holds_what_follows_from_it_holds() -> None:
    chance, found = random.Random(1), 0
    for _ in range(400):
        condition = drawn(chance, chance.randrange(4))
        before = implied(condition, STANDS_FOR)
        if before is None:
            continue
        found += 1
        assert columns_of(before) <= {"other", "further"}
        pairs = zip(truths(ROWS, condition), truths(OTHERS, before), strict=True)
        assert all(then or not given for given, then in pairs), condition
    assert found > 150


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a > 1 and c > 1", "other > 1"),
        ("a > 1 and c > 1 and b < 2", "other > 1 and further < 2"),
        ("a > 1 or c > 1", None),
        ("(a = 1 and c = 1) or (a = 2 and c = 2)", "other = 1 or other = 2"),
        ("(a = 1 and c = 1) or c = 2", None),
        ("not (a = 1 or b = 2)", "not (other = 1 or further = 2)"),
        ("a in (1, 2) and t like 'x%'", "other in (1, 2)"),
        ("1 < 2", None),
        ("c > 1", None),
    ],
)
def test_parts_that_others_know_are_left(text: str, expected: str | None) -> None:
    found = implied(as_expression("filter", text, ROWS.schema), STANDS_FOR)
    wanted = None if expected is None else as_expression("filter", expected, OTHERS.schema)
    assert (found is None) == (wanted is None)
    assert found is None or found.equals(wanted)


def test_columns_are_replaced_by_what_is_computed_and_steps_into_structs_are_left_alone() -> None:
    found = implied((pc.field("x") > 1) & (pc.field("s", "y") > 1), {"x": pc.coalesce(pc.field("a"), pc.field("b"))})
    assert found is not None
    assert found.equals(pc.coalesce(pc.field("a"), pc.field("b")) > 1)
