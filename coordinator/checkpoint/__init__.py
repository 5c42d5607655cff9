"""The life of one checkpoint: which request starts it, which roots are triggered, who has acknowledged, when it is
stored and committed by the sinks, or aborted.

In: events of tasks and of the log. Out: barrier orders, manifests, commit orders, discards. ``job`` drives it and is
told of failures. ``requests`` says when, ``checkpoints`` starts, orders barriers and takes answers, ``pending`` knows
who takes part and who has answered, ``finalizer`` makes the manifest and has the sinks commit.
"""
