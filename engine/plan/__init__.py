"""What a planned job is: pipelines, edges, partitioning, rounds, how splits are assigned to lanes, sizes, resources.

In: values of ``core``. Out: immutable data that can be pickled. The planner makes it; exchanges, sources, tasks and
``actors`` read it.
"""
