"""What follows from a condition for other columns than it is about: asked of these early, it leaves out rows that the
condition would drop in any case.

Rules:

1. Where the condition is true, what is found is true. It may be true for more: of a conjunction the parts remain that
   can be asked, of a disjunction what can be asked of each of its parts.
2. Columns are replaced by what stands for them, and nothing else changes: what has an answer for every row still has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from .tree import Call, ColumnPath, NotPlainError, Tree, serialized, tree_of


def implied(condition: pc.Expression, columns: Mapping[str, pc.Expression]) -> pc.Expression | None:
    """What must hold of ``columns``, by what stands for them, where ``condition`` holds; None: nothing is known."""
    try:
        return _rebuilt(tree_of(serialized(condition)), columns).implied
    except (NotPlainError, pa.ArrowException):
        return None


@dataclass(frozen=True, slots=True)
class _Rebuilt:
    """A part of the condition. ``whole``: as it is, if something stands for all of its columns; ``implied``: what
    follows from it; ``is_constant``: it has no columns."""

    whole: pc.Expression | None = None
    implied: pc.Expression | None = None
    is_constant: bool = False


def _rebuilt(tree: Tree, columns: Mapping[str, pc.Expression]) -> _Rebuilt:
    if isinstance(tree, ColumnPath):
        found = columns.get(tree.path[0]) if len(tree.path) == 1 else None
        return _Rebuilt(found, found)
    if not isinstance(tree, Call):
        return _Rebuilt(pc.scalar(tree), is_constant=True)
    given = [_rebuilt(each, columns) for each in tree.parts]
    whole = None
    wholes = [each.whole for each in given if each.whole is not None]
    if len(wholes) == len(given):
        whole = pc.Expression._call(tree.name, wholes, tree.function_options[0])
    if all(each.is_constant for each in given):
        return _Rebuilt(whole, is_constant=True)
    parts = [each.implied for each in given if each.implied is not None]
    if whole is None and parts and _is_known_by(tree.name, len(parts), len(given)):
        return _Rebuilt(None, pc.Expression._call(tree.name, parts, None) if len(parts) > 1 else parts[0])
    return _Rebuilt(whole, whole)


def _is_known_by(name: str, known: int, given: int) -> bool:
    """Whether something follows from a call by what follows from so many of its parts."""
    return name == "and_kleene" or (name == "or_kleene" and known == given)
