"""Operators that treat each row by itself: filter, project, unnest, and a user's function over batches.

In and out: batches that keep their tags; no state.
"""
