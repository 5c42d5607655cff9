"""``PlanTask``: a plan as one task of this process that lives on: split sets in, windows of rows out.

In: a flow, then split sets. Out: rows. Knows the planner and the runtime, and neither coordinator nor checkpoints.
"""
