"""``Runtime``: what a user says about the processes of a job and the streams between them. No Ray.

Everything is checked when the object is made, so that a mistake shows on the user's own line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ...coordinator.job.poison import PoisonPolicy
from ...engine.core.arguments import checked
from ...engine.core.errors import ConfigurationError
from ..hosting.supervisor import MISSES
from ..protocol.settings import Duration, seconds
from ..transport.wire import Codec

LogLevel: TypeAlias = Literal["DEBUG", "INFO", "WARNING", "ERROR"]


@dataclass(frozen=True, slots=True)
class Reporting:
    """What a process reports of itself. ``metrics``: seconds between two reports; None: there are none."""

    metrics: float | None = 5.0
    log_level: LogLevel = "INFO"


@checked(ConfigurationError)
@dataclass(frozen=True)
class Runtime:
    """How a job's processes are looked after."""

    heartbeat: Duration | None = "20s"
    """A process that has not answered for so long is taken for hung and replaced. None: it is never asked."""
    spares: int = 0
    """Processes that are started beyond those needed: when one is lost, its task moves to a spare at once."""
    warm: int | None = None
    """How many processes are kept ready for the script's next job, from the start of this one on, as :func:`ps.warm`
    does. None: as many as were. 0: none, and this job's own start cold, whatever
    waits on the cluster."""
    lease: Duration = "2m"
    """A process that the coordinator has not asked for so long leaves by itself: it is cut off, or nobody's. Without a
    heartbeat there is no lease."""
    reconnect: Duration = "10s"
    """For so long a process tries to reach a peer that lives; then the peer's task is taken for lost."""
    compression: Codec | Mapping[str, Codec] | None = None
    """How batches are compressed between machines ("lz4", "zstd"): on all edges, or by the edge's name as ``explain``
    shows it. Within a machine they never are."""
    tls: bool = False
    """Whether streams between machines are encrypted, with a certificate that the job makes for itself."""
    poison_limit: int = 3
    """A split of the input that ends its task so many times, while it is read, stops the job with its name."""
    skip_poison: bool = False
    """Whether such a split is skipped instead. ``job.status().skipped`` says which were."""
    preemption: Duration | None = None
    """A driver's process that gets SIGTERM has so long until it must end: a checkpoint is taken at once, and its tasks
    go on from it in another process; so has one whose node Ray drains, but no longer than till the node's deadline.
    None: SIGTERM is a death like any other, and so is the end of a node."""
    spread: bool = False
    """Whether the processes are spread over the nodes of the cluster, or packed where there is room."""
    wait_for_resources: bool = False
    """Whether a job that asks for more than the cluster has (or has free) waits for it, because nodes will come, say,
    from an autoscaler. By default it is refused."""
    metrics: Duration | None = "5s"
    """How often each process hands its figures to Ray's metrics. None: never."""
    log_level: LogLevel = "INFO"
    """What the processes write to their logs, as JSON lines: this and everything graver."""

    def __post_init__(self) -> None:
        if self.spares < 0:
            raise ConfigurationError(f"spares={self.spares!r} is no number of processes", "give 0, 1, 2, …")
        if self.warm is not None and self.warm < 0:
            raise ConfigurationError(f"warm={self.warm!r} is no number of processes", "give 0, 1, 2, …")
        if self.poison_limit < 1:
            raise ConfigurationError(f"poison_limit={self.poison_limit!r} is no number of times", "give 1, 2, 3, …")
        for name in ("heartbeat", "lease", "reconnect", "preemption", "metrics"):
            given = getattr(self, name)
            if given is not None and seconds(given, name) <= 0:
                raise ConfigurationError(f"{name}={given!r} is too short", 'give a time above 0, such as "10s"')
        if self.period is not None and seconds(self.lease, "lease") < 2 * self.period * MISSES:
            raise ConfigurationError(
                f"lease={self.lease!r} is shorter than twice the heartbeat of {self.heartbeat!r}",
                "a process must be asked several times within its lease: lengthen it, or shorten the heartbeat",
            )

    @property
    def period(self) -> float | None:
        """Seconds between two questions to a process; None: there are none."""
        return None if self.heartbeat is None else seconds(self.heartbeat, "heartbeat") / MISSES

    def codecs(self, edges: Iterable[str]) -> dict[str, Codec]:
        """The compression of each edge that is said to have one. Raises ConfigurationError if others are named."""
        known = list(edges)
        if not isinstance(self.compression, Mapping):
            return {} if self.compression is None else dict.fromkeys(known, self.compression)
        for edge in self.compression:
            if edge not in known:
                there = f"its edges between stages are {', '.join(known)}" if known else "it has none between stages"
                raise ConfigurationError(
                    f"compression names the edge {edge!r}, which the flow does not have: {there}",
                    "give the name of an edge, as flow.explain() shows it",
                )
        return dict(self.compression)

    @property
    def reporting(self) -> Reporting:
        """What the processes report of themselves."""
        return Reporting(None if self.metrics is None else seconds(self.metrics, "metrics"), self.log_level)

    @property
    def poison(self) -> PoisonPolicy:
        """When a split is poison, and what is done about it."""
        return PoisonPolicy(self.poison_limit, self.skip_poison)

    @property
    def lease_seconds(self) -> float | None:
        """The lease in seconds; None: it never ends, as nobody asks."""
        return None if self.period is None else seconds(self.lease, "lease")

    @property
    def notice_seconds(self) -> float | None:
        """How long a process that was told to end may stay; None: it is not told."""
        return None if self.preemption is None else seconds(self.preemption, "preemption")

    @property
    def reconnect_seconds(self) -> float:
        """The time for reaching a peer, in seconds."""
        return seconds(self.reconnect, "reconnect")


DEFAULT_RUNTIME = Runtime()
DEFAULT_REPORTING = Reporting()
