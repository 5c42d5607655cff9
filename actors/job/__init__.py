"""Jobs on Ray: ``run``, the handle of a job, the actors of its coordinator and of its tasks, and how they start and
depart.

In: a flow and settings. Out: a ``Job``. The only room besides ``cluster`` and ``spark`` that knows ray.
"""
