"""Where a run is, and whether it is still there. No Ray.

A run holds an abstract unix socket, which bears the name of its claim, from the claim to the end of the job. The socket
goes with its process, leaves no file, and is seen by all processes of the machine. A caller that cannot reach it knows
nothing: the run may be on another machine.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from ...coordinator.log.recovery import newest_claim, say_whose
from ...coordinator.model.events import Failure
from ...coordinator.model.manifest import Claim, Claimant, LogEntry
from ..transport.dialling import this_machine


def this_claimant() -> Claimant:
    """This process, for a run that begins now."""
    began = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return Claimant(host=socket.gethostname(), process=os.getpid(), began=began, machine=this_machine())


class Presence:
    """What says to others on this machine that a run is going on."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None

    def begin(self, owner: str) -> None:
        """The run of this claim goes on. Where there are no such sockets nobody learns of it."""
        if self._socket is not None or not owner:
            return
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.bind(_name_of(owner))
            made.listen()
        except OSError:
            made.close()
        else:
            self._socket = made

    def end(self) -> None:
        """It does not any more. What a fork has inherited of the socket answers nobody."""
        held, self._socket = self._socket, None
        if held is not None:
            with suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
            held.close()


def find_running(entries: Sequence[LogEntry]) -> str:
    """The owner of the newest claim, if its run is known to be going on; else ""."""
    claim = newest_claim(entries)
    return claim.owner if claim is not None and claim.by is not None and _is_there(claim, claim.by) else ""


def in_words(refusal: Failure, entries: Sequence[LogEntry], folder: str) -> Failure:
    """The refusal of a run that wants the checkpoint folder, with who has it."""
    return say_whose(refusal, entries, find_running(entries), f"the checkpoint folder {folder}")


def _is_there(claim: Claim, by: Claimant) -> bool:
    if by.machine == this_machine() and not os.path.exists(f"/proc/{by.process}"):
        return False  # the socket is that of a fork that has survived it
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.setblocking(False)
        error = caller.connect_ex(_name_of(claim.owner))
    return error in (0, errno.EAGAIN)


def _name_of(owner: str) -> str:
    return f"\0penstock-run-{owner}"
