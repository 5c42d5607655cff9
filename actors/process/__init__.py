"""The process itself: a quick start, the end, interrupts, its notice, and waiting for a job. No Ray.

It knows nothing of jobs but that one is waited for.
"""
