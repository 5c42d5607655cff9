"""From a flow to a plan: the graph of operators, placement, pruning of columns, stages, pipelines, rounds that are
kept, bounds of memory, and ``explain``.

In: a flow's graph. Out: ``plan``. It knows operators by their configs; flows, the runners and ``explain`` use it.
"""
