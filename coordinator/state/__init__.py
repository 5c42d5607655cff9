"""What a running coordinator knows, shared by the parts that decide: context, records of tasks, commits, split sets,
the ledger of a checkpoint, its story.

In: changes by ``checkpoint`` and ``job``. Out: answers to their questions; no orders of its own.
"""
