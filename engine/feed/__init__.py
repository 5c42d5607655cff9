"""The order in which training ranks read: global batches, worlds of ranks, places that can be saved, digests of
batches. Pure.

In: rows of the sink that ends a feed, requests of ranks. Out: slices for ranks, and state of the sink. ``actors.feed``
serves it to readers.
"""
