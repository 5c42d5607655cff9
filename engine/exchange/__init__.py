"""Channels between pipelines: the edge with its credits, the partition that divides rows, the gate that merges them by
tag or by arrival, and channels as state.

In: elements of an operator chain. Out: elements for the next, in the same order at any parallelism. Drivers and tasks
use it; transports of ``actors`` carry its elements between processes.
"""
