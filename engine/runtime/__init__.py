"""A plan that runs in one process: the task, its drivers, their operator chains, ports and checkpoints.

In: orders of a host (``orders``), elements from channels. Out: what a task listener is told: acknowledgements, states,
statistics, errors. Knows no thread of its own: a scheduler runs the drivers. ``local`` and ``actors.hosting`` use it.
"""
