"""SQL text as an expression over a schema: ``delay % 2 = 0 and carrier in ('AA', 'UA')``.

The text is DuckDB's dialect, parsed by sqlglot and turned into kernels of Arrow. This is the only module that knows
sqlglot, and nothing imports it before the first text is met.

Rules:

1. Names are columns, exactly as they are written; quote those that are no words: ``"my column"``. ``a.b`` is field
   ``b`` of struct ``a``.
2. Nulls follow SQL: comparison with null is null, AND, OR and NOT have three values. Where DuckDB and Arrow differ, the
   kernels of Arrow decide: NaN equals nothing, numbers with a point are float64, integers that overflow are errors.
3. ``/`` divides as float64, ``//`` and ``%`` truncate towards zero. Floats become integers by rounding half to even.
4. What is not known fails when the flow is built, with the names of what is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.parsers.duckdb import DuckDBParser

from .errors import FlowError
from .expressions import types_of
from .list_functions import is_list, list_contains, list_item
from .sql_functions import FUNCTIONS, Value, cast_to, date_part, divided, find_function, on_par, truth
from .sql_types import arrow_type


class _Dialect(DuckDB):
    """DuckDB's syntax, with every function left to us."""

    class Parser(DuckDBParser):
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parse
            for name, parse in DuckDBParser.FUNCTION_PARSERS.items()
            if name in {"CAST", "TRY_CAST", "EXTRACT"}
        }


def expression_of(kind: str, text: str, schema: pa.Schema) -> pc.Expression:
    """The expression that ``text`` means over ``schema``; raises FlowError that names the operator's ``kind``."""
    try:
        tree = sqlglot.parse_one(text, dialect=_Dialect)
    except sqlglot.errors.SqlglotError as error:
        raise FlowError(f"{kind}: cannot read {text!r}: {_plain(error)}", "write one SQL expression") from None
    return _Compiler(kind, text, schema).value(tree).expression


def _plain(error: sqlglot.errors.SqlglotError) -> str:
    details = getattr(error, "errors", None) or [{}]
    return str(details[0].get("description") or str(error).splitlines()[0])


class _Compiler:
    """Turns one tree into an expression, leaves first."""

    def __init__(self, kind: str, text: str, schema: pa.Schema) -> None:
        self._kind = kind
        self._text = text
        self._schema = schema

    def value(self, node: exp.Expr) -> Value:
        """The expression of a node, and its type."""
        try:
            made = self._made(node)
        except pa.ArrowException as error:
            raise FlowError(f"{self._kind}: SQL {self._text!r}: {error}", "correct the constant") from error
        if isinstance(made, Value):
            return made
        (type,) = types_of(self._kind, self._schema, [(node.sql(dialect=_Dialect), made)])
        return Value(made, type)

    def _made(self, node: exp.Expr) -> Value | pc.Expression:
        for types, make in _NODES:
            if isinstance(node, types):
                return make(self, node)
        raise self._unknown(f"does not know {node.sql(dialect=_Dialect)!r} ({type(node).__name__})")

    def _unknown(self, what: str) -> FlowError:
        operators = "+ - * / // % = <> < <= > >= || and or not, case, in, between, like, is, cast, extract, [position]"
        functions = ", ".join(sorted(FUNCTIONS))
        return FlowError(f"{self._kind}: SQL {self._text!r}: {what}", f"use {operators}, or a function: {functions}")

    def both(self, node: exp.Expr) -> tuple[Value, Value]:
        """The operands of a comparison: a text beside a time becomes a time."""
        one, other = self.value(node.this), self.value(node.expression)
        return on_par(self.alike(one, other), self.alike(other, one))

    def alike(self, value: Value, other: Value) -> Value:
        """``value``, if it is text and ``other`` a time, as such a time."""
        if isinstance(value.constant, str) and pa.types.is_temporal(other.type):
            return cast_to(value, other.type)
        return value

    # ------------------------------------------------------------------ nodes

    def column(self, node: exp.Column) -> pc.Expression:
        return pc.field(*[part.name for part in node.parts])

    def literal(self, node: exp.Expr) -> Value:
        if isinstance(node, exp.Boolean):
            return Value.of(bool(node.this))
        if isinstance(node, exp.Null):
            return Value.of(None)
        if node.is_string:
            return Value.of(str(node.this))
        return Value.of(int(node.this) if node.is_int else float(node.this))

    def negative(self, node: exp.Neg) -> Value | pc.Expression:
        inner = self.value(node.this)
        if isinstance(inner.constant, int | float):
            return Value.of(-inner.constant)
        return pc.negate_checked(inner.expression)

    def arithmetic(self, node: exp.Binary) -> pc.Expression:
        return _ARITHMETIC[type(node)](*on_par(self.value(node.this), self.value(node.expression)))

    def comparison(self, node: exp.Binary) -> pc.Expression:
        one, other = self.both(node)
        return _COMPARISONS[type(node)](one.expression, other.expression)

    def logic(self, node: exp.Binary) -> pc.Expression:
        parts = [truth(self.value(part)) for part in node.flatten()]
        join = pc.and_kleene if isinstance(node, exp.And) else pc.or_kleene
        return reduce(join, parts)

    def inverse(self, node: exp.Not) -> pc.Expression:
        return pc.invert(truth(self.value(node.this)))

    def test(self, node: exp.Is) -> pc.Expression:
        inner, wanted = self.value(node.this), node.expression
        if isinstance(wanted, exp.Null):
            return pc.is_null(inner.expression)
        if isinstance(wanted, exp.Boolean):
            known = pc.coalesce(truth(inner), pc.scalar(not wanted.this))
            return known if wanted.this else pc.invert(known)
        raise self._unknown(f"does not know {node.sql(dialect=_Dialect)!r}")

    def member(self, node: exp.In) -> pc.Expression:
        one = self.value(node.this)
        if node.args.get("field") is not None:
            lists = self.value(node.args["field"])
            return list_contains(lists.expression, lists.type, one.expression, one.type)
        if node.args.get("query") is not None or not node.expressions:
            raise self._unknown(f"takes values after IN, not {node.sql(dialect=_Dialect)!r}")
        others = [self.alike(self.value(each), one) for each in node.expressions]
        known = [each.constant for each in others if each.constant is not None]
        if len(known) + sum(pa.types.is_null(each.type) for each in others) == len(others) and len(known) > 1:
            among = _among(one, known)
            if among is not None:
                return among if len(known) == len(others) else pc.if_else(among, among, pc.scalar(None))
        return reduce(pc.or_kleene, [pc.equal(self.alike(one, each).expression, each.expression) for each in others])

    def between(self, node: exp.Between) -> pc.Expression:
        if node.args.get("symmetric"):
            raise self._unknown("does not know BETWEEN SYMMETRIC")
        one = self.value(node.this)
        low, high = (self.alike(self.value(node.args[bound]), one) for bound in ("low", "high"))
        above = pc.greater_equal(self.alike(one, low).expression, low.expression)
        return pc.and_kleene(above, pc.less_equal(self.alike(one, high).expression, high.expression))

    def like(self, node: exp.Like | exp.ILike) -> pc.Expression:
        one, pattern = self.value(node.this), self.value(node.expression)
        if not isinstance(pattern.constant, str):
            raise self._unknown("takes a text as the pattern of LIKE")
        found = pc.match_like(one.expression, pattern.constant, ignore_case=isinstance(node, exp.ILike))
        return pc.invert(found) if node.args.get("negate") else found

    def case(self, node: exp.Case) -> pc.Expression:
        default = node.args.get("default")
        made = self.value(default).expression if default is not None else pc.scalar(None)
        for branch in reversed(node.args["ifs"]):
            test = exp.EQ(this=node.this, expression=branch.this) if node.this is not None else branch.this
            made = self._chosen(test, branch.args["true"], made)
        return made

    def condition(self, node: exp.If) -> pc.Expression:
        other = node.args.get("false")
        return self._chosen(
            node.this, node.args["true"], self.value(other).expression if other is not None else pc.scalar(None)
        )

    def _chosen(self, test: exp.Expr, value: exp.Expr, other: pc.Expression) -> pc.Expression:
        holds = pc.coalesce(truth(self.value(test)), pc.scalar(False))
        return pc.if_else(holds, self.value(value).expression, other)

    def cast(self, node: exp.Cast) -> Value:
        if isinstance(node, exp.TryCast):
            raise self._unknown("does not know TRY_CAST")
        type = arrow_type(node.to)
        if type is None:
            raise self._unknown(f"cannot cast to {node.to.sql(dialect=_Dialect)}")
        return cast_to(self.value(node.this), type)

    def extract(self, node: exp.Extract) -> pc.Expression:
        made = date_part(str(node.name), self.value(node.expression))
        if made is None:
            raise self._unknown(f"cannot extract {node.name}")
        return made

    def concat(self, node: exp.DPipe) -> pc.Expression:
        texts = [cast_to(self.value(part), pa.string()).expression for part in (node.this, node.expression)]
        return pc.binary_join_element_wise(*texts, "")

    def item(self, node: exp.Bracket) -> pc.Expression:
        lists, positions = self.value(node.this), [self.value(each).constant for each in node.expressions]
        if not is_list(lists.type) or len(positions) != 1 or not isinstance(positions[0], int):
            raise self._unknown("takes one constant position of a list in [ ]")
        position = positions[0]  # from 0: the parser subtracts 1, from negative positions too
        return list_item(lists.expression, lists.type, position if position >= 0 else position + 1)

    def call(self, node: exp.Anonymous) -> Value | pc.Expression:
        function = find_function(node.name)
        if function is None:
            raise self._unknown(f"does not know the function {node.name}")
        arguments = [self.value(each) for each in node.expressions]
        try:
            return function(arguments)
        except (FlowError, TypeError, ValueError) as error:
            detail = error.message if isinstance(error, FlowError) else str(error)
            raise FlowError(f"{self._kind}: SQL {self._text!r}: {node.name}: {detail}", "see its arguments") from None


def _among(one: Value, known: Sequence[Any]) -> pc.Expression | None:
    """``one`` in constants, none of them null; None if they are not of its type."""
    try:
        values = pa.array(known).cast(one.type)
    except (pa.ArrowException, OverflowError):
        return None
    if pa.types.is_dictionary(one.type) or pa.types.is_null(one.type):
        return None
    return pc.if_else(pc.is_valid(one.expression), one.expression.isin(values), pc.scalar(None))


def _plain_kernel(kernel: Callable[[pc.Expression, pc.Expression], pc.Expression]) -> Callable[[Value, Value], Any]:
    return lambda one, other: kernel(one.expression, other.expression)


_ARITHMETIC: dict[type, Callable[[Value, Value], Any]] = {
    exp.Add: _plain_kernel(pc.add_checked),
    exp.Sub: _plain_kernel(pc.subtract_checked),
    exp.Mul: _plain_kernel(pc.multiply_checked),
    exp.Div: divided,
    exp.IntDiv: _plain_kernel(pc.divide_checked),
    exp.Mod: _plain_kernel(pc.remainder),
    exp.Pow: lambda one, other: pc.power(cast_to(one, pa.float64()).expression, other.expression),
}
_COMPARISONS: dict[type, Callable[[pc.Expression, pc.Expression], Any]] = {
    exp.EQ: pc.equal,
    exp.NEQ: pc.not_equal,
    exp.LT: pc.less,
    exp.LTE: pc.less_equal,
    exp.GT: pc.greater,
    exp.GTE: pc.greater_equal,
}
_NODES: tuple[tuple[tuple[type, ...], Callable[[_Compiler, Any], Value | pc.Expression]], ...] = (
    ((exp.Paren,), lambda compiler, node: compiler.value(node.this)),
    ((exp.Column,), _Compiler.column),
    ((exp.Literal, exp.Boolean, exp.Null), _Compiler.literal),
    ((exp.Neg,), _Compiler.negative),
    (tuple(_ARITHMETIC), _Compiler.arithmetic),
    (tuple(_COMPARISONS), _Compiler.comparison),
    ((exp.And, exp.Or), _Compiler.logic),
    ((exp.Not,), _Compiler.inverse),
    ((exp.Is,), _Compiler.test),
    ((exp.In,), _Compiler.member),
    ((exp.Between,), _Compiler.between),
    ((exp.Like, exp.ILike), _Compiler.like),
    ((exp.Case,), _Compiler.case),
    ((exp.If,), _Compiler.condition),
    ((exp.Cast, exp.TryCast), _Compiler.cast),
    ((exp.Extract,), _Compiler.extract),
    ((exp.DPipe,), _Compiler.concat),
    ((exp.Bracket,), _Compiler.item),
    ((exp.Anonymous,), _Compiler.call),
)
