"""Pure dataflow of one process: flows, plans, tasks, drivers, operators, sources and sinks. No Ray, no coordinator.

Rooms, each importing only rooms named before it::

    core          identity, errors, elements, schemas; the protocols of operators and sources; checks of arguments
    alignment     which channels wait for which barrier             scheduler   who runs when
    arrow         layouts of Arrow's types                          state       memory that operators hold, and spilling
    expressions   expressions and SQL text                          kernels     hot loops over columns
    integrity     checksums, digests and counts of rows             buffers     rows that operators keep
    files         paths, durable files, buckets                     plan        what a planned job is
    exchange      channels between pipelines                        feed        the order in which ranks read
    sources, sinks, indexes, operators                              planner     from a flow to a plan
    runtime       tasks and drivers                                 flow        what a user builds
    lineage       where rows come from                              local       a plan as a task of this process
"""
