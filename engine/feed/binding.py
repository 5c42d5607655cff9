"""Commits of models that are under way at a feed's desk, and which checkpoint each may name. Guarded by the desk.

Rules:

1. A model that has seen so many batches goes on from any completed checkpoint that still holds the next one. The rank
   that commits says that it has taken no more than these until the answer comes, so the newest one always does.
2. There may be none yet, or it may be deleted before it is pinned: then a newer one is wanted.
3. A commit is carried out once, and its outcome told as often as it is asked for: it is known by its origin, so a name
   may be forgotten and bound as often as the user likes, and what is heard late changes nothing. Several ranks may
   commit the same; whoever names another number of batches for the model, or others that were skipped, is refused by
   the record.
4. A model that covers more than some rank has taken is bound all the same: that is the training's business. But it is
   said, where the model was committed and in its record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from ..core.identity import CheckpointId
from .messages import Commit
from .ranks import RankPlace

Bind: TypeAlias = Callable[[Commit, CheckpointId, tuple[RankPlace, ...], Callable[[str | None], None]], None]
"""Binds a model to a checkpoint and tells, from any thread: "" when that is done, why it is refused, or None
if the checkpoint is not kept any more. The places: of ranks that have not taken all that the model covers."""

REMEMBERED = 4096
"""Outcomes that are kept: more than ranks ask for at a time."""


class Bindings:
    """See the module's rules. ``told``: takes an outcome, and the lock, on another thread."""

    def __init__(self, told: Callable[[Commit, str | None], None]) -> None:
        #: set by whoever hosts the desk
        self.bind: Bind | None = None
        self._told = told
        #: by checkpoint that is not known to be complete: the first batch that it holds
        self._cuts: dict[CheckpointId, int] = {}
        self._newest: tuple[CheckpointId, int] | None = None
        #: None: under way
        self._outcomes: dict[Commit, str | None] = {}
        #: of those that are bound or under way, where there is something: rule 4
        self._behind: dict[Commit, tuple[RankPlace, ...]] = {}

    def opened(self) -> None:
        """The operator begins anew: what is known of its cuts may be nothing any more."""
        self._cuts, self._newest = {}, None

    def cut(self, checkpoint: CheckpointId, first: int) -> None:
        """A checkpoint was cut that holds the batches from ``first`` on."""
        self._cuts[checkpoint] = first

    def committed(self, checkpoint: CheckpointId) -> None:
        """It stands in the log."""
        first = self._cuts.get(checkpoint)
        if first is not None:
            self._newest = (checkpoint, first)
        self._cuts = {known: batch for known, batch in self._cuts.items() if known > checkpoint}

    def outcome(self, commit: Commit, outcome: str | None) -> None:
        """What came of a commit; None: its checkpoint was gone."""
        self._outcomes.pop(commit, None)
        if outcome is None:
            self._newest = None
            return
        self._outcomes[commit] = outcome
        ended = [known for known, said in self._outcomes.items() if said is not None]
        for known in ended[:-REMEMBERED]:
            del self._outcomes[known]
            self._behind.pop(known, None)

    def is_known(self, commit: Commit) -> bool:
        """Whether it was begun."""
        return commit in self._outcomes

    def note(
        self, commits: Sequence[Commit], behind: Callable[[int], tuple[RankPlace, ...]] = lambda batch: ()
    ) -> tuple[tuple[str, str], ...]:
        """Begin what has not begun; what is known of each that has ended. ``behind``: the ranks that have not taken all
        batches before one."""
        for commit in commits:
            newest = self._newest
            if commit in self._outcomes or self.bind is None or newest is None or 0 <= commit.step < newest[1]:
                continue
            self._outcomes[commit] = None
            if slow := behind(commit.step):
                self._behind[commit] = slow
            self.bind(commit, newest[0], slow, partial(self._told, commit))
        known = ((commit.model, self._outcomes.get(commit)) for commit in commits)
        return tuple((model, outcome) for model, outcome in known if outcome is not None)

    def remarks(self, commits: Sequence[Commit]) -> tuple[tuple[str, str], ...]:
        """Rule 4, for those that are bound."""
        bound = [commit for commit in commits if self._outcomes.get(commit) == "" and commit in self._behind]
        return tuple((commit.model, "; ".join(map(str, self._behind[commit]))) for commit in bound)

    def wants_checkpoint(self, commits: Sequence[Commit]) -> bool:
        """Whether a newer checkpoint has to be taken first."""
        return any(commit not in self._outcomes for commit in commits)
