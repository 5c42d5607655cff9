"""Sources: ordered lists of splits, and the reader that turns them into batches.

In: files, tables, or what a caller feeds. Out: batches with their tags, ends of rounds, cursors. The runtime drives the
reader; flows and the planner know the configs.
"""
