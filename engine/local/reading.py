"""Plans that are read by the functions of other plans: those that read each other would wait for ever.

Rule: whoever is about to wait for a plan within the code of others says so first. He is refused if that plan waits for
one of those, or for one that waits for them: at most one of several that close such a ring is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from ..core.errors import ConfigurationError
from ..scheduler.protocol import Places
from ..scheduler.shell import places
from .running_plan import RunningPlan

_lock = Lock()
#: all waits for a plan within the code of others, of all threads: where each is, and the plan
_waits: list[tuple[Places, RunningPlan]] = []


@contextmanager
def reading(plan: RunningPlan) -> Iterator[None]:
    """This thread waits for the plan meanwhile. Raises ConfigurationError if that would never end."""
    here = places()
    if not here:
        yield
        return
    wait = (here, plan)
    with _lock:
        if _leads_to(plan, here):
            raise ConfigurationError(
                "two tasks read each other in their own functions, and would wait for ever",
                "let one of them read what the other gives, and combine the two outside of both",
            )
        _waits.append(wait)
    try:
        yield
    finally:
        with _lock:
            _waits[:] = [each for each in _waits if each is not wait]


def _leads_to(plan: RunningPlan, here: Places) -> bool:
    """Whether one of the plans that are waited for within the plan, and within those, stands at these places."""
    found, added = [plan], True
    while added:
        new = [read for at, read in _waits if read not in found and any(each.was_entered(at) for each in found)]
        found += dict.fromkeys(new)
        added = bool(new)
    return any(each.was_entered(here) for each in found)
