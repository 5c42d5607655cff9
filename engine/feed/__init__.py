"""The order in which training ranks read: global batches, groups of ranks, what each has read,
digests of batches. Pure.

In: rows of the sink that ends a feed, requests of ranks. Out: slices for ranks, and state of the sink. ``actors.feed``
serves it to readers.
"""
