"""Layouts of Arrow's types: views, runs, dictionaries of dictionaries, nested promises and lists of one length become
types that all kernels can handle; rows in pieces become one batch, or few.

In: batches as they were read. Out: batches whose types :mod:`.plain_types` declares. Knows ``core`` alone; sources,
operators and sinks use it.
"""

from .lazy_pandas import look_without_pandas

look_without_pandas()
