"""Who runs when: the states of a driver and what it may wait for."""
