"""Hot loops over columns: hashes, keys as codes, tables of groups, sums, orders, and numbers drawn by a counter.

In: Arrow arrays. Out: arrays and numbers, the same bits on every machine. No operator, no state that outlives a call
but the tables that callers own. Operators, exchanges, buffers and the feed use it.
"""
