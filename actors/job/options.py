"""What the actors of a job are told when they are made, and where they find its plan.

Rules:

1. The plan of an attached job lies in the object store and belongs to the script that started it, as its processes do.
2. A detached job outlives that script, and so must its plan: it lies in the cluster's key-value store until the job's
   coordinator leaves. That store is in the head node's memory, so tables that a flow reads from memory are best small.
3. Splits whose rows are leased blocks belong to the script. A flow that reads such cannot be detached.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import ray
from ray import cloudpickle
from ray.exceptions import RayError
from ray.experimental import internal_kv

from ...engine.core.errors import ConfigurationError, TaskLostError
from ...engine.core.shown import hides_credentials
from ...engine.plan.plan import JobPlan
from ..protocol.messages import Address, WorkerSlot
from ..transport.tls import Certificate
from .runtime import DEFAULT_RUNTIME, Runtime
from .sendable import check_sendable

_NAMESPACE = b"penstock"


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """How to get at a plan: a reference to it, or its key."""

    reference: Address = None
    key: bytes = b""

    def load(self) -> JobPlan:
        """The plan. Raises TaskLostError if it is gone."""
        if not self.key:
            attached: JobPlan = ray.get(self.reference)
            return attached
        data = internal_kv._internal_kv_get(self.key, namespace=_NAMESPACE)
        if data is None:
            raise TaskLostError("the plan of the detached job is gone: the job is over", "run the flow again")
        plan: JobPlan = cloudpickle.loads(data)
        return plan

    def forget(self) -> None:
        """Nobody needs the plan any more. Again does no harm."""
        if self.key:
            internal_kv._internal_kv_del(self.key, namespace=_NAMESPACE)


def share_plan(plan: JobPlan, *, detached: bool) -> SharedPlan:
    """Put the plan where the job's processes find it. Raises ConfigurationError if it cannot be pickled."""
    try:
        if not detached:
            return SharedPlan(reference=ray.put(plan))
        data = cloudpickle.dumps(plan)
    except RayError:
        raise
    except Exception:
        check_sendable(plan)
        raise
    key = f"plan:{plan.name}:{uuid.uuid4().hex}".encode()
    internal_kv._internal_kv_put(key, data, namespace=_NAMESPACE)
    return SharedPlan(key=key)


def check_detachable(plan: JobPlan) -> None:
    """Refuse rule 3's flows. Raises ConfigurationError that names the source."""
    from ..spark.leased_blocks import LeasedSplit

    for source in plan.sources.values():
        if any(isinstance(split, LeasedSplit) for split in source.splits):
            raise ConfigurationError(
                "the rows of a leased Spark frame belong to this script, and a detached job outlives it",
                'hand the frame over with handoff="stage"',
                source.id,
            )


@hides_credentials
@dataclass(frozen=True, slots=True)
class DriverOptions:
    """What a driver actor needs to know. ``folder``: where the job's checkpoints lie."""

    slot: WorkerSlot
    folder: str
    plan: SharedPlan
    token: bytes = field(repr=False)
    """Known to the processes of this job alone: who does not know it is not let in."""
    runtime: Runtime = DEFAULT_RUNTIME
    certificate: Certificate | None = field(default=None, repr=False)
    """Streams between machines are encrypted with it."""
    detached: bool = False
    """Nobody owns the actor: when its lease is over it leaves for good."""
    local_copies: bool = False
    """Whether copies of states are kept on this machine."""
