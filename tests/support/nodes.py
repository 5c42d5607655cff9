"""A Ray cluster of three nodes on this machine, in which a disaster kills one that is not the head, and another joins.

A process has one cluster at a time: whoever wants this one beside the tests' own does so in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

QUICK_DEATHS = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
"""Ray takes a node for dead after two seconds, instead of fifteen or more."""
MEMORY = 100 * 2**20
NOT_THE_HEAD = "not_the_head"
"""A resource of all nodes but the head, for what must be on one of them."""


@dataclass(frozen=True)
class Nodes:
    """The cluster. ``others``: the nodes that are not the head."""

    cluster: Any
    others: list[Any]

    def add(self) -> None:
        """Let a node join."""
        options = {"num_cpus": 2, "object_store_memory": MEMORY, "resources": {NOT_THE_HEAD: 10}}
        self.others.append(self.cluster.add_node(**options))

    def below(self, pid: int) -> list[Any]:
        """The node that has started a process, if it is not the head."""
        return [node for node in self.others if is_below(pid, node)]

    def kill(self, victim: Any, job: Any) -> str:
        """Kill the raylet of a node, with which its processes go, and let another node join; what was lost of a job."""
        coordinator = is_below(job.coordinator_process(), victim)
        lost = sum(is_below(each.pid, victim) for each in job.identities().values())
        self.others.remove(victim)
        self.cluster.remove_node(victim, allow_graceful=False)
        self.add()
        besides = " and the coordinator" if coordinator else ""
        return f"raylet killed, and with it {lost} of {len(job.tasks())} tasks{besides}"


def is_below(pid: int, node: Any) -> bool:
    """Whether a process was started by a node's raylet."""
    raylet = node.all_processes["raylet"][0].process.pid
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return bool(parent == raylet)


@contextmanager
def three_nodes() -> Iterator[Nodes]:
    """The head and two others; this process is connected to them."""
    import ray
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "object_store_memory": MEMORY, "_system_config": QUICK_DEATHS}
    nodes = Nodes(Cluster(initialize_head=True, head_node_args=head), [])
    try:
        nodes.add()
        nodes.add()
        ray.init(address=nodes.cluster.address, log_to_driver=False, logging_level="ERROR", namespace="penstock")
        yield nodes
    finally:
        ray.shutdown()
        nodes.cluster.shutdown()
