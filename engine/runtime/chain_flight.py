"""What a chain of operators is to do, and what is under way in it at a cut, as data.

Rules of what is under way:

1. It lists what would have gone on, the next thing first: a batch that waits before an operator, or a call of an
   operator that is made again (``Traits.cut``). Calls that cannot be made again have come to their end; what they gave
   waits before the next operator.
2. It fits the chain that it was taken of, and no other one.
3. Rows are beside it: a batch for each entry with ``has_batch``, in that order, with the schema of the operator's port.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from ..core.elements import Tag
from ..core.operator import PortPlace


class What(Enum):
    """What a step does: a call of an operator, by the name of the method, or something that concerns the driver."""

    __hash__ = object.__hash__  # members are compared by identity; Enum hashes their names, in Python

    END_ROUND = "end_round"
    END_PORT = "end_port"
    FINISH = "finish"
    ROUND_ENDS = "round ends"
    PORT_ENDS = "port ends"
    """An element has come on a port."""
    FORWARD = "forward rounds"
    """End, in the rest of the chain and downstream, every round that all live ports have ended."""
    SAY_ROUND = "say that a round has ended"
    PORT_HAS_ENDED = "port has ended"
    SAY_END = "say that the data have ended"


CALLS = frozenset({What.END_ROUND, What.END_PORT, What.FINISH})


class ControlStep(msgspec.Struct, frozen=True):
    """A step of what a control element means. ``is_last``: no other port goes on."""

    what: What
    operator: int = 0
    port: int = 0
    round: int = -1
    is_last: bool = False


class Aside(msgspec.Struct, frozen=True):
    """A batch for a port of an operator, or a call of one of its methods, which has emitted ``given`` rows of each lane
    and is made again: as many are left out then."""

    operator: int
    port: int = 0
    #: "": the batch waits
    method: str = ""
    round: int = 0
    has_batch: bool = False
    given: dict[int, int] = {}


class OperatorPlace(msgspec.Struct, frozen=True):
    """How far the ports of an operator have come (as of before a call that is made again), the last tag that it has
    given in each lane, and whether it gives what it holds because its data have ended. ``taken``: if it takes batches
    in parts, for each port the tag of the last part of each lane."""

    ports: tuple[PortPlace, ...] = ()
    last: dict[int, Tag] = {}
    finishing: bool = False
    taken: tuple[dict[int, Tag], ...] = ()


class ChainFlight(msgspec.Struct, frozen=True):
    """See the module's rules. ``places``: one for each operator."""

    aside: tuple[Aside, ...] = ()
    places: tuple[OperatorPlace, ...] = ()

    @property
    def waiting(self) -> int:
        """Batches that wait before the first operator."""
        return sum(1 for each in self.aside if each.operator == 0 and not each.method)
