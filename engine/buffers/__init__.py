"""Rows that operators keep between batches: held, by round, sorted in runs, spilled; and the same as state of a
checkpoint.

In: batches with their order tags. Out: batches in order, state rows, and the bytes that are held. Operators and
exchanges use it.
"""
