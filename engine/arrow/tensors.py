"""Columns whose rows are tensors, however Arrow or Ray has written them.

Rules:

1. A tensor's values lie one behind the other in a list. Its shape is that of the column (Arrow's
   ``fixed_shape_tensor``, Ray's two types of tensors), or stands beside the list in each row (Arrow's
   ``variable_shape_tensor``, Ray's ``ArrowVariableShapedTensorType``).
2. A process that does not know such a type (Ray's where Ray Data is not imported) has its storage, and the type's name
   in the field: that counts as much.
3. A permutation says in which order the dimensions are given; values lie in the order before it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from ..core.errors import DataError

Array: TypeAlias = np.ndarray[Any, Any]

_NAME, _TEXT = b"ARROW:extension:name", b"ARROW:extension:metadata"
_RAY_FIXED = ("ray.data.arrow_tensor", "ray.data.arrow_tensor_v2")
_VARIABLE = ("arrow.variable_shape_tensor", "ray.data.arrow_variable_shaped_tensor")
_PERMUTATION = re.compile(r"permutation=\[([0-9,]+)\]")


@dataclass(frozen=True, slots=True)
class TensorColumn:
    """What the type says of the tensors in a column."""

    shape: tuple[int, ...] | None
    """As the values lie; None: each row has its own."""
    values: pa.DataType
    """Of one value."""
    order: tuple[int, ...] = ()
    """Which dimension comes first, second …; empty: as the values lie."""

    rank: int = 0
    """How many dimensions rows of several shapes have, if the type knows it."""

    @property
    def given(self) -> tuple[int, ...]:
        """The shape of a row as it is given, if the type knows it."""
        shape = self.shape or ()
        return tuple(shape[place] for place in self.order) if self.order else shape


def tensors_of(field: pa.Field) -> TensorColumn | None:
    """Whether this column has tensors."""
    kind = field.type
    if isinstance(kind, pa.FixedShapeTensorType):
        return TensorColumn(tuple(kind.shape), kind.value_type, tuple(kind.permutation or ()))
    known = isinstance(kind, pa.BaseExtensionType)
    storage = kind.storage_type if known else kind
    name = kind.extension_name if known else (field.metadata or {}).get(_NAME, b"").decode()
    if name in _VARIABLE and pa.types.is_struct(storage):
        shape = storage.field("shape").type
        rank = shape.list_size if pa.types.is_fixed_size_list(shape) else getattr(kind, "ndim", 0)
        return TensorColumn(None, storage.field("data").type.value_type, _order(field), rank)
    if name in _RAY_FIXED and (shape := _ray_shape(field)) is not None:
        return TensorColumn(shape, storage.value_type)
    return None


def _ray_shape(field: pa.Field) -> tuple[int, ...] | None:
    """What Ray writes by default; it may also be told to write a pickle, which is not read here."""
    kind = field.type
    text = kind.__arrow_ext_serialize__() if isinstance(kind, pa.ExtensionType) else (field.metadata or {}).get(_TEXT)
    try:
        found = json.loads(text or b"")
    except ValueError:
        return None
    return tuple(map(int, found)) if isinstance(found, list) else None


def _order(field: pa.Field) -> tuple[int, ...]:
    """Rule 3. pyarrow tells it of this type in its name alone."""
    if isinstance(field.type, pa.BaseExtensionType):
        told = _PERMUTATION.search(str(field.type))
        found = list(map(int, told[1].split(","))) if told else []
    else:
        text = json.loads((field.metadata or {}).get(_TEXT) or b"{}")
        found = (text.get("permutation") if isinstance(text, dict) else None) or []  # Ray tells how many there are
    return () if found == sorted(found) else tuple(found)


def may_differ(field: pa.Field) -> bool:
    """Whether rows of this column may have different shapes."""
    tensors = tensors_of(field)
    if tensors is not None:
        return tensors.shape is None
    return is_list(field.type) and not pa.types.is_fixed_size_list(field.type)


def is_list(kind: pa.DataType) -> bool:
    """Whether the values are lists, of whatever kind."""
    types = pa.types
    some = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(some or types.is_list_view(kind) or types.is_large_list_view(kind))


def storage_of(column: pa.Array) -> pa.Array:
    """The lists, or lists and shapes, that the tensors are kept in."""
    return column.storage if isinstance(column.type, pa.BaseExtensionType) else column


@dataclass(frozen=True, slots=True)
class Ragged:
    """Rows of different shapes, of equally many dimensions."""

    values: Array
    """Of all rows, flat, one behind the other."""
    shapes: Array
    """Of each row, as its values lie: (rows, dimensions), int64."""
    order: tuple[int, ...] = ()
    """See ``TensorColumn.order``."""
    like: tuple[int, ...] = ()
    """The shape of a row, if there is none."""
    form: str = ""
    """What torch is to make of them; empty: not said."""

    def __len__(self) -> int:
        return len(self.shapes)

    @property
    def ends(self) -> Array:
        """Where each row's values end."""
        found: Array = np.cumsum(self.shapes.prod(axis=1, dtype=np.int64))
        return found

    def with_values(self, values: Array) -> Ragged:
        """Others of the same shapes."""
        return replace(self, values=values)

    def rows(self, values: Any = None) -> list[Any]:
        """Each row as it is given. ``values``: of another library, if not NumPy's."""
        values, found, begin = self.values if values is None else values, [], 0
        for shape, end in zip(self.shapes.tolist(), self.ends.tolist(), strict=True):
            row = values[begin:end].reshape(shape)
            # of one dimension there is but one order
            found.append((row.permute if hasattr(row, "permute") else row.transpose)(self.order) if self.order else row)
            begin = end
        return found

    def as_objects(self) -> Array:
        """An array of arrays."""
        found = np.empty(len(self), dtype=object)
        for place, row in enumerate(self.rows()):
            found[place] = row
        return found


def shapes_of(column: pa.Array, name: str) -> Array:
    """Those of tensors of variable shape, one at least, which are checked against what they hold. Raises DataError,
    which names the column."""
    data, shapes = column.field("data"), column.field("shape")
    if shapes.null_count or data.null_count:
        raise DataError(f"column {name!r} has tensors without values or shape", "fill them before the feed")
    flat = shapes.flatten()
    ranks = _lengths(shapes)
    if flat.null_count or (ranks != ranks[0]).any():
        raise DataError(
            f"column {name!r} has tensors of different numbers of dimensions", "give them equally many before the feed"
        )
    found: Array = flat.to_numpy(zero_copy_only=False).astype(np.int64).reshape(len(column), ranks[0])
    if (found < 0).any() or (found.prod(axis=1, dtype=np.int64) != _lengths(data)).any():
        raise DataError(f"column {name!r} has a tensor whose shape is not that of its values", "write it anew")
    return found


def _lengths(lists: pa.Array) -> Array:
    if pa.types.is_fixed_size_list(lists.type):
        return np.full(len(lists), lists.type.list_size, dtype=np.int64)
    found: Array = lists.value_lengths().to_numpy(zero_copy_only=False)
    return found


def ragged_lists(column: pa.Array, values: Array) -> Ragged:
    """Lists of different lengths, of these values of all lists."""
    shapes = np.empty((len(column), values.ndim), dtype=np.int64)
    shapes[:, 0], shapes[:, 1:] = _lengths(column), values.shape[1:]
    return Ragged(values.reshape(-1), shapes)


def of_one_shape(rows: Array) -> Ragged:
    """Rows that happen to have one shape, in the form of those that have several."""
    shapes = np.full((len(rows), rows.ndim - 1), rows.shape[1:], dtype=np.int64)
    return Ragged(rows.reshape(-1), shapes, like=rows.shape[1:])
