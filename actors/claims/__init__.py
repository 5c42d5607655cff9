"""What a job claims, and what it is held to from then on: its checkpoint folder, its start, its inputs, its outputs. No
Ray.

In: a flow, a checkpoint folder, a user's permissions (``take_over``, ``include_new``, ``allow_changes``). Out: a
beginning, or a refusal that names what changed. Both runners and the command line use it.
"""
