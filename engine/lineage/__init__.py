"""Where rows come from: origins that travel with rows, and the operators that carry them through.

In: a plan to be traced. Out: the same plan whose rows name their splits and places. Only ``replay`` uses it.
"""
