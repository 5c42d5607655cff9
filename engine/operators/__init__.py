"""The operators: one noun a module, an immutable config and a separate running class each (see ``protocol``).

``keys``, ``groups``, ``sorting``, ``pieces``, ``matching``, ``held_rows`` and the ``aggregate_…`` modules are kernels
that they share; the configs are re-exported.
The exchange between tasks and the copying of a stream to several consumers are not operators: the driver does both.
"""

from .aggregate_protocol import AggregateFunction
from .aggregates import Aggregate
from .distinct import Distinct
from .filter import Filter
from .hash_aggregate import HashAggregate
from .hash_join import HashJoin
from .limit import Limit
from .lookup_conditions import Between, InList
from .lookup_join import LookupJoin
from .map_batches import MapBatches
from .mark_distinct import MarkDistinct
from .merge_join import MergeJoin
from .mix import Mix
from .pack import Pack
from .project import Project
from .shuffle import Shuffle
from .sort import Sort
from .sorting import SortKey
from .stream_aggregate import StreamAggregate
from .top_n import TopN
from .union import Union
from .unnest import Unnest
from .window import Window
from .window_functions import WindowFunction

__all__ = [
    "Aggregate",
    "AggregateFunction",
    "Between",
    "Distinct",
    "Filter",
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
    "Project",
    "Shuffle",
    "Sort",
    "SortKey",
    "StreamAggregate",
    "TopN",
    "Union",
    "Unnest",
    "Window",
    "WindowFunction",
]
