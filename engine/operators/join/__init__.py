"""Operators that put rows of two sides together: merge join, hash join, lookups in an index.

In: two ports, or rows and an index. Out: batches in the order of the left side. ``join_shape`` says what all joins have
in common: columns, kinds, keys.
"""
