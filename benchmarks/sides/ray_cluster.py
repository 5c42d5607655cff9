"""The Ray cluster of a side: one of its own with two CPUs, or the one that ``PENSTOCK_BENCH_RAY`` names."""

from __future__ import annotations

import atexit
import os

import ray

STORE_BYTES = 2 * 2**30


def join_ray() -> None:
    """Connect; a cluster of our own ends with this process."""
    address = os.environ.get("PENSTOCK_BENCH_RAY")
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "namespace": "penstock"}
    if address:
        ray.init(address=address, **quiet)
    else:
        ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=STORE_BYTES, **quiet)
    atexit.register(ray.shutdown)
