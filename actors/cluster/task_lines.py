"""What a user's functions print in the processes of tasks, on the terminal of the script that has started the job.

Ray brings all lines of all processes of a script (``log_to_driver``), among them its own and ours. Shown are those of
tasks alone, each with the flow's and the task's name, which Ray has of the actor's ``repr``; our log lines stay in the
log folder of Ray's session. The last lines before a script ends may come too late, as always with Ray.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

_TASK = re.compile(r".+ \S+\[\d+\]")
"""How an actor of a task is called."""
_LOG = '{"time": '
"""How a line of our log begins (``hosting.logs``)."""
HANDLER = "ray_print_logs"
"""What Ray calls its own way of showing lines."""


def show_tasks_lines() -> None:
    """Show these instead of all that Ray brings; it was told to bring all."""
    from ray._private.ray_logging import global_worker_stdstream_dispatcher as lines

    lines.remove_handler(HANDLER)
    lines.add_handler(HANDLER, show)


def show(brought: Mapping[str, Any]) -> None:
    """Some lines of one process, as Ray brings them."""
    name = str(brought.get("actor_name") or "")
    if not _TASK.fullmatch(name):
        return
    stream = sys.stderr if brought.get("is_err") else sys.stdout
    shown = [f"({name}) {line}\n" for line in brought.get("lines", ()) if not line.startswith(_LOG)]
    stream.write("".join(shown))
    stream.flush()
