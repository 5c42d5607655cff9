"""Expressions over columns: ``field``, what a flow's predicates and projections are made of, and SQL text.

In: expressions of pyarrow or text. Out: bound expressions with a type, and the columns they need. sqlglot is imported
when a text is met. Operators, the planner and flows use it.
"""
