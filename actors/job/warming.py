"""The script's pool of warm processes, on Ray: started in advance, taken by jobs, refilled (``process.warm_pool``).

Ray itself keeps processes that are idle, by the script they belong to and their runtime environment, and gives one to
an actor that is made for these; it even starts some when asked, which no public call does. So a warm process is one of
Ray's idle ones, in a runtime environment of ours that has it import everything (``warm_up``). An actor that gets it is
an actor like any other: its name, resources, restarts and life are as without the pool.

Rules:

1. The pool belongs to the script and to its connection to a cluster: its processes are those of the script's Ray job,
   and end with it. A job that outlives its script takes none. The cluster's pool is ``cluster_pool``.
2. Ray gives actors with GPUs processes of their own kind; they start cold.
3. What a job does not get from the pool starts cold, beside the rest. Nothing waits for the pool, and nothing that
   fails here fails a job: it is logged.
4. The pool's thread lives only while something is missing.
5. A script whose runtime environment has a hook of its own has no pool: Ray calls one hook, and ours would replace it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from itertools import cycle, islice
from typing import Any

import ray

from ..cluster.calls import connection
from ..process.ending import AtExit
from ..process.waiting import Deadline
from ..process.warm_pool import LOOK_SECONDS, WarmPool
from .warm_up import HOOK, POOL, PREPARATION, Worker, be_ready, entered, strike_out

KEPT_SECONDS = 24 * 3600
"""How long Ray leaves a process alone that waits. Those of a script end with it, however soon."""
_CALL_SECONDS = 5.0
_FORGOTTEN_SECONDS = 60.0
"""An entry of a process that does not live, and is so old, is struck out by whoever looks."""

_log = logging.getLogger(__name__)


class Warming:
    """See the module's rules. One for the script."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pool = WarmPool()
        #: the connection that the pool belongs to
        self._connection: tuple[str, str] | None = None
        self._thread: threading.Thread | None = None
        #: something has happened that the thread should see
        self._woken = threading.Event()
        #: ends the thread with the script, before Ray's end
        self._at_exit: AtExit | None = None

    def keep(self, processes: int) -> int:
        """From now on so many wait. The connection is there. How many they are to be (rule 5)."""
        if processes and HOOK in environment_of_script().get("env_vars", {}):
            _log.warning("no process is started in advance: it would not call the script's worker_process_setup_hook")
            processes = 0
        with self._lock:
            self._follow()
            self._pool.want(processes)
            if self._at_exit is None:
                self._at_exit = AtExit(self._leave, _CALL_SECONDS)
            self._wake()
        return processes

    def wait(self, processes: int, seconds: float) -> int:
        """Wait until so many are ready, or for ``seconds``. How many are."""
        deadline = Deadline(seconds)
        while True:
            with self._lock:
                self._look()
                ready = self._pool.ready
            if ready >= processes or self._pool.has_given_up or not deadline.left():
                return ready
            threading.Event().wait(LOOK_SECONDS / 5)

    def take(self, processes: int) -> int:
        """A job starts. How many of its processes the pool has."""
        with self._lock:
            if connection() != self._connection:
                return 0
            self._look()
            given = self._pool.take(processes, time.monotonic())
            self._wake()
            return given

    def settled(self) -> None:
        """A job is over, or was refused."""
        with self._lock:
            self._pool.settled()
            self._wake()

    def _follow(self) -> None:
        """The pool of another connection is gone."""
        if connection() != self._connection:
            self._connection, self._pool = connection(), WarmPool(os.cpu_count() or 1)

    def _look(self) -> None:
        try:
            self._pool.looked(frozenset(each.worker for each in idle_workers(of_script=True)))
        except Exception as error:  # whatever Ray raises while its control store is away
            _log.warning("which processes wait cannot be asked: %s", error)

    def _wake(self) -> None:
        self._woken.set()
        if self._thread is None and self._pool.next_look(time.monotonic()) is not None:
            self._thread = threading.Thread(target=self._run, name="penstock-warming", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                left = self._step()
                if left is None:
                    self._thread = None
                    return
                self._woken.clear()
            self._woken.wait(left)

    def _step(self) -> float | None:
        """Do what is to be done now. Seconds until the next step; None: there is none."""
        if self._connection is None or connection() != self._connection:
            return None
        self._look()
        try:
            now = time.monotonic()
            if too_many := self._pool.to_end(now):
                end_processes(too_many)
            if missing := self._pool.to_start(now):
                start_processes(missing)
        except Exception as error:  # a part of Ray that nobody promises
            _log.warning("no process is started in advance: %s", error)
            return None
        if self._pool.has_given_up:
            _log.warning("Ray does not start the processes that are wanted in advance; jobs start cold")
        return self._pool.next_look(now)

    def _leave(self) -> None:
        with self._lock:
            self._pool.want(0)
            self._connection = None
            self._woken.set()


SCRIPTS = Warming()


def idle_workers(*, of_script: bool = False, pool: str = "") -> list[Worker]:
    """The processes that wait on this cluster, the oldest first; ``of_script``: for this script's jobs; ``pool``: in
    the cluster's pool of this key."""
    from ray._private.state import state

    found = entered(ray.get_runtime_context().get_job_id() if of_script else pool)
    alive = state.workers() if found else ()
    for each in found:
        if each.worker not in alive and each.since < time.time() - _FORGOTTEN_SECONDS:
            strike_out(each.owner, each.worker)
    return sorted((each for each in found if each.worker in alive), key=lambda each: each.since)


def end_processes(count: int, pool: str = "") -> None:
    """End some processes that wait, of this script or of the cluster's pool: actors take them, and go."""
    idler = ray.remote(Idler).options(num_cpus=0, runtime_env=warm_environment(pool))
    actors = [idler.remote() for _ in range(count)]
    ray.wait([each.take.remote() for each in actors], num_returns=count, timeout=_CALL_SECONDS)
    for each in actors:
        ray.kill(each)


class Idler:
    """An actor that does nothing with the process that it has got."""

    def take(self) -> None:
        """Returns when it has one."""
        PREPARATION.leave()


# ---------------------------------------------------------------------- Ray's own part


def warm_environment(pool: str = "") -> dict[str, Any]:
    """The runtime environment of warm processes beside the script's own: our hook, and the pool that they belong to."""
    hook = {HOOK: f"{be_ready.__module__}.{be_ready.__name__}"}
    return {"env_vars": {**hook, POOL: pool} if pool else hook}


def environment_of_script() -> dict[str, Any]:
    """The runtime environment that this script, or this actor, was given."""
    found: dict[str, Any] = json.loads(ray.get_runtime_context().get_runtime_env_string() or "{}")
    return found


def start_processes(count: int, pool: str = "") -> None:
    """Have Ray start processes for this script, or for the cluster's pool, whose processes any script's job may get; in
    turn on all nodes. Returns before they are there; Ray may start fewer."""
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import common_pb2, node_manager_pb2, node_manager_pb2_grpc

    nodes = [node for node in ray.nodes() if node["Alive"]]
    here = ray.get_runtime_context().get_node_id()
    nodes.sort(key=lambda node: (node["NodeID"] != here, node["NodeID"]))
    wanted = list(islice(cycle(range(len(nodes))), count))
    for number, node in enumerate(nodes):
        share = wanted.count(number)
        if not share:
            continue
        with init_grpc_channel(f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}") as channel:
            node_manager_pb2_grpc.NodeManagerServiceStub(channel).PrestartWorkers(
                node_manager_pb2.PrestartWorkersRequest(
                    language=common_pb2.PYTHON,
                    job_id=b"" if pool else bytes.fromhex(ray.get_runtime_context().get_job_id()),
                    runtime_env_info=_environment_of_actors(pool),
                    keep_alive_duration_secs=KEPT_SECONDS,
                    num_workers=share,
                ),
                timeout=_CALL_SECONDS,
            )


def _environment_of_actors(pool: str) -> Any:
    """What Ray makes of an actor's environment (:func:`warm_environment`), letter by letter: it compares texts. With an
    environment of the script's own it merges the two, and writes them without spaces."""
    from ray._private.utils import get_runtime_env_info
    from ray.runtime_env import RuntimeEnv

    whole = environment_of_script()
    mine = warm_environment(pool)
    if not whole:
        return get_runtime_env_info(RuntimeEnv(**mine))
    whole["env_vars"] = {**whole.get("env_vars", {}), **mine["env_vars"]}
    info = get_runtime_env_info(RuntimeEnv(**whole))
    info.serialized_runtime_env = json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return info
