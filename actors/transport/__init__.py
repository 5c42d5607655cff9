"""How frames and grants travel between processes: ``protocol`` has the promise, ``streams`` keeps it. No Ray.

In: frames of channels. Out: the same frames at the other end, in order, checked, or a link that says it is broken.
Hosts and the servers of feeds use it.
"""
