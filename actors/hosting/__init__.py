"""The threads around the two cores: the hosts of tasks and of the coordinator, their files, who is alive, logs,
measures. No Ray.

In: messages through a mailbox. Out: calls to the cores, and what these order done. Actors on Ray and the embedded
runner are made of it.
"""
