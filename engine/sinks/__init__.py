"""Sinks: what ends a pipeline and makes its rows visible in two phases, and whose an output folder is.

In: batches with their tags. Out: committables, files that appear at the commit, counts of rows by lane. The sink of a
feed is in ``feed``.
"""
