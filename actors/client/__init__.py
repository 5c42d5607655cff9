"""``Job``: what a script asks of a job, wherever the job runs; what it writes for it, and what it reads of it. No Ray.

In: a plan, the place of its checkpoints, and a ``Backend`` that reaches its processes. Out: status, statistics,
checkpoints, savepoints, split sets, feeds, outputs. ``run`` and ``attach`` (the room ``job``) and ``run_local``
(``jobs``) bring a backend each.
"""
