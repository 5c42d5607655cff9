"""Commits of models that are pending at a feed server, and which checkpoint each may name. Guarded by the server.

Rules:

1. A model that has seen so many batches goes on from any completed checkpoint that still holds the next one. The rank
   that commits acknowledges no more than these until the answer comes, so the newest one always does.
2. There may be none yet, or it may be deleted before it is pinned: then a newer one is wanted.
3. A commit is carried out once, and its outcome sent as often as it is asked for: it is known by its origin, so a name
   may be forgotten and bound as often as the user likes, and a request that is late changes nothing. Several ranks may
   commit the same; a rank that names another number of batches for the model, or others that were skipped, is refused
   by the record.
4. A model that covers more than some rank has taken is bound all the same: that is the training's business. But the
   rank that commits is told, and the model's record names the ranks that lag.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TypeAlias

from ..core.identity import CheckpointId
from ..core.state_machine import check_move
from .messages import Commit
from .progress import RankProgress

Bind: TypeAlias = Callable[[Commit, CheckpointId, tuple[RankProgress, ...], Callable[[str | None], None]], None]
"""Binds a model to a checkpoint and calls back, from any thread: "" when that is done, why it is refused, or None if
the checkpoint is not kept any more. The progress: of ranks that have not taken all that the model covers."""

REMEMBERED = 4096
"""Outcomes that are kept: more than ranks ask for at a time."""


class BindingState(Enum):
    """How far a commit has come. One that was not started, or whose checkpoint was gone, has none."""

    UNDER_WAY = "under way"
    BOUND = "bound"
    REFUSED = "refused"


LEGAL_BINDING_MOVES: Mapping[BindingState, frozenset[BindingState]] = {
    BindingState.UNDER_WAY: frozenset({BindingState.BOUND, BindingState.REFUSED}),
    BindingState.BOUND: frozenset(),
    BindingState.REFUSED: frozenset(),
}


@dataclass(slots=True)
class _Binding:
    """One commit. ``lagging``: rule 4; ``refusal``: why, of a refused one."""

    lagging: tuple[RankProgress, ...]
    state: BindingState = BindingState.UNDER_WAY
    refusal: str = ""

    @property
    def has_ended(self) -> bool:
        return self.state is not BindingState.UNDER_WAY

    def end(self, refusal: str) -> None:
        to = BindingState.REFUSED if refusal else BindingState.BOUND
        self.state = check_move("the commit of a model", LEGAL_BINDING_MOVES, self.state, to)
        self.refusal = refusal


class ModelCommits:
    """See the module's rules. ``on_bound``: takes an outcome, and the lock, on another thread."""

    def __init__(self, on_bound: Callable[[Commit, str | None], None]) -> None:
        #: set by the host of the server
        self.bind: Bind | None = None
        self._on_bound = on_bound
        #: by checkpoint that is not known to be durable: the first batch that it holds
        self._snapshots: dict[CheckpointId, int] = {}
        self._newest: tuple[CheckpointId, int] | None = None
        self._bindings: dict[Commit, _Binding] = {}
        #: those that have ended, in the order of their ends
        self._ended: deque[Commit] = deque()

    def on_new_attempt(self) -> None:
        """Snapshots of the attempt before may have been aborted."""
        self._snapshots, self._newest = {}, None

    def on_snapshot(self, checkpoint: CheckpointId, first: int) -> None:
        """The checkpoint's snapshot holds the batches from ``first`` on."""
        self._snapshots[checkpoint] = first

    def committed(self, checkpoint: CheckpointId) -> None:
        """The checkpoint is durable."""
        first = self._snapshots.get(checkpoint)
        if first is not None:
            self._newest = (checkpoint, first)
        self._snapshots = {known: batch for known, batch in self._snapshots.items() if known > checkpoint}

    def on_outcome(self, commit: Commit, outcome: str | None) -> None:
        """What came of a commit; None: its checkpoint was gone."""
        if outcome is None:
            del self._bindings[commit]
            self._newest = None
            return
        self._bindings[commit].end(outcome)
        self._ended.append(commit)
        if len(self._ended) > REMEMBERED:
            del self._bindings[self._ended.popleft()]

    def is_known(self, commit: Commit) -> bool:
        """Whether it was started."""
        return commit in self._bindings

    def submit(
        self, commits: Sequence[Commit], lagging: Callable[[int], tuple[RankProgress, ...]] = lambda batch: ()
    ) -> tuple[tuple[str, str], ...]:
        """Start those that have not been started; the outcomes of those that have ended. ``lagging``: the ranks that
        have not taken all batches before one."""
        for commit in commits:
            newest = self._newest
            if commit in self._bindings or self.bind is None or newest is None or 0 <= commit.step < newest[1]:
                continue
            slow = lagging(commit.step)
            self._bindings[commit] = _Binding(slow)
            self.bind(commit, newest[0], slow, partial(self._on_bound, commit))
        return self.outcomes(commits)

    def outcomes(self, commits: Sequence[Commit]) -> tuple[tuple[str, str], ...]:
        """Of those that have ended: "", or why they were refused."""
        known = ((commit.model, self._bindings.get(commit)) for commit in commits)
        return tuple((model, found.refusal) for model, found in known if found is not None and found.has_ended)

    def remarks(self, commits: Sequence[Commit]) -> tuple[tuple[str, str], ...]:
        """Rule 4, for those that are bound."""
        known = ((commit.model, self._bindings.get(commit)) for commit in commits)
        return tuple(
            (model, "; ".join(map(str, found.lagging)))
            for model, found in known
            if found is not None and found.state is BindingState.BOUND and found.lagging
        )

    def is_at_work(self, commits: Sequence[Commit]) -> bool:
        """Whether one of them is being carried out."""
        found = (self._bindings.get(commit) for commit in commits)
        return any(each is not None and not each.has_ended for each in found)

    def wants_checkpoint(self, commits: Sequence[Commit]) -> bool:
        """Whether a newer checkpoint has to be taken first."""
        return any(commit not in self._bindings for commit in commits)
