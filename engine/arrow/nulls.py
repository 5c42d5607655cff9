"""What becomes of nulls when columns become arrays, which have none of their own. The types must not depend on it.

Rules:

1. What type an array has follows from the column's type and the user's choice, never from the rows of one slice.
2. Numbers with a point have NaN, times NaT, and objects (text, decimals, structs) None: these need no choice. A null
   in a column of whole numbers or of truth values, or in place of a list, is refused, by name, if nothing was chosen.
3. "mask": nulls become 0, and ``<column>_mask`` is True where one was, in every slice. "nan": whole numbers and truth
   values become float64, in every slice. A value takes the place of nulls.
4. A choice for all columns counts where it can: a number for numbers, True or False for truth values. One by name must
   fit the column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..core.errors import ConfigurationError
from .tensors import is_list, tensors_of

NullChoice: TypeAlias = str | bool | int | float | None
"""For all columns, or one."""


@dataclass(frozen=True, slots=True)
class NullRule:
    """What becomes of the nulls of one column."""

    name: str
    does: Literal["refuse", "mask", "nan", "fill"] = "refuse"
    value: Any = None
    """That takes the place of a null, if it "fill"s."""

    @property
    def masks(self) -> bool:
        return self.does == "mask"

    def fill(self, kind: pa.DataType) -> pa.Scalar | None:
        """What takes the place of a null of this type; None: it has one of its own, or none."""
        if self.does == "fill":
            return pa.scalar(self.value, kind)
        if self.masks and (_is_number(kind) or pa.types.is_boolean(kind)):
            return pa.scalar(0).cast(kind)
        return None

    def becomes(self, kind: pa.DataType) -> pa.DataType:
        """The type of the array's values."""
        return pa.float64() if self.does == "nan" and not _has_own(kind) else kind

    def absent(self, dtype: np.dtype[Any]) -> Any:
        """What stands in place of each value of a list that is null."""
        if self.does == "fill":
            return self.value
        own = {"m": np.timedelta64("NaT"), "M": np.datetime64("NaT"), "O": None}
        return own.get(dtype.kind, math.nan if self.does == "nan" else 0)


def rules_of(choice: Any, schema: pa.Schema) -> dict[str, NullRule]:
    """By column; of columns that are not named, none. Raises ConfigurationError for what cannot be."""
    if isinstance(choice, Mapping):
        found = {name: _named(schema, name, each) for name, each in choice.items()}
    else:
        kinds = {field.name: _leaf(field) for field in schema}
        found = {name: rule for name, kind in kinds.items() if (rule := _for_all(name, choice, kind)) is not None}
    for name in [name for name, rule in found.items() if rule.masks]:
        if f"{name}_mask" in schema.names:
            raise ConfigurationError(
                f'nulls="mask": the mask of column {name!r} would be column {name}_mask, which the feed has',
                "rename one of them before the feed (project)",
            )
    return found


def _leaf(field: pa.Field) -> pa.DataType:
    tensors = tensors_of(field)
    return leaf_of(field.type) if tensors is None else tensors.values


def leaf_of(kind: pa.DataType) -> pa.DataType:
    """The type of the values, behind lists and codes."""
    if isinstance(kind, pa.BaseExtensionType):
        return leaf_of(kind.storage_type)
    if is_list(kind) or pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return leaf_of(kind.value_type)
    return kind


def needs_choice(kind: pa.DataType) -> bool:
    """Whether arrays of this type cannot say that a value is missing."""
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _has_own(kind: pa.DataType) -> bool:
    return not needs_choice(kind)


def _for_all(name: str, choice: Any, kind: pa.DataType) -> NullRule | None:
    """Rule 4, for one of all columns."""
    if choice is None:
        return None
    if isinstance(choice, str) and choice in ("mask", "nan"):
        return NullRule(name, "mask" if choice == "mask" else "nan")
    if isinstance(choice, bool | np.bool_):
        return _filled(name, bool(choice), kind) if pa.types.is_boolean(kind) else None
    if isinstance(choice, int | float | np.number):
        return _filled(name, choice, kind) if _is_number(kind) else None
    raise ConfigurationError(
        f"nulls={choice!r}", 'give "mask", "nan", a number, True or False, or one of these, or a value, by column'
    )


def _named(schema: pa.Schema, name: Any, choice: Any) -> NullRule:
    """Rule 4, for a column that is named."""
    if schema.get_field_index(name) < 0 if isinstance(name, str) else True:
        raise ConfigurationError(f"nulls: the feed has no column {name!r}", f"its columns: {', '.join(schema.names)}")
    kind = _leaf(schema.field(name))
    if choice is None:
        return NullRule(name)
    if isinstance(choice, str) and choice == "mask":
        return NullRule(name, "mask")
    if isinstance(choice, str) and choice == "nan":
        if not (_is_number(kind) or pa.types.is_boolean(kind)):
            raise ConfigurationError(
                f'nulls: column {name!r} is {kind} and cannot be "nan"', "give a value of its type"
            )
        return NullRule(name, "nan")
    return _filled(name, choice, kind)


def _filled(name: str, value: Any, kind: pa.DataType) -> NullRule:
    """With a value, which has to be one of the type, as it stands."""
    try:
        scalar = pa.scalar(value, kind)
        pc.fill_null(pa.nulls(1, kind), scalar)
        fits = scalar.is_valid and (pa.types.is_floating(kind) or bool(scalar.as_py() == value))
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        fits = False
    if not fits:
        raise ConfigurationError(
            f"nulls: {value!r} cannot take the place of a null in column {name!r}, which is {kind}",
            f"give a value of that type, by column if need be: nulls={{{name!r}: …}}",
        )
    return NullRule(name, "fill", scalar.as_py() if _is_number(kind) else value)
