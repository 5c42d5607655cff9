"""The end of a simulated feed, and the training job that reads it: real sequencer, real readers, a network between.

Trainers take a step when every rank has its slice of the next global batch, and save their model every few steps; only
then are batches acknowledged. Ranks die, and another group of another size goes on from the saved model; or one stands
still for a while. Whatever happens to the flow meanwhile, the rows that saved models have seen must be those of a run
without failures, each once, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.engine.core.identity import CheckpointId, TaskId
from penstock.engine.feed.cursor import ReadCursor
from penstock.engine.feed.messages import Answer, RankGroup, Refused
from penstock.engine.feed.sequencer import FeedSettings, Sequencer
from penstock.engine.feed.state import SequencerState
from support.simulated_model import FeedRows, Flow

if TYPE_CHECKING:
    from support.simulated_cluster import SimulatedCluster

BATCH = 5
MOST_ROWS = 12
SAVED_EVERY = 2
ASK_AGAIN = 0.02
"""Seconds after which a rank repeats what it wants."""


def feed_settings(flow: Flow) -> FeedSettings:
    return FeedSettings(BATCH, repeatable=flow.graph.deterministic, most_rows=MOST_ROWS)


class FeedEnd:
    """The sequencer in its task."""

    def __init__(self, flow: Flow, state: SequencerState[FeedRows] | None) -> None:
        settings = feed_settings(flow)
        self.sequencer: Sequencer[FeedRows]
        self.sequencer = Sequencer(settings) if state is None else Sequencer.restored(state, settings)
        #: The newest checkpoint that is known to be on its way.
        self.expected: CheckpointId | None = None

    def accepts_rows(self, passed: CheckpointId | None) -> bool:
        """While there is room, or to reach the barriers of a checkpoint that has not ``passed``."""
        hurries = self.expected is not None and (passed is None or passed < self.expected)
        return self.sequencer.ready or hurries


class Rank:
    """One process of the training job."""

    def __init__(self, group: RankGroup, rank: int, ahead: int) -> None:
        self.reader: ReadCursor[FeedRows] = ReadCursor(group, rank, ahead)
        #: Slices that no saved model has seen.
        self.taken: dict[int, tuple[int, list[str]]] = {}
        self.asked_at = float("-inf")
        self.still_until = float("-inf")


class Trainers:
    """The training job. ``seen``: the rows of the saved model, and how many global batches they were."""

    def __init__(self, cluster: SimulatedCluster, feed: TaskId, seen: list[str], saved: int) -> None:
        self._cluster = cluster
        self.feed = feed
        self.seen, self.saved = seen, saved
        self.generation = 0
        self.ranks: list[Rank] = []
        self._new_world()

    def as_of(self, cluster: SimulatedCluster, state: SequencerState[FeedRows]) -> Trainers:
        """The trainers of another job that begins with this state: with the model of that time."""
        saved = min(-(-state.first // BATCH), self.saved)
        return Trainers(cluster, self.feed, self.seen[: saved * BATCH], saved)

    def _new_world(self) -> None:
        chance = self._cluster.random
        self.generation += 1
        group = RankGroup(self.generation, chance.randint(1, 4), self.saved)
        self.ranks = [Rank(group, number, chance.randrange(3)) for number in range(group.ranks)]

    def disturb(self) -> None:
        """Perhaps a rank dies, and the group with it, or one stands still."""
        cluster = self._cluster
        if cluster.fault("kill_rank"):
            self._new_world()
        if cluster.fault("slow_rank"):
            cluster.random.choice(self.ranks).still_until = cluster.now + 1.0

    def next_at(self) -> float:
        """When somebody asks again, if nothing else happens."""
        return min(max(rank.asked_at + ASK_AGAIN, rank.still_until) for rank in self.ranks)

    # --- work ----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One rank asks for what it wants; then all train, if each has its slice."""
        rank = self._cluster.random.choice(self.ranks)
        if rank.still_until <= self._cluster.now:
            if rank.asked_at + ASK_AGAIN <= self._cluster.now:
                self._ask(rank)
            self._take(rank)
        self._train()

    def _ask(self, rank: Rank) -> None:
        rank.asked_at = self._cluster.now
        reader = rank.reader
        generation, number = reader.group.generation, reader.rank
        if reader.must_join:
            self._send(lambda feed: self._answer(rank, feed.join(reader.group, reader.saved_before)))
        taken, safe = reader.next_batch, reader.saved_before
        self._send(lambda feed: feed.acknowledge(generation, number, taken, safe))
        for batch in reader.wanted():
            self._send(lambda feed, batch=batch: self._answer(rank, feed.read(generation, number, batch)))  # type: ignore[misc]

    def _send(self, action: object) -> None:
        """To whoever is the feed when the message arrives."""

        def arrive() -> None:
            shell = self._cluster.tasks.get(self.feed)
            if shell is not None and shell.task.started and shell.task.feed is not None:
                sequencer = shell.task.feed.sequencer
                action(sequencer)  # type: ignore[operator]
                sequencer.validate()

        self._cluster.post_unreliably(arrive)

    def _answer(self, rank: Rank, answer: Answer[FeedRows] | RankGroup) -> None:
        def arrive() -> None:
            if rank not in self.ranks:
                return  # the process is gone
            if isinstance(answer, RankGroup) or (isinstance(answer, Refused) and answer.batch is None):
                rank.reader.joined(answer)
            else:
                rank.reader.on_answer(answer)

        self._cluster.post_unreliably(arrive)

    def _take(self, rank: Rank) -> None:
        due = rank.reader.next_batch
        slice = rank.reader.take()
        if slice is None:
            return
        assert slice.batch == due, f"batch {slice.batch} is given out where {due} was due"
        values = [value for rows in slice.rows for value in rows.values]
        share = rank.reader.group.share(rank.reader.rank, slice.batch_rows)
        assert slice.first == slice.batch * BATCH + share.start, f"{slice} begins at another place"
        assert len(values) == len(share), f"{slice} has {len(values)} rows instead of {len(share)}"
        rank.taken[slice.batch] = (slice.batch_rows, values)

    def _train(self) -> None:
        """Steps are taken together; the model is saved now and then, and at the end."""
        trained = min(rank.reader.next_batch for rank in self.ranks)
        at_end = all(rank.reader.is_at_end for rank in self.ranks)
        if trained - self.saved < SAVED_EVERY and not (at_end and trained > self.saved):
            return
        for batch in range(self.saved, trained):
            parts = [rank.taken.pop(batch) for rank in self.ranks]
            assert len({size for size, _ in parts}) == 1, f"ranks disagree about the size of batch {batch}"
            self.seen += [value for _, values in parts for value in values]
        self.saved = trained
        for rank in self.ranks:
            rank.reader.saved(trained)
            rank.asked_at = float("-inf")
