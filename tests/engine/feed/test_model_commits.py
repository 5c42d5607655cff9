"""Commits of models at a feed's server: which are carried out, and which are known already."""

from __future__ import annotations

from collections.abc import Callable

from penstock.engine.core.identity import CheckpointId
from penstock.engine.feed.messages import FORGET, Commit
from penstock.engine.feed.model_commits import ModelCommits
from penstock.engine.feed.progress import RankProgress


class Book:
    """Carries commits out at once, and counts them."""

    def __init__(self) -> None:
        self.done: list[Commit] = []
        self.commits = ModelCommits(self.told)
        self.commits.bind = self.bind
        self.commits.on_snapshot(CheckpointId(1, 1), 0)
        self.commits.committed(CheckpointId(1, 1))

    def told(self, commit: Commit, outcome: str | None) -> None:
        self.commits.on_outcome(commit, outcome)

    def bind(
        self,
        commit: Commit,
        checkpoint: CheckpointId,
        behind: tuple[RankProgress, ...],
        done: Callable[[str | None], None],
    ) -> None:
        self.done.append(commit)
        done("")

    def ask(self, commit: Commit) -> tuple[tuple[str, str], ...]:
        return self.commits.submit([commit])


def test_name_is_bound_and_forgotten_as_often_as_it_is_asked_for_each_time_once() -> None:
    book, wanted = Book(), []
    for turn in range(3):
        wanted += [Commit("last", FORGET, origin=f"f{turn}"), Commit("last", 4 * turn, origin=f"c{turn}")]
    for commit in wanted:
        assert book.ask(commit) == book.ask(commit) == (("last", ""),)
    assert book.done == wanted


def test_what_is_heard_late_changes_nothing() -> None:
    book = Book()
    commits = [
        Commit("last", 4, origin="a"),
        Commit("last", FORGET, origin="b"),
        Commit("last", 8, origin="c"),
    ]
    for commit in [*commits, commits[1], commits[0]]:
        assert book.ask(commit) == (("last", ""),)
    assert book.done == commits


def test_ranks_that_lagged_when_a_checkpoint_was_gone_are_not_named_when_the_next_one_is_bound() -> None:
    book, commit, gone = Book(), Commit("last", 4, origin="a"), [None, ""]
    book.commits.bind = lambda commit, checkpoint, behind, done: done(gone.pop(0))
    assert book.commits.submit([commit], lambda step: (RankProgress(1, 0, 2, 0, 3, 4),)) == ()
    assert not book.commits.is_known(commit)
    book.commits.on_snapshot(CheckpointId(1, 2), 0)
    book.commits.committed(CheckpointId(1, 2))
    assert book.ask(commit) == (("last", ""),)
    assert book.commits.remarks([commit]) == ()
