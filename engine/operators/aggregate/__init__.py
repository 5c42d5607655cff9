"""Operators that bring rows of equal keys together: hash and streaming aggregation, distinct, marks, window functions.

In: batches. Out: rows at round ends, at task barriers or at the end. They hold states of groups, which spill.
"""
