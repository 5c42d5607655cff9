"""The operators: one noun a module, an immutable config and a separate running class each (see ``protocol``).

``keys``, ``pieces``, ``matching`` and ``aggregate_functions`` are kernels that they share; the configs are re-exported.
The exchange between tasks and the copying of a stream to several consumers are not operators: the driver does both.
"""

from .aggregate_functions import AggregateFunction
from .filter import Filter
from .lookup_join import LookupJoin
from .map_batches import MapBatches
from .merge_join import MergeJoin
from .project import Project
from .stream_aggregate import Aggregate, StreamAggregate
from .unnest import Unnest

__all__ = [
    "Aggregate",
    "AggregateFunction",
    "Filter",
    "LookupJoin",
    "MapBatches",
    "MergeJoin",
    "Project",
    "StreamAggregate",
    "Unnest",
]
