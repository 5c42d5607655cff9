"""The life of a job: deployment, failover, poison, windows, takeover of another coordinator's job, status.

In: events. Out: deployments, cancellations, the job's end. ``machine`` hands each event to the part that it is for.
"""
