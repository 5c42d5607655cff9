"""Whether every row was read once and is visible once: the audit of a job, by count and by content. No Ray.

In: a job's log and snapshots, splits and outputs to be read again. Out: an audit that says per source and sink what is
known.
"""
