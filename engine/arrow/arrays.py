"""Record batches as NumPy arrays.

Rules:

1. An array's type, and how many dimensions it has, follow from the column's type (and from what is chosen for its
   nulls, ``nulls``) alone, so that they are the same in every slice, one without rows included; but for rule 3.
2. Lists of one length are a matrix, lists of such lists have a dimension more, tensors of one shape (``tensors``) have
   theirs. The lengths of a slice without rows are those of the slice before.
3. Lists of different lengths are an array of arrays, one for each row; if lists of lists differ deeper down, they are
   refused. Tensors whose type lets them differ are always an array of arrays.
4. Columns for which a form is named (``forms``) are ``Ragged`` in every slice, whether their rows differ or not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import ConfigurationError, DataError
from .nulls import NullRule, needs_choice, rules_of
from .tensors import (
    Array,
    Ragged,
    TensorColumn,
    is_list,
    of_one_shape,
    ragged_lists,
    shapes_of,
    storage_of,
    tensors_of,
)

Values: TypeAlias = Array | Ragged
Masked: TypeAlias = tuple[Values, Values | None]
"""Values, and where they are missing, if that is wanted."""
Shapes: TypeAlias = dict[str, tuple[int, ...]]
"""Of one row of each column that has lists, as last seen."""


def to_numpy(records: pa.RecordBatch) -> dict[str, Any]:
    """The columns of one batch, of which nothing else is known."""
    return Arrays(records.schema).of(records)


def check_numeric(name: str, array: Array, otherwise: str) -> None:
    """Raise DataError for an array that cannot become a tensor. ``otherwise``: what else can be done."""
    if array.dtype.kind not in "biufc":
        differ = array.dtype == object and len(array) > 0 and isinstance(array[0], np.ndarray)
        what = "tensors have different shapes" if differ and array[0].ndim > 1 else "lists have different lengths"
        raise DataError(
            f"column {name!r} cannot become a tensor: its {what if differ else f'values are {array.dtype}'}",
            f"leave the column out (project), make it a number, or {otherwise}",
        )


def of_column(given: Any, name: str) -> Any:
    """What an argument says of a column, which may be one for all or by name; None: nothing."""
    return given.get(name) if isinstance(given, Mapping) else given


def check_named(argument: str, given: Any, names: Sequence[str]) -> None:
    """Raise ConfigurationError if such an argument names a column that is not there."""
    for name in given if isinstance(given, Mapping) else ():
        if name not in names:
            raise ConfigurationError(f"{argument}: the feed has no column {name!r}", f"its columns: {', '.join(names)}")


class Arrays:
    """Makes the arrays of one reader. ``nulls``: see there. ``shapes``: kept from slice to slice (rule 2). ``forms``:
    by column (rule 4)."""

    def __init__(
        self,
        schema: pa.Schema,
        nulls: Any = None,
        shapes: Shapes | None = None,
        forms: Mapping[str, str] | None = None,
    ) -> None:
        self._rules = rules_of(nulls, schema)
        self._tensors = {field.name: found for field in schema if (found := tensors_of(field)) is not None}
        self._forms = forms or {}
        self._shapes: Shapes = {} if shapes is None else shapes
        self.names = [*schema.names, *(f"{name}_mask" for name, rule in self._rules.items() if rule.masks)]

    @property
    def shapes(self) -> Shapes:
        """Those of the rows so far, which are to be given to whoever goes on."""
        return dict(self._shapes)

    def of(self, records: pa.RecordBatch) -> dict[str, Any]:
        """The columns as arrays, or ``Ragged``, by name. Raises DataError, which names the column."""
        found: dict[str, Any] = {}
        masks: dict[str, Any] = {}
        for name, column in zip(records.schema.names, records.columns, strict=True):
            values, mask = self._column(name, column)
            found[name] = self._formed(name, values)
            if mask is not None:
                masks[f"{name}_mask"] = self._formed(name, mask)
        return found | masks

    def _column(self, name: str, column: pa.Array) -> Masked:
        rule = self._rules.get(name) or NullRule(name)
        tensors, known = self._tensors.get(name), self._shapes.get(name)
        try:
            if tensors is None:
                values, mask = _array(column, rule, known)
            else:
                values, mask = _tensors(storage_of(column), tensors, rule, known)
        except (pa.ArrowException, ImportError, TypeError, ValueError) as error:
            raise DataError(
                f"column {name!r} of type {column.type} cannot become an array: {error}",
                'leave it out (project), or read batch_format="pyarrow"',
            ) from error
        if len(column) and (is_list(column.type) or tensors is not None):
            if not isinstance(values, Ragged):
                self._shapes[name] = values.shape[1:]
            elif name in self._forms or tensors is not None:
                self._shapes[name] = tuple(values.shapes[-1].tolist())
        return values, mask

    def _formed(self, name: str, values: Values) -> Values:
        """Rule 4, and rule 3."""
        form = self._forms.get(name)
        if form is None:
            return values.as_objects() if isinstance(values, Ragged) else values
        return replace(values if isinstance(values, Ragged) else of_one_shape(values), form=form)


def _array(column: pa.Array, rule: NullRule, known: tuple[int, ...] | None = None) -> Masked:
    """One array, and its mask. ``known``: the shape of a row, if there are none to show it."""
    kind = column.type
    if (tensors := tensors_of(pa.field("", kind))) is not None:
        return _tensors(column.storage, tensors, rule, known)
    if isinstance(kind, pa.BaseExtensionType):
        return _extension(column, rule)
    if pa.types.is_dictionary(kind):
        return _array(column.dictionary_decode(), rule, known)
    if pa.types.is_run_end_encoded(kind):
        return _array(pc.run_end_decode(column), rule, known)
    if is_list(kind):
        return _lists(column, rule, known)
    return _values(column, rule)


def _values(column: pa.Array, rule: NullRule) -> Masked:
    """A column without lists."""
    kind = column.type
    mask = _nulls(column) if rule.masks else None
    wanted = rule.becomes(kind)
    if wanted != kind:
        try:
            column = column.cast(wanted)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"column {rule.name!r} is {kind} and cannot become numbers with NaN unchanged: {error}",
                f'give nulls={{{rule.name!r}: "mask"}}, or a value',
            ) from error
    elif column.null_count and (fill := rule.fill(kind)) is not None:
        column = pc.fill_null(column, fill)
    elif column.null_count and needs_choice(kind):
        raise _null_error(rule, f"is {kind} and has {column.null_count:,} nulls, which arrays of that type do not have")
    return column.to_numpy(zero_copy_only=False), mask


def _nulls(column: pa.Array) -> Array:
    found: Array = column.is_null().to_numpy(zero_copy_only=False)
    return found


def _null_error(rule: NullRule, what: str, has_choice: bool = True) -> DataError:
    choice = ', or say what becomes of them: nulls="mask", "nan" or a value, for all or by column' if has_choice else ""
    return DataError(f"column {rule.name!r} {what}", f"fill them before the feed{choice}")


# ---------------------------------------------------------------------- lists


def _lists(column: pa.Array, rule: NullRule, known: tuple[int, ...] | None) -> Masked:
    absent = _nulls(column) if column.null_count else None
    if absent is not None and rule.does == "refuse":
        raise _null_error(rule, f"has {column.null_count:,} nulls in place of lists, which have no such value")
    present = column if absent is None else column.drop_null()
    if not len(present):
        found = _no_lists(column.type, rule, known)
    elif (width := _width(present)) is None:
        found = _ragged(present, rule)
    else:
        found = _matrix(present, width, rule, known)
    return found if absent is None else _spread(found, absent, rule)


def _width(column: pa.Array) -> int | None:
    """The length of all lists; None if there are several."""
    if pa.types.is_fixed_size_list(column.type):
        return int(column.type.list_size)
    lengths = column.value_lengths().unique()
    return int(lengths[0].as_py()) if len(lengths) == 1 else None


def _matrix(column: pa.Array, width: int, rule: NullRule, known: tuple[int, ...] | None) -> Masked:
    values, mask = _array(column.flatten(), rule, None if known is None else known[1:])
    values = _dense(values, rule)
    shape = (len(column), width, *values.shape[1:])
    return values.reshape(shape), None if mask is None else _dense(mask, rule).reshape(shape)


def _dense(values: Values, rule: NullRule) -> Array:
    """The values of lists, if they have one shape."""
    if isinstance(values, Ragged):
        raise DataError(
            f"column {rule.name!r} has lists of lists of different lengths, which are no matrix",
            'pad them before the feed, or read batch_format="pyarrow"',
        )
    return values


def _ragged(column: pa.Array, rule: NullRule) -> Masked:
    """Rule 3."""
    values, mask = _array(column.flatten(), rule)
    found = ragged_lists(column, _dense(values, rule))
    return found, None if mask is None else found.with_values(_dense(mask, rule).reshape(-1))


def _no_lists(kind: pa.DataType, rule: NullRule, known: tuple[int, ...] | None) -> Masked:
    """No list that would tell its length."""
    inner, mask = _array(pa.nulls(0, kind.value_type), rule, None if known is None else known[1:])
    inner = _dense(inner, rule)
    shape = (0, (_row_shape(kind) if known is None else known)[0], *inner.shape[1:])
    return inner.reshape(shape), None if mask is None else _dense(mask, rule).reshape(shape)


def _spread(found: Masked, absent: Array, rule: NullRule) -> Masked:
    """With rows of their own for lists that are null."""
    values, mask = found
    if isinstance(values, Ragged) or isinstance(mask, Ragged):
        raise _null_error(rule, "has nulls in place of lists beside lists of different lengths", False)
    shape = (len(absent), *values.shape[1:])
    spread: Array = np.full(shape, rule.absent(values.dtype), dtype=values.dtype)
    spread[~absent] = values
    if mask is None:
        return spread, None
    masked = np.ones(shape, dtype=bool)
    masked[~absent] = mask
    return spread, masked


def _row_shape(kind: pa.DataType) -> tuple[int, ...]:
    """The shape of a row, as far as the type tells: 0 where lists may have any length."""
    if (tensors := tensors_of(pa.field("", kind))) is not None:
        return tensors.given
    if isinstance(kind, pa.BaseExtensionType):
        return ()
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _row_shape(kind.value_type)
    if is_list(kind):
        width = kind.list_size if pa.types.is_fixed_size_list(kind) else 0
        return (width, *_row_shape(kind.value_type))
    return ()


# ---------------------------------------------------------------------- extension types


def _tensors(storage: pa.Array, tensors: TensorColumn, rule: NullRule, known: tuple[int, ...] | None) -> Masked:
    """Those of one shape with its dimensions in the order that is given."""
    if tensors.shape is None:
        return _tensors_of_several_shapes(storage, tensors, rule, known)
    shape = len(storage), *tensors.shape
    order = (0, *(place + 1 for place in tensors.order or range(len(tensors.shape))))

    def shaped(flat: Values) -> Array:
        return _dense(flat, rule).reshape(shape).transpose(order)

    values, mask = _array(storage, rule, (math.prod(tensors.shape),))
    return shaped(values), None if mask is None else shaped(mask)


def _tensors_of_several_shapes(
    storage: pa.Array, tensors: TensorColumn, rule: NullRule, known: tuple[int, ...] | None
) -> Masked:
    if storage.null_count:
        raise _null_error(
            rule, f"has {storage.null_count:,} nulls in place of tensors, which have no such value", False
        )
    values, mask = _array(storage.field("data").flatten(), rule)
    if len(storage):
        found = Ragged(_dense(values, rule), shapes_of(storage, rule.name), tensors.order)
    else:
        like = known or (0,) * tensors.rank
        found = Ragged(_dense(values, rule), np.zeros((0, len(like)), dtype=np.int64), tensors.order, like)
    return found, None if mask is None else found.with_values(_dense(mask, rule))


def _extension(column: pa.Array, rule: NullRule) -> Masked:
    """A type that says itself how it becomes an array, or that of its storage."""
    if type(column).to_numpy is pa.Array.to_numpy:
        return _array(column.storage, rule)
    if column.null_count:
        raise DataError(
            f"column {rule.name!r} is {column.type} and has {column.null_count:,} nulls, which its arrays do not have",
            "fill them before the feed",
        )
    found: Array = column.to_numpy(zero_copy_only=False)
    return found, np.zeros(found.shape, dtype=bool) if rule.masks else None
