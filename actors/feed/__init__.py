"""Feeds: how training ranks read the batches of a job, in its process or from others. No Ray.

In: the sequencer of ``engine.feed``, requests of ranks over a link or a stream. Out: readers and loaders for training
loops, records of models, the audit of a feed. Both runners use it.
"""
