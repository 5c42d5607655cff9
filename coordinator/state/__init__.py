"""What a running coordinator knows, shared by the parts that decide: the context, the records of tasks, and which split
sets are released.

In: changes by ``checkpoint`` and ``job``. Out: answers to their questions; no orders of its own.
"""
