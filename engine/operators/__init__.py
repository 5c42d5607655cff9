"""The operators: one noun a module, an immutable config and a separate running class each (see ``protocol``).

``keys``, ``groups``, ``sorting``, ``pieces``, ``matching``, ``held_rows`` and the ``aggregate_…`` modules are kernels
that they share; the configs are re-exported, each imported when it is first used: a process starts with those of its
plan alone.
The exchange between tasks and the copying of a stream to several consumers are not operators: the driver does both.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..kernels.aggregate_protocol import AggregateFunction
    from ..kernels.sorting import SortKey
    from .aggregate.aggregates import Aggregate
    from .aggregate.distinct import Distinct
    from .aggregate.hash_aggregate import HashAggregate
    from .aggregate.mark_distinct import MarkDistinct
    from .aggregate.stream_aggregate import StreamAggregate
    from .aggregate.window import Window
    from .aggregate.window_functions import WindowFunction
    from .join.hash_join import HashJoin
    from .join.lookup_conditions import Between, InList
    from .join.lookup_join import LookupJoin
    from .join.merge_join import MergeJoin
    from .rowwise.filter import Filter
    from .rowwise.map_batches import MapBatches
    from .rowwise.project import Project
    from .rowwise.too_long import TooLong
    from .rowwise.unnest import Unnest
    from .sequence.batches import Batches
    from .sequence.full_shuffle import FullShuffle
    from .sequence.limit import Limit
    from .sequence.mix import Mix
    from .sequence.pack import Pack
    from .sequence.pack_whole import PackWhole
    from .sequence.sample import Sample
    from .sequence.schedule import Schedule
    from .sequence.shuffle import DrawnShuffle, Shuffle
    from .sequence.sort import Sort
    from .sequence.top_n import TopN
    from .sequence.union import Union

__all__ = [
    "Aggregate",
    "AggregateFunction",
    "Batches",
    "Between",
    "Distinct",
    "DrawnShuffle",
    "Filter",
    "FullShuffle",
    "HashAggregate",
    "HashJoin",
    "InList",
    "Limit",
    "LookupJoin",
    "MapBatches",
    "MarkDistinct",
    "MergeJoin",
    "Mix",
    "Pack",
    "PackWhole",
    "Project",
    "Sample",
    "Schedule",
    "Shuffle",
    "Sort",
    "SortKey",
    "StreamAggregate",
    "TooLong",
    "TopN",
    "Union",
    "Unnest",
    "Window",
    "WindowFunction",
]

_HOMES = {
    "Aggregate": ".aggregate.aggregates",
    "AggregateFunction": "..kernels.aggregate_protocol",
    "Batches": ".sequence.batches",
    "Between": ".join.lookup_conditions",
    "Distinct": ".aggregate.distinct",
    "DrawnShuffle": ".sequence.shuffle",
    "Filter": ".rowwise.filter",
    "FullShuffle": ".sequence.full_shuffle",
    "HashAggregate": ".aggregate.hash_aggregate",
    "HashJoin": ".join.hash_join",
    "InList": ".join.lookup_conditions",
    "Limit": ".sequence.limit",
    "LookupJoin": ".join.lookup_join",
    "MapBatches": ".rowwise.map_batches",
    "MarkDistinct": ".aggregate.mark_distinct",
    "MergeJoin": ".join.merge_join",
    "Mix": ".sequence.mix",
    "Pack": ".sequence.pack",
    "PackWhole": ".sequence.pack_whole",
    "Project": ".rowwise.project",
    "Sample": ".sequence.sample",
    "Schedule": ".sequence.schedule",
    "Shuffle": ".sequence.shuffle",
    "Sort": ".sequence.sort",
    "SortKey": "..kernels.sorting",
    "StreamAggregate": ".aggregate.stream_aggregate",
    "TooLong": ".rowwise.too_long",
    "TopN": ".sequence.top_n",
    "Union": ".sequence.union",
    "Unnest": ".rowwise.unnest",
    "Window": ".aggregate.window",
    "WindowFunction": ".aggregate.window_functions",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    found = globals()[name] = getattr(importlib.import_module(home, __name__), name)
    return found
