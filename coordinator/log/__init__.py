"""The log of a job: what may be written next, what an entry that was read means, which checkpoints are kept.

In: entries and answers of a store. Out: commands to write, and the state that a log describes.
"""
