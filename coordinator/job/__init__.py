"""The life of a job: takeover of the log, deployment and restarts, task migration, split assignment, poison, status.

In: events. Out: deployments, cancellations, the job's end. ``machine`` hands each event to the part that it is for.
"""
