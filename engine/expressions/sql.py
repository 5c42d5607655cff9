"""SQL text as an expression over a schema: ``delay % 2 = 0 and carrier in ('AA', 'UA')``.

The text is DuckDB's dialect, parsed by sqlglot and turned into kernels of Arrow. This is the only module that knows
sqlglot, and nothing imports it before the first text is met.

Rules:

1. Names are columns, exactly as they are written; quote those that are no words: ``"my column"``. ``a.b`` is field
   ``b`` of struct ``a``.
2. Nulls follow SQL: comparison with null is null, AND, OR and NOT have three values. Where DuckDB and Arrow differ, the
   kernels of Arrow decide: NaN equals nothing, integers that overflow are errors.
3. A number with a point is an exact decimal, one with an exponent a float64. Precision and scale of what is computed
   with decimals follow one rule (``sql_decimals``).
4. ``/`` divides as float64, unless a decimal stands at it; ``//`` and ``%`` truncate towards zero. Floats become
   integers by rounding half to even, decimals half away from zero.
5. What is computed from numbers alone is computed when the flow is built.
6. A branch of a CASE is computed for the rows that reach it, and fails for no others (``guarded_case``).
7. Every scalar function of ``pyarrow.compute`` can be called by its name, with its options by theirs:
   ``utf8_center(s, width := 9)``. What is not known fails when the flow is built, with names that are near.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache, reduce
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.parsers.duckdb import DuckDBParser

from ..core.errors import DataError, FlowError
from . import sql_values as values
from .evaluator import Evaluator, fields_named, types_of
from .guarded_case import guarded
from .json_functions import extracted
from .list_functions import is_list, list_contains, list_item
from .sql_arguments import plain_text
from .sql_decimals import DIGITS, TooWideError
from .sql_functions import MAY_FAIL, OF_TEXT, REFUSED, arrow_function, find_function, list_value, no_function
from .sql_time_functions import date_part, interval, moved
from .sql_types import arrow_type
from .sql_values import Value, alike, as_item, cast_to, comparable, exact, literals, on_par, truth
from .try_cast import tried

_LEAST_INT64 = -(2**63)


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
    """The expression that ``text`` means over ``schema``; raises FlowError that names the operator's ``kind``.

    A text is compiled once for the columns that it names: a flow asks again for each schema that the operator gets.
    """
    try:
        tree, names = _parsed(text)
    except sqlglot.errors.SqlglotError as error:
        raise FlowError(f"{kind}: cannot read {text!r}: {_plain(error)}", "write one SQL expression") from None
    needed = fields_named(names, schema)
    if needed is not None:
        with suppress(FlowError):
            return _compiled(text, needed)
    return _Compiler(kind, text, schema).value(tree).expression


@lru_cache(maxsize=512)
def _parsed(text: str) -> tuple[exp.Expr, frozenset[str]]:
    """The tree, and the columns in it."""
    tree = sqlglot.parse_one(text, dialect=_Dialect)
    return tree, frozenset(column.parts[0].name for column in tree.find_all(exp.Column))


@lru_cache(maxsize=512)
def _compiled(text: str, schema: pa.Schema) -> pc.Expression:
    return _Compiler("", text, schema).value(_parsed(text)[0]).expression


def _plain(error: sqlglot.errors.SqlglotError) -> str:
    details = getattr(error, "errors", None) or [{}]
    return str(details[0].get("description") or str(error).splitlines()[0])


class _Compiler:
    """Turns one tree into an expression, leaves first."""

    def __init__(self, kind: str, text: str, schema: pa.Schema) -> None:
        self._kind = kind
        self._text = text
        self._schema = schema
        #: a part that may fail for some value was met
        self._may_fail = False

    def value(self, node: exp.Expr) -> Value:
        """The expression of a node, and its type."""
        try:
            made = self._made(node)
        except pa.ArrowException as error:
            raise FlowError(f"{self._kind}: SQL {self._text!r}: {error}", "correct the constant") from error
        except TooWideError as error:
            message = f"{self._kind}: SQL {self._text!r}: {node.sql(dialect=_Dialect)}: {error}"
            raise FlowError(message, "cast it to decimal(38, n), or to double") from error
        if isinstance(made, Value):
            return made
        (type,) = types_of(self._kind, self._schema, [(node.sql(dialect=_Dialect), made)])
        if pa.types.is_decimal(type) and type.precision == DIGITS:
            self._may_fail = True
        return Value(made, type)

    def _made(self, node: exp.Expr) -> Value | pc.Expression:
        for types, make in _NODES:
            if isinstance(node, types):
                return make(self, node)
        raise self._unknown(f"does not know {node.sql(dialect=_Dialect)!r} ({type(node).__name__})")

    def _unknown(self, what: str) -> FlowError:
        return FlowError(f"{self._kind}: SQL {self._text!r}: {what}", f"use {_SYNTAX}, or a function (docs/sql.md)")

    def both(self, node: exp.Expr) -> tuple[Value, Value]:
        """The operands of a comparison: a text beside a time becomes a time."""
        one, other = self.value(node.this), self.value(node.expression)
        return on_par(self.timed(one, other), self.timed(other, one))

    def timed(self, value: Value, other: Value) -> Value:
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
        if node.is_int:
            return Value.of(int(node.this))
        return Value.of(float(node.this) if "e" in node.this.lower() else Decimal(node.this))

    def negative(self, node: exp.Neg) -> Value | pc.Expression:
        inner = self.value(node.this)
        if inner.constant == -_LEAST_INT64:  # which is no int64 itself
            return Value.of(_LEAST_INT64)
        if isinstance(inner.constant, Decimal):
            return Value.typed(inner.constant.copy_negate(), inner.type)
        if isinstance(inner.constant, int | float):
            return Value.of(-inner.constant)
        self._may_fail = self._may_fail or pa.types.is_integer(inner.type)
        return pc.negate_checked(exact(inner).expression if pa.types.is_decimal(inner.type) else inner.expression)

    def arithmetic(self, node: exp.Binary) -> Value | pc.Expression:
        one, other = self.value(node.this), self.value(node.expression)
        if isinstance(node, exp.Add | exp.Sub):
            try:
                with_time = moved(one, other, 1 if isinstance(node, exp.Add) else -1)
            except ValueError as error:
                raise self._unknown(str(error)) from None
            if with_time is not None:
                self._may_fail = True
                return with_time
        floating = pa.types.is_floating(one.type) or pa.types.is_floating(other.type)
        decimal = pa.types.is_decimal(one.type) or pa.types.is_decimal(other.type)
        if isinstance(node, exp.IntDiv | exp.Mod) or not (floating or (decimal and not isinstance(node, exp.Div))):
            self._may_fail = True
        return self.made_of(_ARITHMETIC[type(node)], one, other)

    def bits(self, node: exp.Binary) -> pc.Expression:
        sides = on_par(self.value(node.this), self.value(node.expression))
        return _BITS[type(node)](*(each.expression for each in sides))

    def interval(self, node: exp.Interval) -> Value:
        number = Value.of(1) if node.this is None else self.value(node.this)
        if isinstance(number.constant, str) and number.constant.lstrip("+-").isdigit():
            number = Value.of(int(number.constant))
        try:
            return interval(number, node.text("unit"))
        except ValueError as error:
            raise self._unknown(str(error)) from None

    def distinction(self, node: exp.Binary) -> pc.Expression:
        one, other = (side.expression for side in self.both(node))
        differs = pc.coalesce(pc.not_equal(one, other), pc.xor(pc.is_null(one), pc.is_null(other)))
        return differs if isinstance(node, exp.NullSafeNEQ) else pc.invert(differs)

    def made_list(self, node: exp.Array) -> Any:
        try:
            return list_value([self.value(each) for each in node.expressions])
        except ValueError as error:
            raise self._unknown(str(error)) from None

    def struct(self, node: exp.Expr) -> pc.Expression:
        if not node.expressions or not all(isinstance(each, exp.PropertyEQ) for each in node.expressions):
            raise self._unknown("takes values with names: struct_pack(a := x, b := y)")
        values = [self.value(each.expression).expression for each in node.expressions]
        return pc.make_struct(*values, field_names=[each.name for each in node.expressions])

    def json(self, node: exp.JSONExtract | exp.JSONExtractScalar) -> Value:
        steps = [each for each in node.expression.expressions if not isinstance(each, exp.JSONPathRoot)]
        if not all(isinstance(each, exp.JSONPathKey | exp.JSONPathSubscript) for each in steps):
            raise self._unknown(f"does not know the path of {node.sql(dialect=_Dialect)!r}")
        path = tuple(int(each.this) if isinstance(each, exp.JSONPathSubscript) else str(each.this) for each in steps)
        self._may_fail = True
        return extracted(self.value(node.this), path, as_text=isinstance(node, exp.JSONExtractScalar))

    def made_of(self, make: Callable[..., Any], *given: Value) -> Value | pc.Expression:
        """What ``make`` makes of the given values; rule 5."""
        if not all(isinstance(each.constant, int | Decimal) and each.type != pa.bool_() for each in given):
            found: Value | pc.Expression = make(*given)
            return found
        row = {f"_{n}": pa.array([each.constant], each.type) for n, each in enumerate(literals(given))}
        places = [Value(pc.field(name), column.type) for name, column in row.items()]
        made = make(*places)
        expression = made.expression if isinstance(made, Value) else made
        try:
            (result,) = Evaluator([("constant", expression)]).evaluate(pa.record_batch(row))
        except DataError as error:
            message = f"{self._kind}: SQL {self._text!r}: {error.__cause__}"
            raise FlowError(message, "correct the constant") from error
        return Value.typed(result[0].as_py(), result.type)

    def comparison(self, node: exp.Binary) -> pc.Expression:
        if isinstance(node.this, exp.Tuple) or isinstance(node.expression, exp.Tuple):
            return self._tuples(node)
        one, other = self.both(node)
        return _COMPARISONS[type(node)](one.expression, other.expression)

    def _tuples(self, node: exp.Binary) -> pc.Expression:
        """Equality of several values at once."""
        sides = (node.this, node.expression)
        if not isinstance(node, exp.EQ | exp.NEQ) or not all(isinstance(each, exp.Tuple) for each in sides):
            raise self._unknown("compares (a, b) with (c, d) by = and <>")
        pairs = list(zip(*(each.expressions for each in sides), strict=False))
        if len({len(each.expressions) for each in sides}) > 1:
            raise self._unknown(f"compares as many values with as many: {node.sql(dialect=_Dialect)}")
        equal = reduce(pc.and_kleene, [self.comparison(exp.EQ(this=one, expression=other)) for one, other in pairs])
        return equal if isinstance(node, exp.EQ) else pc.invert(equal)

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
            one = as_item(one, lists.type.value_type) if is_list(lists.type) else one
            return list_contains(lists.expression, lists.type, one.expression, one.type)
        if node.args.get("query") is not None or not node.expressions:
            raise self._unknown(f"takes values after IN, not {node.sql(dialect=_Dialect)!r}")
        others = [self.timed(self.value(each), one) for each in node.expressions]
        known = [each.constant for each in others if each.constant is not None]
        if len(known) + sum(pa.types.is_null(each.type) for each in others) == len(others) and len(known) > 1:
            among = _among(one, others)
            if among is not None:
                return among if len(known) == len(others) else pc.if_else(among, among, pc.scalar(None))
        pairs = [on_par(self.timed(one, each), each) for each in others]
        return reduce(pc.or_kleene, [pc.equal(mine.expression, each.expression) for mine, each in pairs])

    def between(self, node: exp.Between) -> pc.Expression:
        if node.args.get("symmetric"):
            raise self._unknown("does not know BETWEEN SYMMETRIC")
        one = self.value(node.this)
        parts = []
        for bound, kernel in (("low", pc.greater_equal), ("high", pc.less_equal)):
            limit = self.timed(self.value(node.args[bound]), one)
            mine, limit = on_par(self.timed(one, limit), limit)
            parts.append(kernel(mine.expression, limit.expression))
        return pc.and_kleene(*parts)

    def like(self, node: exp.Like | exp.ILike) -> pc.Expression:
        one, pattern = plain_text(self.value(node.this)), self.value(node.expression)
        if not isinstance(pattern.constant, str):
            raise self._unknown("takes a text as the pattern of LIKE")
        literally = pattern.constant.replace("\\", "\\\\")  # Arrow's escape, which SQL has not
        found = pc.match_like(one.expression, literally, ignore_case=isinstance(node, exp.ILike))
        return pc.invert(found) if node.args.get("negate") else found

    def case(self, node: exp.Case) -> pc.Expression:
        given = [
            exp.EQ(this=node.this, expression=branch.this) if node.this is not None else branch.this
            for branch in node.args["ifs"]
        ]
        return self.chosen(given, [branch.args["true"] for branch in node.args["ifs"]], node.args.get("default"))

    def condition(self, node: exp.If) -> pc.Expression:
        return self.chosen([node.this], [node.args["true"]], node.args.get("false"))

    def chosen(self, tests: list[exp.Expr], results: list[exp.Expr], default: exp.Expr | None) -> Value | pc.Expression:
        """The result of the first test that holds."""
        before, self._may_fail = self._may_fail, False
        made = alike([*map(self.value, results), Value.of(None) if default is None else self.value(default)])
        conditions = [truth(self.value(test)) for test in tests]
        *firsts, last = (value.expression for value in made)
        chosen = last
        for condition, first in zip(reversed(conditions), reversed(firsts), strict=True):
            chosen = pc.if_else(pc.coalesce(condition, pc.scalar(False)), first, chosen)
        may_fail, self._may_fail = self._may_fail, self._may_fail or before
        nodes = [*tests, *results, *([] if default is None else [default])]
        names = sorted({column.parts[0].name for node in nodes for column in node.find_all(exp.Column)})
        if not may_fail or not names:
            return chosen
        (type,) = types_of(self._kind, self._schema, [("case", chosen)])
        columns = [(name, self._schema.field(name).type) for name in names]
        texts = [node.sql(dialect=_Dialect, identify=True) for node in nodes]
        return Value(guarded(f"{len(tests)}: {texts}", columns, conditions, [*firsts, last], type), type)

    def cast(self, node: exp.Cast) -> Value | pc.Expression:
        type = arrow_type(node.to)
        if type is None:
            raise self._unknown(f"cannot cast to {node.to.sql(dialect=_Dialect)}")
        given = self.value(node.this)
        given = given.meant or given
        if isinstance(node, exp.TryCast):
            return tried(given, type)
        self._may_fail = self._may_fail or not pa.types.is_string(type)
        if pa.types.is_decimal(type):
            return self.made_of(lambda value: cast_to(value, type), given)
        return cast_to(given, type)

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
        if position == -1:  # there is no element 0; the column is still one that the text needs
            nothing = pc.scalar(pa.scalar(None, lists.type.value_type))
            return pc.if_else(pc.is_null(lists.expression), nothing, nothing)
        return list_item(lists.expression, lists.type, position if position >= 0 else position + 1)

    def call(self, node: exp.Anonymous) -> Value | pc.Expression:
        name = str(node.name)
        if name.lower() == "struct_pack":
            return self.struct(node)
        function, given = find_function(name), node.expressions
        if (
            name.lower() == "position"
            and len(given) == 1
            and isinstance(given[0], exp.In)
            and given[0].args.get("field")
        ):
            function, given = find_function("strpos"), [given[0].args["field"], given[0].this]
        kernel = arrow_function(name) if function is None else None
        if (function is None and kernel is None) or name.lower() in REFUSED:
            raise no_function(f"{self._kind}: SQL {self._text!r}", name)
        self._may_fail = self._may_fail or kernel is not None or name.lower() in MAY_FAIL
        options = {each.name: each.expression for each in given if isinstance(each, exp.PropertyEQ)}
        arguments = [self.value(each) for each in given if not isinstance(each, exp.PropertyEQ)]
        if name.lower() in OF_TEXT:
            arguments = list(map(plain_text, arguments))
        try:
            if function is not None and not options:
                return function(arguments)
            if kernel is None:
                raise ValueError(f"takes no options by name: {', '.join(options)}")
            constants = {option: self.value(each).constant for option, each in options.items()}
            return kernel(*(each.expression for each in arguments), **constants)
        except (FlowError, TypeError, ValueError) as error:
            detail = error.message if isinstance(error, FlowError) else str(error)
            raise FlowError(f"{self._kind}: SQL {self._text!r}: {node.name}: {detail}", "see its arguments") from None


def _among(one: Value, others: Sequence[Value]) -> pc.Expression | None:
    """``one`` in constants and nulls; None if the constants are not of its type, or equal ones have several hashes, as
    the zeros among floats have."""
    if pa.types.is_dictionary(one.type) or pa.types.is_null(one.type) or pa.types.is_floating(one.type):
        return None
    if any(
        isinstance(each.constant, bool) != pa.types.is_boolean(one.type) for each in others if each.constant is not None
    ):
        return None
    if not comparable([one, *others]):
        return None
    one, *others = alike([one, *others])
    try:
        among = pa.array([each.constant for each in others if each.constant is not None]).cast(one.type)
    except (pa.ArrowException, OverflowError):
        return None
    return pc.if_else(pc.is_valid(one.expression), one.expression.isin(among), pc.scalar(None))


_ARITHMETIC: dict[type, Callable[[Value, Value], Any]] = {
    exp.Add: values.plus,
    exp.Sub: values.minus,
    exp.Mul: values.times,
    exp.Div: values.divided,
    exp.IntDiv: values.divided_whole,
    exp.Mod: values.remainder,
    exp.Pow: values.power,
}
_BITS: dict[type, Callable[..., pc.Expression]] = {
    exp.BitwiseAnd: pc.bit_wise_and,
    exp.BitwiseOr: pc.bit_wise_or,
    exp.BitwiseLeftShift: pc.shift_left_checked,
    exp.BitwiseRightShift: pc.shift_right_checked,
}
_SYNTAX = (
    "+ - * / // % & | ~ << >> = <> < <= > >= || -> ->>, and or not, case, in, between, like, is [not] distinct from, "
    "cast, try_cast, extract, interval, [position], [list], {'a': struct}"
)
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
    (tuple(_BITS), _Compiler.bits),
    ((exp.BitwiseNot,), lambda compiler, node: pc.bit_wise_not(compiler.value(node.this).expression)),
    ((exp.NullSafeEQ, exp.NullSafeNEQ), _Compiler.distinction),
    ((exp.Interval,), _Compiler.interval),
    ((exp.Array,), _Compiler.made_list),
    ((exp.Struct,), _Compiler.struct),
    ((exp.JSONExtract, exp.JSONExtractScalar), _Compiler.json),
    ((exp.DPipe,), _Compiler.concat),
    ((exp.Bracket,), _Compiler.item),
    ((exp.Anonymous,), _Compiler.call),
)
