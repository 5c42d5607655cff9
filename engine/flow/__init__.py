"""What a user builds: flows and streams, their operators as methods, indexes, frames of outer systems.

In: calls of a user's script. Out: an immutable graph for the planner. The root of the package hands it out.
"""
