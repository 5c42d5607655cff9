"""What a process does that waits for the next job of its script: it imports everything, and enters itself.

Ray starts such processes in advance (``warming``) and gives one to an actor that is made for the same runtime
environment. No code of the user's, nor any plan, is loaded before that: what a warm process finds of them is what one
finds that has just been started. The register is a part of the cluster's key-value store.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import threading
import time
from contextlib import suppress

import msgspec
import ray
from ray.experimental import internal_kv

POOL = "PENSTOCK_POOL"
"""The variable that names the cluster's pool which a worker belongs to; a script's workers have none."""
POOL_KEY = "pool-"
"""How the key of a cluster's pool begins."""
HOOK = "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"
"""Ray's variable that names what a worker calls when it starts."""
REGISTER = b"penstock"
"""The namespace of the key-value store."""
PREFIX = "warm:"
_PARTS = (
    *(".coordinator_actor", ".driver_calls", ".shutdown", "..hosting.coordinator_host"),
    *("..feed.tcp_server", "...engine.flow.flow"),
)
"""What a process of a job may need beside what the actor of a task does, whatever its part is."""
_PAUSE_SECONDS = 0.5
"""A process that an actor waits for, since another one has died, gets its work before this time is over."""

_log = logging.getLogger(__name__)


class Worker(msgspec.Struct, frozen=True):
    """A process that waits. ``memory``: bytes that it alone holds, when it was ready; ``since``: seconds since 1970."""

    owner: str
    """Ray's id of the script's job, or the key of a cluster's pool."""
    worker: str
    """Ray's id of the process."""
    node: str
    pid: int
    memory: int
    since: float

    @property
    def is_shared(self) -> bool:
        """Whether it waits for whatever script comes."""
        return self.owner.startswith(POOL_KEY)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Worker).decode


def _key(owner: str, worker: str) -> bytes:
    return f"{PREFIX}{owner}:{worker}".encode()


class Preparation:
    """Makes this process ready, on a thread, until its work begins. One for the process."""

    def __init__(self) -> None:
        self._begun = threading.Event()
        #: held while the process is entered or struck out: an entry never comes behind the end of the waiting
        self._lock = threading.Lock()
        #: the cluster's pool that this process belongs to; "": it is a script's
        self._pool = ""

    def start(self) -> None:
        """Ray calls this in a process that has just started, before it takes any work."""
        os.environ.pop(HOOK, None)  # processes that a user's function starts are none of ours
        self._pool = os.environ.pop(POOL, "")
        try:
            importlib.import_module(".driver_actor", __package__)
        except Exception:  # who comes will be told
            _log.warning("a process cannot be made ready in advance", exc_info=True)
        else:
            threading.Thread(target=self._prepare, name="penstock-warm-up", daemon=True).start()

    def begin_work(self) -> None:
        """This process has an actor now. Waits for nobody."""
        self._begun.set()
        if HOOK in ray.get_runtime_context().runtime_env.get("env_vars", {}):
            threading.Thread(target=self.leave, name="penstock-strike-out", daemon=True).start()

    def _prepare(self) -> None:
        if self._begun.wait(_PAUSE_SECONDS):
            return
        for name in _PARTS:
            if self._begun.is_set():
                return
            importlib.import_module(name, __package__)
        gc.freeze()
        with self._lock, suppress(Exception):  # the cluster is about to end
            if not self._begun.is_set():
                where = ray.util.get_node_ip_address()
                entry = Worker(*self._ids(), where, os.getpid(), _own_memory(), time.time())
                internal_kv._internal_kv_put(_key(entry.owner, entry.worker), _encode(entry), namespace=REGISTER)

    def leave(self) -> None:
        """This process waits no more. Returns when the register says so."""
        self._begun.set()
        with self._lock:
            strike_out(*self._ids())

    def _ids(self) -> tuple[str, str]:
        context = ray.get_runtime_context()
        return self._pool or context.get_job_id(), context.get_worker_id()


PREPARATION = Preparation()


def be_ready() -> None:
    """See :meth:`Preparation.start`; by this name Ray finds it."""
    PREPARATION.start()


def strike_out(owner: str, worker: str) -> None:
    """This one does not wait any more. Again does no harm."""
    with suppress(Exception):  # the cluster is about to end
        internal_kv._internal_kv_del(_key(owner, worker), namespace=REGISTER)


def _own_memory() -> int:
    """Bytes that would be free if this process ended; 0 where the system does not tell."""
    with suppress(OSError, ValueError), open("/proc/self/smaps_rollup", encoding="ascii") as file:
        return 1024 * sum(int(line.split()[1]) for line in file if line.startswith("Private_"))
    return 0


def entered(owner: str = "") -> list[Worker]:
    """The register: all of it, or what is the owner's, as a worker names it. It may hold dead ones."""
    prefix = f"{PREFIX}{owner}:" if owner else PREFIX
    keys = internal_kv._internal_kv_list(prefix.encode(), namespace=REGISTER)
    found = [internal_kv._internal_kv_get(key, namespace=REGISTER) for key in keys]
    return [_decode(each) for each in found if each is not None]
