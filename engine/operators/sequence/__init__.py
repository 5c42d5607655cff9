"""Operators about the order of a stream: sort, top-n, limit, union, regroup, shuffle, mix, pack,
global batches by cost.

In: batches with their tags. Out: the same rows, or some of them, in another order or other cuts.
"""
