"""Checks that a machine can run Ray, and starts or joins a cluster.

Each check is a function over facts that the caller may inject, so that a test can bring a folder that is too small or
a port that is taken; without arguments it looks at this machine. A failed check is a SetupError with the remedy.

Rules:

1. ray is imported inside functions only: some of what :func:`connect` puts into the environment must be there before.
   (If the caller imported ray already, our cluster is not confined to loopback; it still wants a token.)
2. A cluster that we start listens on loopback, wants a token, and ends with :func:`disconnect`. If the machine has no
   token yet, one is made for this cluster alone and kept in the environment of its processes; no file is written.
3. A cluster that we join is left as it is, and keeps running.
4. A process is connected to one cluster. An address that is given is compared with it (:func:`check_cluster`): what
   runs elsewhere than asked for would find neither the machines nor the jobs that it was meant for.
"""

from __future__ import annotations

import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ...engine.core.errors import SetupError
from . import java
from .task_lines import show_tasks_lines

NAMESPACE = "penstock"
"""The Ray namespace of every actor of ours."""

LOCAL_CPUS = 4
"""A local cluster claims at least this many CPUs: Spark's executor and our actors must not wait for each other."""

SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_BYTES = 512 * 2**20
"""Less shared memory than this and Ray would put its object store on disk, or spill all the time."""

LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""At 0, Ray binds to 127.0.0.1 and connects there. Ray reads it when it is imported."""

_STORE_SHARE = 0.3
"""Share of the memory that the object store gets: Ray's own default."""

_CONNECT_SECONDS = 5.0
_TOKEN_REMEDY = (
    "give this process the cluster's token:\n"
    "    export RAY_AUTH_MODE=token\n"
    "    export RAY_AUTH_TOKEN=<the token>        (or RAY_AUTH_TOKEN_PATH=<its file>, or ~/.ray/auth_token)\n"
    "  or, for development on loopback, start the cluster and everything else with RAY_AUTH_MODE=disabled"
)


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The cluster that this process is connected to.

    ``started``: :func:`connect` started it, and :func:`disconnect` ends it. ``joined``: :func:`connect` connected to
    it, and :func:`disconnect` leaves it. Neither: Ray was connected before, and stays so. ``variables``: what was put
    into the environment for this cluster, and leaves it with the cluster.
    """

    address: str
    started: bool
    joined: bool
    cpus: float
    machines: int = 1
    java: java.Java | None = None
    variables: tuple[str, ...] = ()

    def describe(self) -> str:
        how = "a local Ray cluster of this process" if self.started else f"the Ray cluster at {self.address}"
        return f"{how} with {self.cpus:g} CPUs"


def check_shared_memory(folder: Path = SHARED_MEMORY, needed: int = SHARED_MEMORY_BYTES) -> int:
    """The bytes free in the shared memory that Ray keeps its objects in."""
    remedy = (
        "in Docker, start the container with --shm-size=2g; elsewhere mount a tmpfs there (mount -o remount,size=2g "
        f"{folder}), or free space in it; `penstock run --local` needs neither Ray nor shared memory"
    )
    try:
        with tempfile.TemporaryFile(dir=folder):
            facts = os.statvfs(folder)
    except OSError as error:
        raise SetupError(f"Ray needs shared memory in {folder}, which is not usable: {error}", remedy) from error
    free = facts.f_bavail * facts.f_frsize
    if free < needed:
        have, want = free // 2**20, needed // 2**20
        raise SetupError(f"{folder} has {have} MiB free, and Ray needs at least {want} MiB there", remedy)
    return free


def check_port(port: int, purpose: str, host: str = "127.0.0.1") -> None:
    """Raise SetupError if somebody listens on ``port`` already; it names the process where that can be told."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            holder = _holder_of(port)
            used = f" (it is used by {holder})" if holder else ""
            remedy = f"choose another port for {purpose}, or stop what uses this one"
            raise SetupError(f"port {port} for {purpose} cannot be opened: {error}{used}", remedy) from error


def check_reachable(address: str, seconds: float = _CONNECT_SECONDS) -> None:
    """Raise SetupError if nothing listens at ``host:port``; Ray itself would try for two minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        remedy = "give the address of a Ray head node as host:port (6379 is the usual port), or 'auto'"
        raise SetupError(f"{address!r} is no address of a Ray cluster", remedy)
    try:
        socket.create_connection((host.strip("[]"), int(port)), seconds).close()
    except (OSError, OverflowError) as error:
        remedy = "start one (ray start --head), correct the address, or give none to start a cluster for this job"
        raise SetupError(f"no Ray cluster answers at {address}: {error}", remedy) from error


def connect(
    address: str | None = None, verbose: bool = False, *, spark: bool = False, dashboard_port: int | None = None
) -> ClusterInfo:
    """Start a local cluster, or join the one at ``address`` ("auto": the one that RAY_ADDRESS or Ray itself knows).

    Without ``address``, RAY_ADDRESS is joined if it is set, as it is under ``ray job submit``. ``spark``: Spark will
    run on it, so Java is found first. ``dashboard_port``: a cluster that is started shows Ray's dashboard there.
    """
    asked, address = address, address or ("auto" if os.environ.get("RAY_ADDRESS") else "local")
    joining = {} if address == "local" else joining_variables(_found(address))
    check_cluster(asked)
    found = java.ensure() if spark else None
    if address == "local":
        free = check_shared_memory()
        if dashboard_port is not None:
            check_port(dashboard_port, "Ray's dashboard")
        variables = local_variables(os.environ, Path.home())
        os.environ.update(variables)
        settings = _local_settings(free, dashboard_port)
    else:
        variables, settings = joining, {"address": address}
        os.environ.update(variables)
    try:
        return _connected(settings, verbose, found, tuple(variables))
    except BaseException:
        _forget(variables)
        raise


def check_cluster(address: str | None) -> None:
    """Raise SetupError if this process is connected to another cluster than the one at ``address``; None and "auto"
    are content with any, "local" with one that this process has started."""
    if address in (None, "auto") or "ray" not in sys.modules:
        return
    import ray

    if not ray.is_initialized():
        return
    connected = ray.get_runtime_context().gcs_address
    if ray._private.worker._global_node.head if address == "local" else is_same_address(str(address), connected):
        return
    asked = "a cluster of its own" if address == "local" else f"the Ray cluster at {address}"
    raise SetupError(
        f"this script asks for {asked} (address={address!r}), but it is connected to the one at {connected}",
        "leave out address= to use the cluster that the script is connected to, or call ray.shutdown() before",
    )


def is_same_address(one: str, other: str) -> bool:
    """Whether two addresses, host:port, mean the same place: names are looked up, and this machine's are all one."""
    (host, _, port), (other_host, _, other_port) = one.rpartition(":"), other.rpartition(":")
    if port != other_port:
        return False
    mine = {"127.0.0.1", "::1", _outer_address()} | _numbers(socket.gethostname())
    hosts, other_hosts = _numbers(host.strip("[]")), _numbers(other_host.strip("[]"))
    return bool(hosts & other_hosts) or bool(hosts & mine and other_hosts & mine)


def _numbers(host: str) -> set[str]:
    """The addresses behind a name; the name itself if it is not known."""
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return {host}


def disconnect(cluster: ClusterInfo) -> None:
    """Leave the cluster, and end it if :func:`connect` started it."""
    import ray

    if cluster.started or cluster.joined:
        ray.shutdown()
        _forget(cluster.variables)


def local_variables(environment: Mapping[str, str], home: Path) -> dict[str, str]:
    """What a cluster of our own needs in the environment: loopback only, and a token, unless its user chose already."""
    wanted = {
        LOOPBACK: "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
    }
    has_token = "RAY_AUTH_TOKEN_PATH" in environment or (home / ".ray" / "auth_token").exists()
    if environment.get("RAY_AUTH_MODE", "token") == "token" and not has_token:
        wanted["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    return {name: value for name, value in wanted.items() if name not in environment}


def _forget(variables: Iterable[str]) -> None:
    for name in variables:
        os.environ.pop(name, None)


def _local_settings(free: int, dashboard_port: int | None) -> dict[str, Any]:
    from ray._common.utils import get_system_memory

    # Ray's C++ part read the environment when ray was imported, which may be long ago.
    import_module("ray._raylet").Config.initialize("")
    settings: dict[str, Any] = {"address": "local", "num_cpus": max(LOCAL_CPUS, os.cpu_count() or 1)}
    settings["include_dashboard"] = dashboard_port is not None
    if dashboard_port is not None:
        settings |= {"dashboard_host": "127.0.0.1", "dashboard_port": dashboard_port}
    if int(get_system_memory() * _STORE_SHARE) > free:  # Ray would fall back to a store on disk
        settings["object_store_memory"] = int(free * 0.9)
    return settings


def joining_variables(address: str) -> dict[str, str]:
    """What the environment lacks to join the cluster at ``address``, which is checked first; "auto": nothing is known.

    Ray replaces 127.0.0.1 by the machine's outer address. A cluster that listens on loopback alone is then not found,
    unless the same variable is set that made it listen there.
    """
    if address.startswith("ray://"):
        remedy = "run on a node of the cluster, or with `ray job submit`, and give host:port or 'auto'"
        raise SetupError(f"{address} is a Ray Client address; Penstock's data do not pass through Ray Client", remedy)
    if address == "auto":
        return {}
    check_reachable(address)
    host, _, port = address.rpartition(":")
    if host not in ("127.0.0.1", "localhost") or LOOPBACK in os.environ:
        return {}
    try:
        check_reachable(f"{_outer_address()}:{port}")
    except SetupError:
        if "ray" in sys.modules:
            remedy = f"export {LOOPBACK}=0, or connect before anything imports ray"
            raise SetupError(f"the Ray cluster at {address} listens on loopback only", remedy) from None
        return {LOOPBACK: "0"}
    return {}


def _found(address: str) -> str:
    """The address behind "auto", as Ray would find it; "auto" itself if Ray has left no trace of a cluster."""
    if address != "auto":
        return address
    trace = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"
    with suppress(OSError):
        return os.environ.get("RAY_ADDRESS") or trace.read_text().strip() or address
    return address


def _outer_address() -> str:
    """The address of this machine that others would use; loopback if it has none. Nothing is sent."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return "127.0.0.1"


def _connected(
    settings: dict[str, Any], verbose: bool, found: java.Java | None, variables: tuple[str, ...]
) -> ClusterInfo:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    before = ray.is_initialized()
    if not before:
        level = "INFO" if verbose else "ERROR"
        try:
            ray.init(namespace=NAMESPACE, log_to_driver=True, logging_level=level, **settings)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise _refusal(str(settings["address"]), error) from error
        if not verbose:
            _hush()
    started = not before and settings["address"] == "local"
    cpus = float(ray.cluster_resources().get("CPU", 0.0))
    address = ray.get_runtime_context().gcs_address
    machines = len([node for node in ray.nodes() if node["Alive"]])
    return ClusterInfo(address, started, not before and not started, cpus, machines, found, variables)


def _hush() -> None:
    """Keep Ray from writing to stderr what processes log, and that one died: the job says so itself, and goes on. There
    is no setting for Ray's own messages about processes."""
    from ray._private import worker

    show_tasks_lines()
    worker.print_to_stdstream = lambda *_arguments, **_options: None


def _refusal(address: str, error: Exception) -> SetupError:
    """What a failed ``ray.init`` means. Ray does not say so when a cluster refuses a token: it says "Failed to
    connect" after the port was seen to be open."""
    text = str(error)
    if address == "local":
        remedy = "see the message; `--verbose` shows Ray's own log, and `penstock run --local` runs without Ray"
        return SetupError(f"Ray could not start: {text}", remedy)
    if "Could not find any running Ray instance" in text:
        remedy = "start one (ray start --head), give its address, or give none to start a cluster for this job"
        return SetupError("no Ray cluster runs on this machine", remedy)
    if type(error).__name__ == "AuthenticationError" or text.startswith("Failed to connect to Ray cluster"):
        return SetupError(f"the Ray cluster at {address} wants a token that this process does not have", _TOKEN_REMEDY)
    remedy = "the cluster and this process need the same Ray and Python versions; `ray status` shows its health"
    return SetupError(f"the Ray cluster at {address} cannot be joined: {text}", remedy)


def _holder_of(port: int) -> str:
    """The process that listens on ``port``, as "name (process id)"; empty if it is another user's."""
    sockets = _listeners(port)
    for folder in Path("/proc").glob("[0-9]*"):
        if sockets & _open_files(folder):
            with suppress(OSError):
                return f"{(folder / 'comm').read_text().strip()} (process {folder.name})"
    return ""


def _open_files(process: Path) -> set[str]:
    """What a process holds open; nothing if it has ended or is another user's."""
    found: set[str] = set()
    with suppress(OSError):
        for link in list((process / "fd").iterdir()):
            with suppress(OSError):
                found.add(os.readlink(link))
    return found


def _listeners(port: int) -> set[str]:
    """The sockets that listen on ``port``, as /proc names them."""
    found: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            listening = "0A"
            found |= {
                f"socket:[{row[9]}]" for row in rows if row[3] == listening and int(row[1].split(":")[1], 16) == port
            }
    return found
