"""Changes of the weights of mixtures while the job runs.

Rules:

1. First the mixture is told where the change begins and holds there, then the log gets it, then the mixture gets it and
   goes on. So no row from there on leaves before the log says what it goes by, and every attempt after that is deployed
   with all that the log has.
2. A mixture that has come too far says so, and nothing is written. It may have been further in an attempt before: who
   asks has found, while the present one runs, that nobody outside has rows from there on. Where another attempt runs
   when the mixture is to hold, that has to be found again.
3. While it is not known whether the entry stands nothing is deployed: an attempt without it might pass the position.
   A write that fails is tried again.
4. One change at a time, in the order in which they were asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from enum import Enum

from ...engine.core.identity import Attempt, Reweight, TaskId
from ...engine.core.state_machine import check_move
from ..model.commands import SteerMixture
from ..model.events import MixtureSteered, ReweightRequested
from ..model.job_states import TaskStatus
from ..model.manifest import Reweighted
from ..model.statistics import ReweightResult
from ..state.context import Context

REMEMBERED = 64
_AT_WORK = frozenset({TaskStatus.RUNNING, TaskStatus.DATA_ENDED})


class ReweightState(Enum):
    """Where the oldest change is."""

    IDLE = "idle"
    HOLDING = "holding"
    """The mixture is to hold, and has not answered."""
    STORING = "storing"
    """It holds, and the log is to have the change."""
    RELEASING = "releasing"
    """The log has it, or it was refused; the mixture is to go on, and has not answered."""


LEGAL_REWEIGHT_MOVES: Mapping[ReweightState, frozenset[ReweightState]] = {
    ReweightState.IDLE: frozenset({ReweightState.HOLDING}),
    ReweightState.HOLDING: frozenset({ReweightState.STORING, ReweightState.RELEASING}),
    ReweightState.STORING: frozenset({ReweightState.RELEASING}),
    ReweightState.RELEASING: frozenset({ReweightState.IDLE}),
}


class Reweighting:
    """See the module's rules."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._state = ReweightState.IDLE
        #: Not in the log yet, oldest first.
        self._waiting: deque[ReweightRequested] = deque()
        #: Whose answer is awaited, and since when.
        self._asked: tuple[Attempt, float] | None = None
        #: The attempt that may hold, and its mixture, which is to go on then.
        self._holder: Attempt | None = None
        self._operator = ""
        #: How changes turned out, the newest last.
        self.results: deque[ReweightResult] = deque(maxlen=REMEMBERED)

    @property
    def is_storing(self) -> bool:
        """Whether it is open what the log says (rule 3)."""
        return self._state is ReweightState.STORING

    def request(self, event: ReweightRequested) -> None:
        """Note what is wanted."""
        reweight = event.reweight
        asked = {each.reweight.request for each in self._waiting} | {each.request for each in self.results}
        if reweight.request in asked:
            return
        if any(each.request == reweight.request for each in self._context.reweights):
            self.results.append(ReweightResult(reweight.request))  # a coordinator before this one has written it
            return
        self._waiting.append(event)

    def answered(self, event: MixtureSteered) -> None:
        """The mixture's current attempt has carried out an order."""
        if self._state is ReweightState.RELEASING:
            if event.limit is None and event.known == len(self._known(event.operator)):
                self._move(ReweightState.IDLE)
            return
        wanted = self._waiting[0].reweight if self._waiting else None
        if wanted is None or self._state is not ReweightState.HOLDING:
            return
        known = len(self._known(wanted.operator))  # an answer that is late may be about the change before
        if (event.operator, event.limit, event.known) != (wanted.operator, wanted.position, known):
            return
        if event.possible is None:
            self._refuse(wanted, "its rows have all left, or an earlier release began to count them")
        elif event.possible <= wanted.position:
            self._move(ReweightState.STORING)
        else:
            self._refuse(wanted, "its row there has left, or has been drawn", event.possible)

    def advance(self) -> None:
        """Do what has become possible."""
        if self._state is ReweightState.IDLE and self._waiting:
            self._move(ReweightState.HOLDING)
        if self._state is ReweightState.HOLDING:
            self._hold(self._waiting[0])
        if self._state is ReweightState.STORING:
            self._store(self._waiting[0].reweight)
        if self._state is ReweightState.RELEASING:
            self._release()

    def stored(self, entry: Reweighted) -> None:
        """It is durable."""
        self._context.reweigh((entry.reweight,))
        if self._waiting and self._waiting[0].reweight.request == entry.reweight.request:
            self._waiting.popleft()
            self.results.append(ReweightResult(entry.reweight.request))
            self._operator = entry.reweight.operator
            self._move(ReweightState.RELEASING)

    def resend(self, before: float) -> None:
        """Give an order again that had no answer for too long."""
        if self._asked is not None and self._asked[1] <= before:
            self._asked = None
            self.advance()

    # --- parts ---------------------------------------------------------------------------------------------------

    def _hold(self, event: ReweightRequested) -> None:
        wanted = event.reweight
        task = self._task(wanted.operator)
        record = None if task is None else self._context.tasks[task]
        if task is None or record is None:
            self._refuse(wanted, f"no single task has {wanted.operator}")
        elif record.attempt != event.attempt:
            self._refuse(wanted, "its task was started anew", again=True)
        elif record.state is TaskStatus.FINISHED:
            self._refuse(wanted, "its rows have all left")
        else:
            self._steer(task, wanted.operator, wanted.position)

    def _store(self, wanted: Reweight) -> None:
        log = self._context.log
        if log.is_idle:
            generation = self._context.generation
            self._context.order(log.store(Reweighted(number=log.next_number, generation=generation, reweight=wanted)))

    def _release(self) -> None:
        task = self._task(self._operator)
        record = None if task is None else self._context.tasks[task]
        # an attempt that was deployed since then knows all of it and holds nowhere
        if task is None or record is None or record.state not in _AT_WORK or self._holder != record.attempt:
            self._move(ReweightState.IDLE)
        else:
            self._steer(task, self._operator, None)

    def _steer(self, task: TaskId, operator: str, limit: int | None) -> None:
        """Order it, unless that attempt has been asked."""
        record = self._context.tasks[task]
        attempt = record.attempt
        if record.state not in _AT_WORK or attempt is None or (self._asked is not None and self._asked[0] == attempt):
            return
        self._asked, self._holder = (attempt, self._context.now), attempt
        self._context.order(SteerMixture(task, attempt, operator, self._known(operator), limit))

    def _refuse(self, wanted: Reweight, why: str, possible: int | None = None, *, again: bool = False) -> None:
        self._waiting.popleft()
        self.results.append(ReweightResult(wanted.request, why, possible, again))
        self._operator = wanted.operator
        self._move(ReweightState.RELEASING)

    def _known(self, operator: str) -> tuple[Reweight, ...]:
        return tuple(each for each in self._context.reweights if each.operator == operator)

    def _task(self, operator: str) -> TaskId | None:
        """The one task that has the operator."""
        graph = self._context.graph
        vertex = next((name for name, each in graph.operators.items() if operator in each), None)
        return TaskId(vertex, 0) if vertex is not None and graph.parallelism[vertex] == 1 else None

    def _move(self, to: ReweightState) -> None:
        self._state = check_move("the change of a mixture", LEGAL_REWEIGHT_MOVES, self._state, to)
        self._asked = None
