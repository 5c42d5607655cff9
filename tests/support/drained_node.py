"""A job on a cluster of three nodes, of which Ray drains one that hosts tasks. Leaves ``facts.json`` in a folder.

python drained_node.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

PATIENCE = 200.0
MEMORY = 100 * 2**20


def drain(address: str, node: str, seconds: float) -> None:
    """As ``ray drain-node`` does, and the autoscaler."""
    from ray._raylet import GcsClient
    from ray.core.generated import autoscaler_pb2

    reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    until = int((time.time() + seconds) * 1000)
    accepted, why = GcsClient(address=address).drain_node(node, reason, "a test", until)
    assert accepted, why


def parent(pid: int) -> int:
    """The process that has started it; of a worker: its node's raylet."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def undergo(address: str, others: list[Any], folder: Path) -> dict[str, Any]:
    """Run the job, drain a node, wait for the end; what was seen."""
    import penstock as ps
    from support.ray_jobs import gather_flow

    checkpoints = ps.Checkpoints(folder / "state", every=None)
    runtime = ps.Runtime(preemption=f"{PATIENCE:g}s", spread=True)
    flow = gather_flow(folder / "out", rate=500.0)
    with ps.run(flow, parallelism=3, address=address, checkpoints=checkpoints, runtime=runtime) as job:
        job.wait_until(lambda status: status.state == "running", PATIENCE)
        before = job.identities()
        keeper = parent(job.coordinator_process())
        hosts = {node.node_id for node in others if node.all_processes["raylet"][0].process.pid != keeper}
        victim = next(each.node_id for each in before.values() if each.node_id in hosts)
        drain(address, victim, PATIENCE)
        first = job.wait_until(lambda status: status.restarts > 0, PATIENCE)
        job.wait_until(lambda status: status.state == "running", PATIENCE)
        after = job.identities()
        done = job.wait(PATIENCE)
        return {
            "saved": first.checkpoints_completed,
            "restarts": done.status().restarts,
            "clean": done.audit().clean,
            "left": [each.node_id == victim for each in before.values()].count(True),
            "stayed": [each.node_id == victim for each in after.values()].count(True),
            "moved": [before[task].pid != each.pid for task, each in after.items()].count(True),
        }


def main() -> None:
    folder = Path(sys.argv[1])
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": MEMORY})
    try:
        others = [cluster.add_node(num_cpus=1, object_store_memory=MEMORY) for _ in range(2)]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR", namespace="penstock")
        facts = undergo(cluster.address, others, folder)
        (folder / "facts.json").write_text(json.dumps(facts))
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
