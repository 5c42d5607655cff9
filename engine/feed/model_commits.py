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

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from ..core.identity import CheckpointId
from .messages import Commit
from .progress import RankProgress

Bind: TypeAlias = Callable[[Commit, CheckpointId, tuple[RankProgress, ...], Callable[[str | None], None]], None]
"""Binds a model to a checkpoint and calls back, from any thread: "" when that is done, why it is refused, or None if
the checkpoint is not kept any more. The progress: of ranks that have not taken all that the model covers."""

REMEMBERED = 4096
"""Outcomes that are kept: more than ranks ask for at a time."""


class ModelCommits:
    """See the module's rules. ``on_bound``: takes an outcome, and the lock, on another thread."""

    def __init__(self, on_bound: Callable[[Commit, str | None], None]) -> None:
        #: set by the host of the server
        self.bind: Bind | None = None
        self._on_bound = on_bound
        #: by checkpoint that is not known to be durable: the first batch that it holds
        self._snapshots: dict[CheckpointId, int] = {}
        self._newest: tuple[CheckpointId, int] | None = None
        #: None: under way
        self._outcomes: dict[Commit, str | None] = {}
        #: of those that are bound or under way, where there is something: rule 4
        self._lagging: dict[Commit, tuple[RankProgress, ...]] = {}

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
        self._outcomes.pop(commit, None)
        if outcome is None:
            self._newest = None
            return
        self._outcomes[commit] = outcome
        ended = [each for each, found in self._outcomes.items() if found is not None]
        for known in ended[:-REMEMBERED]:
            del self._outcomes[known]
            self._lagging.pop(known, None)

    def is_known(self, commit: Commit) -> bool:
        """Whether it was started."""
        return commit in self._outcomes

    def submit(
        self, commits: Sequence[Commit], lagging: Callable[[int], tuple[RankProgress, ...]] = lambda batch: ()
    ) -> tuple[tuple[str, str], ...]:
        """Start those that have not been started; the outcomes of those that have ended. ``lagging``: the ranks that
        have not taken all batches before one."""
        for commit in commits:
            newest = self._newest
            if commit in self._outcomes or self.bind is None or newest is None or 0 <= commit.step < newest[1]:
                continue
            self._outcomes[commit] = None
            if slow := lagging(commit.step):
                self._lagging[commit] = slow
            self.bind(commit, newest[0], slow, partial(self._on_bound, commit))
        known = ((commit.model, self._outcomes.get(commit)) for commit in commits)
        return tuple((model, outcome) for model, outcome in known if outcome is not None)

    def remarks(self, commits: Sequence[Commit]) -> tuple[tuple[str, str], ...]:
        """Rule 4, for those that are bound."""
        bound = [commit for commit in commits if self._outcomes.get(commit) == "" and commit in self._lagging]
        return tuple((commit.model, "; ".join(map(str, self._lagging[commit]))) for commit in bound)

    def wants_checkpoint(self, commits: Sequence[Commit]) -> bool:
        """Whether a newer checkpoint has to be taken first."""
        return any(commit not in self._outcomes for commit in commits)
