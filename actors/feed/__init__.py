"""Feeds: how training ranks read the batches of a job, in its process or from others. No Ray."""
