"""``Reader``: one rank's batches of a feed, for a training loop. It knows neither Ray nor torch.

Rules:

1. Of every global batch a rank gets its slice, in order, once; of a batch with fewer rows than ranks a slice may be
   empty, so that all ranks take equally many steps.
2. The place in the feed is one number, the global batches taken so far, over all epochs. It is the same in all ranks,
   and means the same at any number of ranks. The epoch follows from it: it is that of the batch that comes next.
3. The ranks of a world say where it starts, and must say the same: 0, or what ``load_state_dict`` was given.
4. A reader belongs to one thread at a time.
5. Batches that a handle skips are taken and not handed out; steps count them. All ranks must skip the same: give them
   one handle. What a state skips, what a model's record does and what the handle skips are all skipped; a state that
   skips other batches than the record of its model is refused.
6. An iteration ends with the epoch that it began in; the next one goes on with the next epoch. One that was left goes
   on where it was, in the same epoch if that has more.
7. A framework that fetches a batch ahead of its model (``loader``) has seen all but the last one that it was given, and
   that one, too, when it has been told that there are no more.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Annotated, Any, Literal, Self

import pyarrow as pa

from ...engine.arguments import Seconds, Within, checked
from ...engine.errors import ConfigurationError
from ...engine.feed_messages import FORGET, Commit, Ranges, Slice
from .arrays import to_numpy
from .intake import Intake
from .link import FeedRoute
from .loader import Loader
from .models import in_words, record_of
from .torch_batches import torch_batches

CLOSE_SECONDS = 30.0
"""How long the end of a reader waits for the checkpoint that says that everything was read."""

Ahead = Annotated[int, Within(0, 4096)]
"""How many slices are fetched ahead."""
BatchFormat = Literal["pyarrow", "numpy"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeedHandle:
    """A feed of a job, wherever it runs: give it to the ranks (it can be pickled) and let each make its ``reader``."""

    job: str
    name: str
    batch_size: int
    schema: pa.Schema
    route: FeedRoute
    drop_last: bool = False
    rows: int | None = None
    """Of an epoch, if the flow's inputs tell."""
    edits: Ranges = ()
    """Batches that are not handed out."""
    fingerprint: str = ""
    """Of flow and data."""
    start: int = 0
    """The first batch that readers hand out."""
    model: str = ""
    """The model that they go on from."""
    model_edits: Ranges | None = None
    """What its record says that is skipped, if it says so."""
    epochs: int = 1
    """How often the data are read."""
    start_epoch: int = 0
    """That of the first batch that readers hand out."""

    @property
    def batches(self) -> int | None:
        """Global batches of an epoch, if known."""
        if self.rows is None:
            return None
        whole, rest = divmod(self.rows, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    @checked(ConfigurationError)
    def skip(self, steps: range) -> FeedHandle:
        """The feed without these global batches, counted over all epochs like ``Reader.step``: no rank gets them, at a
        peak of the loss, say. Their rows keep their positions, and all other batches their numbers. The edit goes into
        ``state_dict`` and into the record of every model that is committed, so that whoever goes on from one knows what
        it has not seen, and skips the same."""
        if steps.step != 1 or steps.start < 0 or not len(steps):
            raise ConfigurationError(
                f"steps {steps} cannot be skipped", "give consecutive batches, range(first, end), from 0 on", self.name
            )
        return replace(self, edits=united(self.edits, [(steps.start, steps.stop)]))

    @checked(ConfigurationError)
    def resume(self, model_uri: str) -> FeedHandle:
        """The feed from where a model has come to: the one that ``Reader.commit`` was called with. Raises
        ConfigurationError if it is not bound to this feed."""
        path = self.route.folder
        found = record_of(path, self.job, self.name, model_uri, self.batch_size, self.fingerprint)
        edits = united(self.edits, found.skipped or ())
        place = replace(self, start=found.step, start_epoch=found.epoch, model=model_uri)
        return replace(place, edits=edits, model_edits=found.skipped)

    @checked(ConfigurationError)
    def reader(
        self,
        rank: int = 0,
        world_size: int = 1,
        *,
        prefetch_batches: Ahead | None = None,
        timeout: Seconds | None = None,
    ) -> Reader:
        """The reader of one rank. ``prefetch_batches``: slices that are fetched ahead, on a thread; by default as many
        as have 4 MiB, but 4 to 32. ``timeout``: seconds to wait for a batch before a TimeoutError says for what, or
        whom, the rank waits; None: for ever."""
        if not 0 <= rank < world_size:
            raise ConfigurationError(f"rank {rank} of {world_size}", "ranks count from 0 to world_size - 1")
        return Reader(self, rank, world_size, prefetch_batches, timeout)


class Reader:
    """See the module's rules. Made by :meth:`FeedHandle.reader`."""

    def __init__(
        self, feed: FeedHandle, rank: int, world_size: int, prefetch: int | None, timeout: Seconds | None
    ) -> None:
        self.feed = feed
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout
        self._prefetch = prefetch
        self._start, self._epoch = feed.start, feed.start_epoch
        self._edits = feed.edits
        self._intake: Intake | None = None
        self._closed = False
        #: the loop asks for a batch before its model has seen the one before; and the place before that one (rule 7)
        self._fetches_ahead = False
        self._seen: tuple[int, int] | None = None
        atexit.register(self.close)

    # ------------------------------------------------------------------ batches

    @property
    def step(self) -> int:
        """Global batches taken so far, over all epochs."""
        return self._place[0]

    @property
    def epoch(self) -> int:
        """The epoch of the batch that comes next, from 0; behind the last one ``feed.epochs``."""
        return self._place[1]

    @property
    def _place(self) -> tuple[int, int]:
        if self._seen is not None:
            return self._seen
        return self._start if self._intake is None else self._intake.next_batch, self._epoch

    @checked(ConfigurationError)
    def iter_batches(self, *, batch_format: BatchFormat = "pyarrow") -> Iterator[Any]:
        """The slices of the batches from here to the end of the epoch: ``pyarrow.RecordBatch``, or a dictionary of
        NumPy arrays. The next call goes on with the next epoch; after a loop that was left, with the next batch."""
        if batch_format not in ("pyarrow", "numpy"):
            raise ConfigurationError(f"batch_format={batch_format!r}", 'give "pyarrow" or "numpy"')
        self._join()
        return self._batches(batch_format)

    def _batches(self, batch_format: BatchFormat) -> Iterator[Any]:
        for found in self._take_epoch():
            records = self._records(found)
            yield records if batch_format == "pyarrow" else to_numpy(records)

    @checked(ConfigurationError)
    def iter_torch_batches(
        self,
        *,
        prefetch_batches: Ahead | None = None,
        dtypes: Any = None,
        device: Any = None,
        collate_fn: Callable[[dict[str, Any]], Any] | None = None,
        pin_memory: bool = False,
    ) -> Iterator[Any]:
        """The slices as dictionaries of torch tensors, or what ``collate_fn`` makes of NumPy arrays. The arguments are
        Ray Data's. ``dtypes``: one for all columns, or by name; ``device``: where the tensors go, from pinned memory if
        ``pin_memory``. ``prefetch_batches`` replaces the reader's, if nothing has been read yet."""
        if prefetch_batches is not None and self._intake is None:
            self._prefetch = prefetch_batches
        return torch_batches(self.iter_batches(), dtypes, device, collate_fn, pin_memory)

    @checked(ConfigurationError)
    def loader(self, *, fetches_ahead: bool = True, **arguments: Any) -> Loader:
        """What Lightning and its like take for a data loader: iterating gives an epoch of ``iter_torch_batches`` with
        these arguments, and there are ``state_dict`` and ``load_state_dict``. ``fetches_ahead``: the framework asks for
        a batch before the model has seen the one before, as Lightning and Accelerate do; steps, states and models count
        the batches that the model has seen."""
        self._fetches_ahead = fetches_ahead
        return Loader(self, partial(self.iter_torch_batches, **arguments))

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """The rows of the slices, as dictionaries. Leaving the loop leaves the rest of the slice."""
        for records in self.iter_batches():
            yield from records.to_pylist()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.iter_batches()

    def __len__(self) -> int:
        """Global batches of the epoch, but for those that are skipped; TypeError if that is not known (yet)."""
        known = None if self._intake is None or self.feed.epochs > 1 else self._intake.batches
        known = self.feed.batches if known is None else known
        if known is None:
            raise TypeError(f"the number of batches of feed {self.feed.name!r} is not known before its end")
        begin = min(self._epoch, self.feed.epochs - 1) * known
        skipped = (min(end, begin + known) - max(first, begin) for first, end in self._edits)
        return known - sum(max(0, each) for each in skipped)

    def _join(self) -> Intake:
        """The intake, which joins the world when it begins."""
        if self._closed:
            raise ConfigurationError(f"the reader of rank {self.rank} is closed", "make a new one", self.feed.name)
        if self._intake is None:
            feed, link = self.feed, self.feed.route.open()
            self._intake = Intake(link, feed.name, self.rank, self.world_size, self._start, self._prefetch)
        return self._intake

    def _take_epoch(self) -> Iterator[Slice[pa.RecordBatch]]:
        """The slices up to the end of an epoch; behind the last epoch the feed has ended."""
        intake = self._join()
        while (found := self._take(intake)) is not None:
            if not self._skips(found.batch):  # else it is taken, so that nobody waits for it
                yield found
            if found.last and found.epoch + 1 < self.feed.epochs:
                break
        self._seen = None  # who asks for more has had all

    def _take(self, intake: Intake) -> Slice[pa.RecordBatch] | None:
        before = intake.next_batch, self._epoch
        found = intake.take(self.timeout)
        if found is not None:
            self._epoch = found.epoch + found.last
            self._seen = before if self._fetches_ahead else None
        return found

    def _skips(self, batch: int) -> bool:
        return any(first <= batch < end for first, end in self._edits)

    def _records(self, found: Slice[pa.RecordBatch]) -> pa.RecordBatch:
        if len(found.rows) == 1:
            return found.rows[0]
        pieces = pa.Table.from_batches(found.rows, self.feed.schema).combine_chunks().to_batches()
        return pieces[0] if pieces else pa.RecordBatch.from_pylist([], schema=self.feed.schema)

    # ------------------------------------------------------------------ the place

    def state_dict(self) -> dict[str, Any]:
        """The place in the feed, to be saved with the model: the same in every rank. It counts what was handed out; for
        loops that fetch ahead of their model there is ``loader``."""
        return {
            "version": 1,
            "feed": self.feed.name,
            "batch_size": self.feed.batch_size,
            "step": self.step,
            "epoch": self.epoch,
            "skipped": [list(each) for each in self._edits],
        }

    @checked(ConfigurationError)
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the place of a saved model, at any number of ranks. All ranks must load the same."""
        found = (state.get("version"), state.get("feed"), state.get("batch_size"))
        if found != (1, self.feed.name, self.feed.batch_size):
            raise ConfigurationError(
                f"the state is that of feed {state.get('feed')!r} with batches of {state.get('batch_size')} rows, not "
                f"of {self.feed.name!r} with {self.feed.batch_size}",
                "load the state that was saved with this feed; the global batch size must not change",
            )
        step, epoch = _count(state, "step"), _count(state, "epoch", 0)
        if self.feed.model and step != self.feed.start:
            raise ConfigurationError(
                f"the state is that of step {step}, but model {self.feed.model!r} has come to step {self.feed.start}",
                "load the state that was saved with this model, or none",
            )
        skipped = united((), [(int(first), int(end)) for first, end in state.get("skipped", ())])
        if self.feed.model_edits not in (None, skipped):
            raise ConfigurationError(
                f"the state is that of a run with {in_words(skipped)} skipped, but model {self.feed.model!r} was "
                f"committed with {in_words(self.feed.model_edits or ())} skipped",
                "load the state that was saved with this model, or none",
            )
        self._edits = united(self.feed.edits, skipped)
        if self._intake is not None:
            self._intake.close(0.0)
        self._start, self._epoch, self._intake = step, epoch, None
        self._seen = None

    # ------------------------------------------------------------------ models

    @checked(ConfigurationError)
    def commit(self, model_uri: str) -> None:
        """Bind a model that has seen all batches so far to the feed: ``feed.resume(model_uri)`` goes on behind them,
        and ``ps.run(…, resume_model=model_uri)`` brings back what that needs. It costs nothing here: the checkpoint is
        found and kept on other threads (``flush``). One rank's call suffices; others may call at the same step."""
        self._join().commit(Commit(model_uri, self.step, self._edits, self.epoch))

    @checked(ConfigurationError)
    def flush(self, timeout: Seconds | None = None) -> None:
        """Wait until all models are bound. Raises ConfigurationError if one was refused, because it is bound to another
        step; TimeoutError after ``timeout`` seconds."""
        if self._intake is not None:
            self._intake.flush(timeout)

    @checked(ConfigurationError)
    def forget(self, model_uri: str) -> None:
        """Nobody goes on from this model any more: let go of its checkpoint."""
        self._join().commit(Commit(model_uri, FORGET))

    # ------------------------------------------------------------------ the end

    @checked(ConfigurationError)
    def close(self, timeout: Seconds = CLOSE_SECONDS) -> None:
        """End the reader. At the end of the feed this waits for the checkpoint that says that everything was read: a
        restart of the feed's task before that would wait for ranks that are gone."""
        atexit.unregister(self.close)
        intake, self._intake = self._intake, None
        self._closed = True
        if intake is not None:
            self._start = intake.next_batch
            if not intake.close(timeout):
                _log.warning(
                    "rank %d leaves feed %r before a checkpoint says that it has read everything (%s)",
                    self.rank,
                    self.feed.name,
                    intake.waits_for,
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(CLOSE_SECONDS if kind is None else 0.0)


def united(edits: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges in ascending order; those that touch are one."""
    found: list[tuple[int, int]] = []
    for first, end in sorted([*edits, *others]):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return tuple(found)


def _count(state: Mapping[str, Any], name: str, default: int | None = None) -> int:
    found = state.get(name, default)
    if not isinstance(found, int) or found < 0:
        raise ConfigurationError(f"the state names the {name} {found!r}", "load a state that state_dict() gave")
    return found
