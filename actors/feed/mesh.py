"""Where a rank stands in a mesh of devices, and what it reads there: which rows of a global batch, and what of them.

Rules:

1. A mesh has dimensions, outermost first, of which each is one of three things. Ranks along ``data`` divide the rows of
   a global batch. Ranks along ``replicate`` (tensor or pipeline parallel) read the same rows. Ranks along ``sequence``
   (context parallel) read the same rows, and each its part of every sequence in them.
2. The ranks of a feed's group are numbered by that: those that read the same rows are neighbours, ``copies`` of them.
   So the feed needs to know that number alone (``RankGroup.share``), whatever the order of the dimensions.
3. Where nobody names the sequences they are all columns of lists, and the lists of a row must be of one length: others
   (boundaries in a packed row, an embedding) would be cut wherever their number happens to allow it.
4. A sequence is cut into equal parts. In a zigzag it is cut into twice as many pieces, and part *i* of *n* is the
   pieces *i* and *2n - 1 - i*: under a causal mask that is equal work ("The Llama 3 Herd of Models", 2024, 3.3.2).
5. The layout decides nothing about global batches, so it may be another one at each resume.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from ...engine.arrow.list_layouts import lists_of
from ...engine.core.errors import ConfigurationError, DataError
from ...engine.core.schemas import duplicate_of, is_list

Names = str | Iterable[str]


@dataclass(frozen=True, slots=True)
class MeshPlace:
    """A rank of a group, of which ``copies`` neighbours read the same rows; of every sequence in ``columns`` it reads
    part ``part`` of ``parts``. ``guessed``: nobody has named these columns (rule 3)."""

    rank: int = 0
    ranks: int = 1
    copies: int = 1
    part: int = 0
    parts: int = 1
    zigzag: bool = False
    columns: tuple[str, ...] = ()
    guessed: bool = False

    def layout(self) -> dict[str, Any]:
        """How batches are divided among the ranks: the same in each of them."""
        data, order = self.ranks // self.copies, "zigzag" if self.zigzag else "contiguous"
        return {"data": data, "copies": self.copies, "sequence": self.parts, "order": order}

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """That of the rows that it reads."""
        kinds = (_part_type(field.type, self) if field.name in self.columns else field.type for field in schema)
        return pa.schema([field.with_type(kind) for field, kind in zip(schema, kinds, strict=True)])

    def of(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Its part of the sequences. Raises DataError for one that cannot be divided."""
        if self.guessed:
            _check_of_one_length(records, self.columns)
        for name in self.columns:
            at = records.schema.get_field_index(name)
            column = _part(records.column(at), name, self)
            records = records.set_column(at, records.schema.field(at).with_type(column.type), column)
        return records


@dataclass(frozen=True, slots=True)
class MeshRoles:
    """What the dimensions of a mesh are (rule 1). ``columns``: the sequences; None: all columns of lists."""

    data: Names
    replicate: Names
    sequence: str | None
    zigzag: bool
    columns: Sequence[str] | None


def place_of(rank: int | None, world_size: int | None, mesh: Any, roles: MeshRoles, schema: pa.Schema) -> MeshPlace:
    """That of a rank among all, or in ``mesh``: a torch ``DeviceMesh``, or the sizes of its dimensions by name. What is
    not given is asked of torch.distributed, or its environment. ``schema``: of the feed."""
    _check_cuts(roles)
    if mesh is not None:
        return _place_in(mesh, rank, world_size, roles, _sequences(schema, roles.columns))
    if roles.replicate or roles.sequence is not None:
        raise ConfigurationError(
            "replicate= and sequence= name dimensions of a mesh, and there is none",
            'give mesh=, a DeviceMesh or sizes by name: {"dp": 4, "tp": 2}',
        )
    known = _distributed()
    if rank is None and world_size is None:
        rank, world_size = known or (0, 1)
    elif rank is None:
        rank = 0 if world_size == 1 else None
    world_size = 1 if world_size is None else world_size
    if rank is None or not 0 <= rank < world_size:
        raise ConfigurationError(f"rank {rank} of {world_size}", "ranks count from 0 to world_size - 1: give both")
    return MeshPlace(rank, world_size)


def _place_in(
    mesh: Any, rank: int | None, world_size: int | None, roles: MeshRoles, columns: tuple[str, ...]
) -> MeshPlace:
    sizes, sequence = _sizes(mesh), roles.sequence
    data, replicate = _names(roles.data), _names(roles.replicate)
    _check_names(sizes, data, replicate, sequence)
    ranks = prod(sizes.values())
    at = _coordinates(mesh, sizes, rank, world_size)
    copying = [name for name in sizes if name not in data]
    copies, part = prod(sizes[name] for name in copying), 0 if sequence is None else at[sequence]
    number = _number(at, sizes, [name for name in sizes if name in data]) * copies + _number(at, sizes, copying)
    parts = 1 if sequence is None else sizes[sequence]
    guessed = parts > 1 and roles.columns is None
    return MeshPlace(number, ranks, copies, part, parts, roles.zigzag, columns if parts > 1 else (), guessed)


def _sequences(schema: pa.Schema, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The columns that hold a sequence in each row: the lists, or those of them that are ``wanted``."""
    found = [field.name for field in schema if is_list(field.type)]
    if wanted is None:
        return tuple(found)
    if (twice := duplicate_of(wanted)) is not None:
        raise ConfigurationError(f"sequence_columns: column {twice!r} is given twice", "give each name once")
    if others := [name for name in wanted if name not in found]:
        raise ConfigurationError(
            f"sequence_columns={list(wanted)}: {', '.join(map(repr, others))} is no column of lists",
            f"name columns of lists: {', '.join(found) or 'this feed has none'}",
        )
    return tuple(wanted)


def _distributed() -> tuple[int, int] | None:
    """Rank and number of ranks as torch.distributed or JAX knows them, or as torchrun has written them down."""
    torch, jax = (sys.modules.get(name) for name in ("torch.distributed", "jax"))
    if torch is not None and torch.is_available() and torch.is_initialized():
        return torch.get_rank(), torch.get_world_size()
    if jax is not None and jax.distributed.is_initialized():
        return jax.process_index(), jax.process_count()
    try:
        return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None


def _names(given: Names) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _sizes(mesh: Any) -> dict[str, int]:
    if isinstance(mesh, Mapping):
        sizes = dict(mesh)
        if not all(isinstance(name, str) and type(size) is int and size >= 1 for name, size in sizes.items()):
            raise ConfigurationError(f"mesh={mesh!r}", 'give sizes by name, outermost first: {"dp": 4, "tp": 2}')
        return sizes
    names, shape = getattr(mesh, "mesh_dim_names", None), getattr(mesh, "shape", None)
    if not names or shape is None:
        raise ConfigurationError(
            f"mesh={mesh!r} has no dimensions with names",
            'give a DeviceMesh that was made with mesh_dim_names=, or sizes by name: {"dp": 4, "tp": 2}',
        )
    return dict(zip(names, map(int, shape), strict=True))


def _check_names(sizes: Mapping[str, int], data: Sequence[str], replicate: Sequence[str], sequence: str | None) -> None:
    given = [*data, *replicate, *([] if sequence is None else [sequence])]
    has = ", ".join(f"{name} ({size})" for name, size in sizes.items())
    if unknown := [name for name in given if name not in sizes]:
        raise ConfigurationError(
            f"the mesh has no dimension {', '.join(map(repr, unknown))}: it has {has}",
            "name in data= the dimensions whose ranks divide a batch, in replicate= those whose ranks read the same",
        )
    if len(set(given)) < len(given):
        raise ConfigurationError(f"a dimension is named twice in {given}", "a dimension does one thing")
    if left := [name for name in sizes if name not in given]:
        raise ConfigurationError(
            f"what is dimension {', '.join(map(repr, left))} of the mesh ({has})? Nothing names it",
            "name it in data= if its ranks divide a batch, in replicate= if they read the same rows, in sequence= if "
            "they read parts of the same sequences",
        )


def _check_cuts(roles: MeshRoles) -> None:
    if roles.sequence is not None or not (roles.zigzag or roles.columns is not None):
        return
    given = "zigzag=True" if roles.zigzag else "sequence_columns="
    raise ConfigurationError(
        f"{given} says how sequences are cut, and no dimension cuts them",
        'name that dimension of the mesh, sequence="cp"; or leave it out where nothing is cut',
    )


def _coordinates(mesh: Any, sizes: Mapping[str, int], rank: int | None, world_size: int | None) -> dict[str, int]:
    """Where the rank stands along each dimension."""
    ranks, known = prod(sizes.values()), _distributed()
    world_size = world_size if world_size is not None else known[1] if known else ranks
    if world_size != ranks:
        raise ConfigurationError(
            f"the mesh has {ranks} ranks, and there are {world_size}",
            "give the mesh of all ranks; name dimensions whose ranks read the same in replicate=",
        )
    if rank is None and not isinstance(mesh, Mapping):
        found = mesh.get_coordinate()
        if found is None:
            raise ConfigurationError("this rank is not in the mesh", "give the mesh of all ranks")
        return dict(zip(sizes, map(int, found), strict=True))
    rank = rank if rank is not None else known[0] if known else 0 if ranks == 1 else None
    if rank is None or not 0 <= rank < ranks:
        raise ConfigurationError(f"rank {rank} of {ranks}", "ranks count from 0 to world_size - 1: give rank=")
    return dict(zip(sizes, map(int, np.unravel_index(rank, tuple(sizes.values()))), strict=True))


def _number(at: Mapping[str, int], sizes: Mapping[str, int], names: Sequence[str]) -> int:
    """The number of a place among those along some dimensions, the last one quickest."""
    number = 0
    for name in names:
        number = number * sizes[name] + at[name]
    return number


# ---------------------------------------------------------------------- parts of sequences


def _part_type(type: pa.DataType, place: MeshPlace) -> pa.DataType:
    return pa.list_(type.value_field, type.list_size // place.parts) if pa.types.is_fixed_size_list(type) else type


def _check_of_one_length(records: pa.RecordBatch, names: Sequence[str]) -> None:
    """Rule 3. A list that is null has no length."""
    known, source = np.full(len(records), -1), np.zeros(len(records), dtype=np.int64)
    for number, name in enumerate(names):
        column = records.column(name)
        lengths = np.where(column.is_null().to_numpy(zero_copy_only=False), -1, _spans(column)[1])
        if len(odd := np.flatnonzero((lengths >= 0) & (known >= 0) & (lengths != known))):
            row = odd[0]
            other = names[source[row]]
            raise DataError(
                f"columns {other!r} and {name!r} have lists of {known[row]:,} and {lengths[row]:,} values in one row: "
                "which of them are sequences, to be cut?",
                f"name these when the reader is made, sequence_columns=[{other!r}], say; other lists come whole",
            )
        source = np.where(known < 0, number, source)
        known = np.maximum(known, lengths)


def _part(column: pa.Array, name: str, place: MeshPlace) -> pa.Array:
    kind = column.type
    starts, lengths = _spans(column)
    pieces = place.parts * (2 if place.zigzag else 1)
    if len(odd := np.flatnonzero(lengths % pieces)):
        raise DataError(
            f"column {name!r} has a sequence of {lengths[odd[0]]:,} values, which cannot be cut into {pieces} equal "
            "pieces",
            f"pad sequences, or pack them, to a multiple of {pieces}",
        )
    each = lengths // pieces
    own = (place.part, 2 * place.parts - 1 - place.part) if place.zigzag else (place.part,)
    begins = np.stack([starts + piece * each for piece in own], axis=1).ravel()
    counts = np.repeat(each, len(own))
    ends = np.cumsum(counts)
    places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - counts), counts)
    values = column.values.take(pa.array(places))
    mask = column.is_null() if column.null_count else None
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(values, type=_part_type(kind, place), mask=mask)
    return lists_of(each * len(own), values, kind, mask)


def _spans(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Where the values of each row begin in ``column.values``, and how many they are; a null has none, unless all have
    as many."""
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size
        return (column.offset + np.arange(len(column))) * size, np.full(len(column), size)
    offsets = column.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(offsets)
    if column.null_count:
        lengths = np.where(column.is_null().to_numpy(zero_copy_only=False), 0, lengths)
    return offsets[:-1], lengths
