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

import os

GIVE_BACK_MILLISECONDS = 500
"""How long Arrow's memory that is free stays with the process: mimalloc's 10 are less than many a batch takes, so the
next one has it cleared again (40 % of all pages that queries touched)."""


def use_small_pages() -> None:
    """Have Arrow's memory in small pages that are kept for a while; what the user has said stays. Read when pyarrow is
    loaded.

    mimalloc, from which pyarrow has it, asks the kernel for pages of 2 MiB, gives them back between batches, and gets
    them cleared again: that took a sixth of the processor time of queries. A process that is given a few hundred of
    these clears 600 MiB before it has read its first 20.
    """
    os.environ.setdefault("MIMALLOC_ALLOW_THP", "0")
    os.environ.setdefault("MIMALLOC_PURGE_DELAY", str(GIVE_BACK_MILLISECONDS))


use_small_pages()
