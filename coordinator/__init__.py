"""Decisions about a job: checkpoints, recovery, failover. Pure: no clock, no thread, no file, no Ray."""
