"""Ray calls whose answers come as callbacks, so that nothing polls and no thread waits; and arguments that last.

``when_done`` is the only way in which the actors learn how a call ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import ActorDiedError, RayError

SHUTDOWN_SECONDS = 10.0
"""How long processes may take to stop by themselves before they are ended."""


def sealed(options: object) -> bytes:
    """Constructor arguments of an actor that Ray may restart long after the first start.

    Ray warns on stderr about references and handles in such arguments, because it does not keep what they refer to.
    Sealed ones travel as bytes, and what they refer to is kept until the process that sealed them ends.
    """
    data: bytes = cloudpickle.dumps(options)
    return data


def unsealed(data: bytes) -> Any:
    """The arguments back, in the process of the actor."""
    return cloudpickle.loads(data)


def connection() -> tuple[str, str] | None:
    """Which connection to a cluster this process has: the cluster's address, and Ray's id of this script there."""
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return context.gcs_address, context.get_job_id()


def when_done(ref: Any, done: Callable[[Any, BaseException | None], None]) -> None:
    """Call ``done(value, error)``, one of them None, from a thread of Ray's once the call behind ``ref`` has ended."""

    def ended(future: Any) -> None:
        error = future.exception()
        done(None if error else future.result(), error)

    ref.future().add_done_callback(ended)


def end_for_good(actor: Any) -> None:
    """End an actor, maybe the one that this process is, so that Ray does not start it again."""
    ray.kill(actor, no_restart=True)


def gone_for_good(error: BaseException) -> bool:
    """Whether the error says that the actor is dead and will not be restarted."""
    return isinstance(error, ActorDiedError)


def short_reason(error: BaseException) -> str:
    """An error of Ray's in a line: its first sentence, without the log excerpts that follow."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if isinstance(error, RayError) else f"{type(error).__name__}: {text}"
