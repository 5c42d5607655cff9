"""Who runs when: runnables, their states and what they may wait for; groups, shares and time slices.

In: runnables of drivers, and effects of other threads. Out: turns, on a pool of threads, on the caller's thread, or in
an order that a seed chooses. Knows ``core`` alone; the runtime and the hosts use it.
"""
