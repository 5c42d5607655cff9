"""The cluster's pool of warm processes, on Ray: a detached actor that keeps them, and lends them to scripts.

The processes are started like a script's (``warming``), but for no script: Ray gives each to the first actor that is
made for their runtime environment, whosever it is. How many there are and who may take some is ``process.shared_pool``.

Rules:

1. A pool has a *key*: a digest of the user, of the script's runtime environment (a folder is in it by the digest of its
   content) and of Penstock's code. The key is a variable of the processes' environment, so Ray itself gives them to
   nobody else. They wait on the nodes in turn; those of one node serve actors of that node.
2. The actor holds no CPU. What it keeps is written in the cluster's key-value store, so that a restart goes on with it.
3. A script that finds no pool there pays one look. Nothing that fails here fails a job: it is logged.
4. An actor whose processes nobody wants ends when the last of them is gone.
"""

from __future__ import annotations

import functools
import getpass
import hashlib
import json
import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.experimental import internal_kv

from ..cluster.calls import connection, end_for_good
from ..cluster.environment import NAMESPACE
from ..process.shared_pool import SharedPool
from ..process.waiting import Deadline
from ..process.warm_pool import LOOK_SECONDS
from .warm_up import HOOK, POOL_KEY, REGISTER
from .warming import end_processes, environment_of_script, idle_workers, start_processes

_WANTED = "wanted:"
"""Before the key of a pool: how many processes it keeps."""
_LOOK_SECONDS = 30.0
"""How long between two looks while nothing is missing: a process that waits may die."""
_ANSWER_SECONDS = 2.0
"""A pool that has not answered a job's start for so long lends nothing."""
_BEGIN_SECONDS = 60.0

_log = logging.getLogger(__name__)


class PoolActor:
    """Keeps the processes of one pool. See the module's rules."""

    def __init__(self, key: str) -> None:
        self._key = key
        self._lock = threading.Lock()
        self._pool = SharedPool(os.cpu_count() or 1)
        self._woken = threading.Event()
        self._pool.want(_wanted(key))
        self._itself = ray.get_runtime_context().current_actor
        threading.Thread(target=self._run, name="penstock-pool", daemon=True).start()

    def keep(self, processes: int) -> None:
        """From now on so many wait."""
        _write_wanted(self._key, processes)
        with self._lock:
            self._pool.want(processes)
        self._woken.set()

    def lend(self, borrower: str, processes: int) -> int:
        """A job of the script starts. How many of its processes it may make for this pool."""
        with self._lock:
            self._look()
            given = self._pool.lend(borrower, processes, time.monotonic())
        self._woken.set()
        return given

    def settled(self, borrower: str) -> None:
        """No job of the script's starts any more."""
        with self._lock:
            self._pool.settled(borrower)
        self._woken.set()

    def waiting(self) -> tuple[int, bool]:
        """How many processes can be lent; whether Ray starts no others."""
        with self._lock:
            self._look()
            return self._pool.ready, self._pool.has_given_up

    def _look(self) -> None:
        self._pool.looked(frozenset(each.worker for each in idle_workers(pool=self._key)))

    def _run(self) -> None:
        while True:
            self._woken.clear()
            left: float | None = _LOOK_SECONDS
            try:
                with self._lock:
                    left = self._step()
            except Exception:  # a part of Ray that nobody promises, or its control store is away
                _log.warning("the cluster's pool %s cannot be filled", self._key, exc_info=True)
            if left is None and not _wanted(self._key):
                end_for_good(self._itself)
                return
            self._woken.wait(_LOOK_SECONDS if left is None else min(left, _LOOK_SECONDS))

    def _step(self) -> float | None:
        self._look()
        now = time.monotonic()
        if too_many := self._pool.to_end(now):
            end_processes(too_many, self._key)
        if missing := self._pool.to_start(now):
            start_processes(missing, self._key)
        return self._pool.next_look(now)


class Borrowed:
    """What this script has been lent. One for the script."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: a pool that has lent something for jobs that start, and to whom
        self._from: tuple[Any, tuple[str, str] | None] | None = None

    def borrow(self, processes: int) -> tuple[str, int]:
        """See :func:`borrow`."""
        key = pool_key()
        pool = ray.get_actor(key, namespace=NAMESPACE)
        given = ray.get(pool.lend.remote(_script(), processes), timeout=_ANSWER_SECONDS)
        with self._lock:
            self._from = (pool, connection()) if given else self._from
        return key, int(given)

    def give_back(self) -> None:
        """No job of this script's starts any more. Waits for nobody."""
        with self._lock:
            lender, self._from = self._from, None
        if lender is not None and lender[1] == connection():
            lender[0].settled.remote(_script())


BORROWED = Borrowed()


def borrow(processes: int) -> tuple[str, int]:
    """A job starts: the key of the pool that serves this script, and how many processes it lends; 0 where there is no
    such pool, or it does not answer."""
    try:
        if internal_kv._internal_kv_list(f"{_WANTED}{POOL_KEY}".encode(), namespace=REGISTER):
            return BORROWED.borrow(processes)
    except Exception as error:  # none for this key, one that ends or starts; or the control store is away
        _log.info("no process of the cluster's pool was lent: %s", error)
    return "", 0


def keep_for_all(processes: int, seconds: float) -> int:
    """The pool for scripts such as this one keeps so many. Waits for them at most so many seconds. How many wait."""
    if processes and HOOK in environment_of_script().get("env_vars", {}):
        _log.warning("no process is started in advance: it would not call the script's worker_process_setup_hook")
        processes = 0
    deadline, begin = Deadline(seconds), Deadline(_BEGIN_SECONDS)
    while True:
        try:
            pool = _pool_of_cluster(processes)
            if pool is None:
                return 0
            ray.get(pool.keep.remote(processes), timeout=_BEGIN_SECONDS)
            return _wait(pool, processes, deadline)
        except RayError:  # it was about to end, as nobody had wanted it
            if not processes:
                return 0
            if not begin.left():
                raise
            threading.Event().wait(LOOK_SECONDS)


def _pool_of_cluster(processes: int) -> Any:
    key = pool_key()
    _write_wanted(key, processes)
    if not processes:
        try:
            return ray.get_actor(key, namespace=NAMESPACE)
        except ValueError:
            return None
    life = {"lifetime": "detached", "max_restarts": -1, "max_task_retries": 0, "num_cpus": 0}
    return ray.remote(PoolActor).options(name=key, namespace=NAMESPACE, get_if_exists=True, **life).remote(key)


def _wait(pool: Any, processes: int, deadline: Deadline) -> int:
    while True:
        ready, hopeless = ray.get(pool.waiting.remote(), timeout=_BEGIN_SECONDS)
        if ready >= processes or hopeless or not deadline.left():
            return int(ready)
        threading.Event().wait(LOOK_SECONDS)


def _wanted_key(key: str) -> bytes:
    return f"{_WANTED}{key}".encode()


def _write_wanted(key: str, processes: int) -> None:
    if processes:
        internal_kv._internal_kv_put(_wanted_key(key), str(processes).encode(), namespace=REGISTER)
    else:
        internal_kv._internal_kv_del(_wanted_key(key), namespace=REGISTER)


def _wanted(key: str) -> int:
    return int(internal_kv._internal_kv_get(_wanted_key(key), namespace=REGISTER) or b"0")


def _script() -> str:
    return str(ray.get_runtime_context().get_job_id())


def pool_key() -> str:
    """The key of the cluster's pool that serves this script (rule 1)."""
    environment = json.dumps(environment_of_script(), sort_keys=True)
    parts = "\0".join((getpass.getuser(), environment, code_digest()))
    return POOL_KEY + hashlib.sha256(parts.encode()).hexdigest()[:16]


@functools.cache
def code_digest() -> str:
    """A digest of Penstock's code as it is installed here."""
    found = hashlib.sha256()
    root = Path(__file__).parents[2]
    for folder in ("actors", "coordinator", "engine", "jobs"):
        for file in sorted((root / folder).rglob("*.py")):
            found.update(f"{file.relative_to(root)}\0{file.stat().st_size}\0".encode())
            found.update(file.read_bytes())
    return found.hexdigest()
