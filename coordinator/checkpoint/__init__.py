"""The life of one checkpoint: when it starts, which roots are triggered, who has acknowledged, when it is stored,
complete, or given up.

In: events of tasks and of the log. Out: barrier orders, manifests, discards. ``job`` asks it and tells it of failures.
"""
