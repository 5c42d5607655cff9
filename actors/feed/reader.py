"""``Reader``: one rank's batches of a feed, for a training loop. It knows neither Ray nor torch.

Rules:

1. Of every global batch a rank gets its slice, in order, once; of a batch with fewer rows than ranks a slice may be
   empty, so that all ranks take equally many steps.
2. The position in the feed is one number, the global batches taken so far, over all epochs. It is the same in all
   ranks, and means the same at any number of ranks. The epoch follows from it: it is that of the batch that comes next.
3. The ranks of a group name where it starts, and must name the same: 0, or what ``load_state_dict`` was given.
4. A reader belongs to one thread at a time.
5. Batches that a handle skips are taken and not handed out; steps count them. All ranks must skip the same: give them
   one handle. What a state skips, what a model's record does and what the handle skips are all skipped; a state that
   skips other batches than the record of its model is refused.
6. An iteration ends with the epoch that it began in; the next one goes on with the next epoch. One that was left goes
   on where it was, in the same epoch if that has more.
7. A framework that fetches a batch ahead of its model (``loader``) has seen all but the last one that it was given, and
   that one, too, when it has been told that there are no more.
8. A batch that cannot be given in the form that is wanted has not been taken: a call for another form gets it.
9. A model that is refused is an error at the next batch, at ``flush`` or at ``close``, whichever comes first, once.
10. A reader that has begun belongs to its process: what a fork inherits of it gives nothing, and it cannot be pickled.
11. An iteration ends when its reader is closed or given another position: what it had fetched is not handed out.
12. A loop that fails has not seen its last batch, so a reader that is closed by an error does not let go of the feed.
13. In a mesh a rank is the rank that the mesh makes it (``mesh``), and its slice has its part of the sequences.
"""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Annotated, Any, Literal, Self

import pyarrow as pa

from ...engine.arrow.arrays import Arrays, Shapes
from ...engine.arrow.combining import combine
from ...engine.core.arguments import LARGEST, Seconds, Within, checked
from ...engine.core.byte_sizes import bytes_of
from ...engine.core.errors import ConfigurationError, DataError, PenstockError
from ...engine.feed.messages import FORGET, Ask, Commit, Ranges, Slice
from ...engine.feed.sink import CONTIGUOUS
from ...engine.feed.status import FeedStatus
from ..storage.log import read_log_in
from .collating import Collate, Collators, SlicePlace
from .jax_batches import JaxBatches
from .link import BrokenFeedLinkError, EndedRoute, FeedRoute
from .making import MadeAhead
from .mesh import MeshPlace, MeshRoles, Names, place_of
from .models import bind_at_the_end, has_seen_all, in_words, record_of
from .position import FeedIdentity
from .prefetch import Prefetcher
from .torch_batches import Loader, TorchBatches, ragged_forms

CLOSE_SECONDS = 30.0
"""How long the end of a reader waits for the checkpoint that says that everything was read."""
STATUS_SECONDS = 1.0
"""So long the answer of who waits may take."""
BINDING_SECONDS = 5.0
"""How long a reader whose loop has failed waits for the models that were committed: others go on from them."""

Ahead = Annotated[int, Within(0, 4096)] | str
"""How many slices are fetched ahead, or how many bytes of them."""
Threads = Annotated[int, Within(0, 256)]
"""How many threads make batches."""
Apart = Annotated[int, Within(0)]
"""How many batches ranks may be apart."""
Ranks = Annotated[int, Within(1, 1 << 20)]
"""How many ranks."""
ChangeWeights = Callable[[str, Mapping[str, float], int | None, int, float | None], None]
"""Of a feed: the weights of its mixture, from which step on, else from which row of the mixture on, and for how many
seconds to wait."""
BatchFormat = Literal["pyarrow", "numpy", "pandas"]

_log = logging.getLogger(__name__)


def _as_it_is(found: Any, _place: SlicePlace | None = None) -> Any:
    return found


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
    layout: str = CONTIGUOUS
    """How a batch is divided among ranks."""
    change: ChangeWeights | None = field(default=None, repr=False, compare=False)
    """How the job that it was taken from is asked; a handle that was pickled has nobody to ask."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "change": None}

    @property
    def batches(self) -> int | None:
        """Global batches of an epoch, if known."""
        if self.rows is None:
            return None
        whole, rest = divmod(self.rows, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    @property
    def identity(self) -> FeedIdentity:
        """What a place in the feed is a place of."""
        own = self.name, self.fingerprint, self.batch_size, self.drop_last, self.epochs, self.batches
        return FeedIdentity(*own, self.layout)

    @checked(ConfigurationError)
    def skip(self, steps: range) -> FeedHandle:
        """The feed without these global batches, counted over all epochs like ``Reader.step``: no rank gets them, at a
        peak of the loss, say. Their rows keep their positions, and all other batches their numbers. The edit goes into
        ``state_dict`` and into the record of every model that is committed, so that a run that goes on from one knows
        what it has not seen, and skips the same."""
        if steps.step != 1 or steps.start < 0 or steps.stop <= steps.start or steps.stop > LARGEST:
            raise ConfigurationError(
                f"steps {steps} cannot be skipped", "give consecutive batches, range(first, end), from 0 on", self.name
            )
        return replace(self, edits=united(self.edits, [(steps.start, steps.stop)]))

    @checked(ConfigurationError)
    def reweight(
        self,
        weights: Mapping[str, float],
        *,
        from_step: Annotated[int, Within(0)] | None = None,
        from_row: Annotated[int, Within(0)] | None = None,
        timeout: Seconds | None = None,
    ) -> None:
        """Give streams of the mixture before the feed other weights, from global batch ``from_step`` on, while the job
        runs; or from row ``from_row`` of the mixture on, counted over all epochs, whatever is made of its rows. One of
        the two is given. ``weights``: by the name of a source; other streams keep theirs. A stream that is a mixture or
        a union itself is named by all of its sources, with one weight. The change is in the job's log when this
        returns, so every run that goes on from there, and every replay, has the same batches.

        A mixture is ahead of its ranks by what the feed has room for. Raises ConfigurationError with the first step, or
        row, that is still possible if it has come further, and for ``from_step`` if batches do not have so many rows of
        the mixture each. After a TimeoutError the change may be in the log or not.
        """
        if (from_step is None) == (from_row is None):
            raise ConfigurationError(
                "weights are changed from one place on", "give from_step= or from_row=, one of them", self.name
            )
        if self.change is None:
            raise ConfigurationError(
                f"this handle of feed {self.name!r} was sent to another process, from where the job is not asked",
                "change weights where the job was started or attached to: job.feed().reweight(…)",
            )
        self.change(self.name, weights, from_step, from_row or 0, timeout)

    @checked(ConfigurationError)
    def resume(self, model_uri: str) -> FeedHandle:
        """The feed from where a model has come to: the one that ``Reader.commit`` was called with. Raises
        ConfigurationError if it is not bound to this feed. One that has seen the whole feed of a job that has finished
        has no batch to come."""
        path, job = self.route.folder, self.job
        found = record_of(path, job, self.name, model_uri, self.batch_size, self.fingerprint)
        edits = united(self.edits, found.skipped or ())
        is_over = has_seen_all(found, path, job, read_log_in(path, job), self.drop_last)
        route = EndedRoute(path, self.name, found.step) if is_over else self.route
        place = replace(self, route=route, start=found.step, start_epoch=found.epoch, model=model_uri)
        return replace(place, edits=edits, model_edits=found.skipped)

    def status(self) -> FeedStatus:
        """Who waits for whom now, and how far each rank has come. Raises TimeoutError where the feed cannot be reached,
        and the error of a job that is over."""
        link = self.route.open()
        try:
            reply = link.ask(Ask("", 0, 1, 0, 0, 0, 0, asks_status=True), STATUS_SECONDS)
        except BrokenFeedLinkError as error:
            raise TimeoutError(f"feed {self.name!r} of job {self.job!r} cannot be asked now: {error}") from error
        finally:
            link.close()
        return FeedStatus(self.name) if reply.status is None else reply.status

    @checked(ConfigurationError)
    def reader(
        self,
        rank: int | None = None,
        world_size: Ranks | None = None,
        *,
        mesh: Any = None,
        data: Names = "dp",
        replicate: Names = (),
        sequence: str | None = None,
        zigzag: bool = False,
        sequence_columns: Sequence[str] | None = None,
        prefetch_batches: Ahead | None = None,
        timeout: Seconds | None = None,
        max_ahead: Apart | None = None,
    ) -> Reader:
        """The reader of one rank. ``rank`` and ``world_size``: if neither is given, those of ``torch.distributed``, of
        torchrun's environment, or those of a single rank. ``prefetch_batches``: slices that are fetched ahead, on a
        thread, or bytes of them ("64MiB"); by default as many as have 4 MiB, but 4 to 32. ``timeout``: seconds to wait
        for a batch before a TimeoutError says for what, or whom, the rank waits; None: for ever. ``max_ahead``: so many
        batches before the slowest rank of its group this one is at most, by default as many as the feed's ``room`` has;
        what is fetched ahead counts.

        ``mesh``: a torch ``DeviceMesh`` of all ranks, or the sizes of its dimensions by name, outermost first. Ranks
        along the dimensions ``data`` divide the rows of a global batch; those along ``replicate`` (tensor, pipeline
        parallel) read the same rows; those along ``sequence`` (context parallel) read the same rows, and each its part
        of every list in them, or of those in ``sequence_columns``, without which the lists of a row must be equally
        long: one piece of them, or with ``zigzag`` one from the front and one from the back, which is equal work under
        a causal mask. Every dimension is named."""
        roles = MeshRoles(data, replicate, sequence, zigzag, sequence_columns)
        return Reader(self, place_of(rank, world_size, mesh, roles, self.schema), prefetch_batches, timeout, max_ahead)


class Reader:
    """See the module's rules. Made by :meth:`FeedHandle.reader`."""

    def __init__(
        self,
        feed: FeedHandle,
        place: MeshPlace,
        prefetch: int | str | None,
        timeout: Seconds | None,
        max_ahead: int | None = None,
    ) -> None:
        self.feed = feed
        self._at = place
        self._schema = place.schema(feed.schema)
        self.timeout = timeout
        self._prefetch = _apart(prefetch)
        self._max_ahead = max_ahead
        self._start, self._epoch = feed.start, feed.start_epoch
        self._edits = feed.edits
        self._prefetcher: Prefetcher | None = None
        self._closed = False
        #: the loop asks for a batch before its model has seen the one before; and the place before that one (rule 7)
        self._fetches_ahead = False
        self._seen: tuple[int, int] | None = None
        #: taken, and not given out (rule 8)
        self._returned: Slice[pa.RecordBatch] | None = None
        #: ``_seen`` as it was before the last batch was taken
        self._seen_before: tuple[int, int] | None = None
        self._shapes: Shapes = {}
        self._processes: Collators | None = None
        #: that it has begun in (rule 10)
        self._process: int | None = None
        atexit.register(self._end_of_script)

    # ------------------------------------------------------------------ batches

    @property
    def rank(self) -> int:
        """The rank of its group; in a mesh those that read the same rows are neighbours."""
        return self._at.rank

    @property
    def world_size(self) -> int:
        """How many ranks the group has."""
        return self._at.ranks

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
        return self._start if self._prefetcher is None else self._prefetcher.next_batch, self._epoch

    @checked(ConfigurationError)
    def iter_batches(self, *, batch_format: BatchFormat = "pyarrow", nulls: Any = None) -> Iterator[Any]:
        """The slices of the batches from here to the end of the epoch: ``pyarrow.RecordBatch``, a dictionary of NumPy
        arrays, or a ``pandas.DataFrame`` as Arrow makes it. The next call goes on with the next epoch; after a loop
        that was left, with the next batch.

        An array's type is that of the column, in every slice. Lists of one length are a matrix, lists of such lists
        have a dimension more; lists of different lengths are an array of arrays. ``nulls``: what becomes of nulls, for
        all columns or by name. By default one in a column of whole numbers or of truth values, or in place of a list,
        is a DataError, which names the column; others are NaN, NaT or None. "mask": 0, and ``<column>_mask`` is True
        where one was. "nan": whole numbers and truth values are float64, in every slice. A value takes their place."""
        if batch_format == "numpy":
            return self._batches(self._arrays(nulls))
        if nulls is not None:
            raise ConfigurationError(f"nulls={nulls!r}", 'it is for arrays: give batch_format="numpy"')
        self._join()
        if batch_format == "pandas":
            return self._converted(lambda found: self._in_one(found, wide=False).to_pandas())
        return self._converted(partial(self._in_one, wide=False))

    @checked(ConfigurationError)
    def iter_torch_batches(
        self,
        *,
        prefetch_batches: Ahead | None = None,
        dtypes: Any = None,
        device: Any = None,
        collate_fn: Callable[[dict[str, Any]], Any] | None = None,
        pin_memory: bool = False,
        nulls: Any = None,
        ragged: Any = None,
        threads: Threads | None = None,
        processes: Threads = 0,
    ) -> Iterator[Any]:
        """The slices as dictionaries of torch tensors, or what ``collate_fn`` makes of NumPy arrays. The arguments are
        Ray Data's. ``dtypes``: one for all columns, or by name; ``device``: where the tensors go, from pinned memory if
        ``pin_memory``. ``prefetch_batches`` replaces the reader's, if nothing has been read yet. ``nulls``: see
        ``iter_batches``. Raises DataError for a column that is not of numbers, and for lists of different lengths and
        tensors of different shapes, unless ``ragged`` says what they become, for all columns or by name, in every
        slice: "jagged", a nested tensor of that layout (only the first dimension may differ), "nested", a strided one,
        or "list", a list of tensors.

        ``threads`` make batches ahead of the loop, and call ``collate_fn``, several at once; batches come in their
        order, and the reader's step counts those that came. 0: the loop's own thread makes each when it asks for it,
        which is the default but for a GPU: there it is one thread, and batches are copied from pinned memory, beside
        what the loop computes, for the stream that is current when it takes them. At most ``threads + 1`` are ahead.

        ``processes`` call ``collate_fn`` instead, as many as are given, until the reader is closed, and as many threads
        at least hand it their arrays. The function is pickled, and so is what it gives. What it draws from the
        generators of Python, NumPy and torch depends on the batch and the rank alone, and is the same at ranks of a
        mesh that read the same rows. A process that dies is a SetupError at its batch.

        An error of ``collate_fn`` has a note that names the batch and, after calls with parts of its rows, the row."""
        if prefetch_batches is not None and self._prefetcher is None:
            self._prefetch = _apart(prefetch_batches)
        if collate_fn is not None and ragged is not None:
            raise ConfigurationError("ragged and collate_fn", "make what you want of the arrays in collate_fn")
        if processes and collate_fn is None:
            raise ConfigurationError("processes without collate_fn", "they call it; tensors are made by threads")
        arrays = self._arrays(nulls, ragged)
        workers = self._processes_for(collate_fn, processes) if processes and collate_fn is not None else None
        torch = TorchBatches(arrays.names, dtypes, device, collate_fn, pin_memory, workers)
        ahead = max(processes, int(torch.copies) if threads is None else threads)
        return self._batches(arrays, torch.make, torch.give, ahead)

    def _processes_for(self, collate_fn: Collate, count: int) -> Collators:
        """Those that call this function, which stay from one epoch to the next."""
        known = self._processes
        if known is None or known.collate is not collate_fn or known.count != count:
            if known is not None:
                known.close()
            self._processes = known = Collators(collate_fn, count)
        return known

    @checked(ConfigurationError)
    def iter_jax_batches(
        self, *, sharding: Any = None, dtypes: Any = None, nulls: Any = None, threads: Threads = 0
    ) -> Iterator[dict[str, Any]]:
        """The slices as dictionaries of ``jax.Array``. ``sharding``: a ``jax.sharding.Sharding``, for all columns or by
        name; each process gives its slice as its part of global arrays that are laid out so, and must be rank
        ``jax.process_index()`` of ``jax.process_count()``, which is the default where JAX is distributed. Without it
        arrays are on the default device. ``dtypes``: one for all columns, or by name. ``nulls``: see ``iter_batches``.
        ``threads``: see ``iter_torch_batches``. Raises DataError for a column that is not of numbers, for lists of
        different lengths, for rows that devices or processes cannot divide alike (a batch that the ranks have unequal
        parts of, or an unsharded one), and for whole numbers that JAX would cut off."""
        arrays = self._arrays(nulls)
        return self._batches(arrays, JaxBatches(arrays.names, dtypes, sharding).make, threads=threads)

    def _arrays(self, nulls: Any, ragged: Any = None) -> Arrays:
        return Arrays(self._schema, nulls, dict(self._shapes), ragged_forms(ragged, self._schema))

    def _batches(
        self,
        arrays: Arrays,
        make: Callable[[dict[str, Any], SlicePlace], Any] = _as_it_is,
        give: Callable[[Any], Any] = _as_it_is,
        threads: int = 0,
    ) -> Iterator[Any]:
        """Slices as arrays, then as what is made of them, maybe by others, and given by the thread of the loop."""

        def first(found: Slice[pa.RecordBatch]) -> tuple[dict[str, Any], SlicePlace, Shapes]:
            place = SlicePlace(found.batch, self.rank, self.world_size, found.batch_rows, self._at.copies)
            return arrays.of(self._in_one(found, wide=True)), place, arrays.shapes

        def rest(found: tuple[dict[str, Any], SlicePlace, Shapes]) -> tuple[Any, Shapes]:
            return make(found[0], found[1]), found[2]

        making = MadeAhead(first, rest, self._join().fetched, self._skips, threads)

        def convert(found: Slice[pa.RecordBatch]) -> Any:
            made, shapes = making.of(found)
            self._shapes.update(shapes)
            return give(made)

        return self._converted(convert, making.close)

    def _in_one(self, found: Slice[pa.RecordBatch], wide: bool) -> pa.RecordBatch:
        place = f"batch {found.batch} at rank {self.rank} of {self.world_size}"
        try:
            whole = combine(found.rows, self.feed.schema, wide)
        except DataError as error:
            remedy = (
                'read with more ranks, in smaller global batches, or with batch_format="numpy"; or give the column a '
                "type with 64-bit offsets (large_string, large_binary, large_list) where it is read or made"
            )
            raise DataError(f"{place}: {error.message}", remedy, self.feed.name) from error
        try:
            return self._at.of(whole)
        except DataError as error:
            raise DataError(f"{place}: {error.message}", error.remedy, self.feed.name) from error

    def _converted(
        self, convert: Callable[[Slice[pa.RecordBatch]], Any], close: Callable[[], None] = lambda: None
    ) -> Iterator[Any]:
        try:
            for found in self._take_epoch():
                try:
                    made = convert(found)
                except BaseException:
                    self._return(found)
                    raise
                yield made
        finally:
            close()

    @checked(ConfigurationError)
    def loader(self, *, fetches_ahead: bool = True, **arguments: Any) -> Loader:
        """What Lightning and its like take for a data loader: iterating gives an epoch of ``iter_torch_batches`` with
        these arguments, and there are ``state_dict`` and ``load_state_dict``. ``fetches_ahead``: the framework asks for
        a batch before the model has seen the one before, as Lightning does; steps, states and models count the batches
        that the model has seen. Accelerate and Trainer do not (``prepare`` wraps none but torch's own loaders): there,
        and in a loop of one's own, say False."""
        unknown = set(arguments) - set(inspect.signature(self.iter_torch_batches).parameters)
        if unknown:
            raise ConfigurationError(
                f"loader: there is no argument {', '.join(sorted(unknown))}", "give those of iter_torch_batches"
            )
        others = ("nulls", "prefetch_batches", "processes", "ragged", "threads")
        of_slices = {name: value for name, value in arguments.items() if name not in others}
        arrays = self._arrays(arguments.get("nulls"), arguments.get("ragged"))
        TorchBatches(arrays.names, **of_slices)  # which refuses what cannot be
        self._fetches_ahead = fetches_ahead
        return Loader(self, partial(self.iter_torch_batches, **arguments))

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """The rows of the slices, as dictionaries. Leaving the loop leaves the rest of the slice."""
        self._join()
        own = (self._at.of(records) for found in self._take_epoch() for records in found.rows)
        return (row for records in own for row in records.to_pylist())

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self.iter_batches()

    def __len__(self) -> int:
        """Global batches of the epoch, but for those that are skipped; TypeError if that is not known (yet)."""
        known = None if self._prefetcher is None or self.feed.epochs > 1 else self._prefetcher.batches
        known = self.feed.batches if known is None else known
        if known is None:
            raise TypeError(f"the number of batches of feed {self.feed.name!r} is not known before its end")
        begin = min(self._epoch, self.feed.epochs - 1) * known
        skipped = (min(end, begin + known) - max(first, begin) for first, end in self._edits)
        return known - sum(max(0, each) for each in skipped)

    def _join(self, commits: Sequence[Commit] = ()) -> Prefetcher:
        """The prefetcher, which joins the group when it begins. ``commits``: not answered in the group before."""
        if self._closed:
            raise ConfigurationError(f"the reader of rank {self.rank} is closed", "make a new one", self.feed.name)
        self._check_process()
        if self._prefetcher is None:
            feed, link = self.feed, self.feed.route.open()
            self._process = os.getpid()
            place = (self.rank, self.world_size, self._start)
            ahead, ahead_bytes = self._prefetch
            far = ahead, self._max_ahead, ahead_bytes
            finish = partial(bind_at_the_end, feed.route.folder, feed.job, feed.name, feed.batch_size, feed.fingerprint)
            self._prefetcher = Prefetcher(link, feed.name, *place, *far, self._at.copies, commits, finish)
        return self._prefetcher

    def _take_epoch(self) -> Iterator[Slice[pa.RecordBatch]]:
        """The slices up to the end of an epoch; behind the last epoch the feed has ended."""
        prefetcher = self._join()
        while (found := self._take(prefetcher)) is not None:
            if not self._skips(found.batch):  # else it is taken, so that nobody waits for it
                yield found
            if found.last and found.epoch + 1 < self.feed.epochs:
                break
        self._seen = None  # who asks for more has had all

    def _take(self, prefetcher: Prefetcher) -> Slice[pa.RecordBatch] | None:
        self._check_process()
        self._check_iteration(prefetcher)
        prefetcher.raise_refused()
        if self._returned is not None:
            found, self._returned = self._returned, None
        elif (taken := prefetcher.take(self.timeout, stays=self._fetches_ahead)) is not None:
            found = taken
        else:
            self.feed.identity.check_end(prefetcher.next_batch, self._epoch)
            return None
        self.feed.identity.check_epoch(found.batch, self._epoch, found.epoch)
        before = found.batch, self._epoch
        self._seen_before = self._seen
        self._epoch = found.epoch + found.last
        self._seen = before if self._fetches_ahead else None
        return found

    def _check_iteration(self, prefetcher: Prefetcher) -> None:
        """Rule 11: what was fetched for an iteration that is none any more is not handed out."""
        if prefetcher is self._prefetcher:
            return
        who = f"the reader of rank {self.rank}"
        if self._closed:
            raise ConfigurationError(f"{who} is closed", "make a new one", self.feed.name)
        raise ConfigurationError(
            f"{who} was given another position, step {self.step}, while this iteration went on",
            "leave the loop after load_state_dict(), and begin a new one: it goes on from there",
            self.feed.name,
        )

    def _return(self, found: Slice[pa.RecordBatch]) -> None:
        """Rule 8."""
        self._returned, self._epoch = found, found.epoch
        self._seen = self._seen_before or (found.batch, found.epoch)

    def _skips(self, batch: int) -> bool:
        return any(first <= batch < end for first, end in self._edits)

    @property
    def _is_inherited(self) -> bool:
        return self._process is not None and self._process != os.getpid()

    def _check_process(self) -> None:
        """Rule 10. Its thread, its locks and its connection are the other process's: nothing of them is touched."""
        if self._is_inherited:
            raise ConfigurationError(
                f"the reader of rank {self.rank} has begun in process {self._process} and cannot be read in process "
                f"{os.getpid()}, which has inherited it: both would get the same rows",
                "read in one process; or give the handle, job.feed(), to the other one and make a reader there, as a "
                "rank of its own",
                self.feed.name,
            )

    def __getstate__(self) -> dict[str, Any]:
        if self._process is not None:
            raise ConfigurationError(
                f"the reader of rank {self.rank} of feed {self.feed.name!r} has begun and cannot be pickled",
                "pickle the handle, job.feed(), and make the reader where it reads",
                self.feed.name,
            )
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        atexit.register(self._end_of_script)

    # ------------------------------------------------------------------ the position

    def state_dict(self) -> dict[str, Any]:
        """The position in the feed, to be saved with the model: the same in every rank. It counts what was handed out;
        for loops that fetch ahead of their model there is ``loader``."""
        return {
            **self.feed.identity.identity(),
            "ranks": self.world_size,
            "mesh": self._at.layout(),
            "step": self.step,
            "epoch": self.epoch,
            "skipped": [list(each) for each in self._edits],
        }

    @checked(ConfigurationError)
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the position of a saved model, at any number of ranks. All ranks must load the same. Raises
        ConfigurationError if the state is that of another flow, other data or other batches, or names no position of
        this feed; what cannot be known before, when the first batch is asked for."""
        self.feed.identity.check_identity(state)
        step, epoch = _count(state, "step"), _count(state, "epoch")
        self.feed.identity.check_position(step, epoch)
        if self.feed.model and step != self.feed.start:
            raise ConfigurationError(
                f"the state is that of step {step}, but model {self.feed.model!r} has come to step {self.feed.start}",
                "load the state that was saved with this model, or none",
            )
        skipped = _ranges(state)
        if self.feed.model_edits not in (None, skipped):
            raise ConfigurationError(
                f"the state is that of a run with {in_words(skipped)} skipped, but model {self.feed.model!r} was "
                f"committed with {in_words(self.feed.model_edits or ())} skipped",
                "load the state that was saved with this model, or none",
            )
        if (before := self._stand_at(step, epoch)) is not None:
            self._warn_of_commits(before)
        self._edits = united(self.feed.edits, skipped)

    @checked(ConfigurationError)
    def rejoin(
        self,
        rank: int | None = None,
        world_size: Ranks | None = None,
        *,
        mesh: Any = None,
        data: Names = "dp",
        replicate: Names = (),
        sequence: str | None = None,
        zigzag: bool = False,
        sequence_columns: Sequence[str] | None = None,
    ) -> None:
        """Go on from this step as another rank, in a group of another size or mesh, when ranks have gone or come and
        nothing is to be started anew. The arguments are those of :meth:`FeedHandle.reader`. All ranks of the new group
        must stand at the same step: one that comes loads the ``state_dict`` of one that stays; ranks that differ load
        the same state. The feed still has what a rank has not taken; if the new group starts before what *all* of the
        old one have taken, ``keep`` says how far it can."""
        roles = MeshRoles(data, replicate, sequence, zigzag, sequence_columns)
        place = place_of(rank, world_size, mesh, roles, self.feed.schema)
        before = self._stand_at(self.step, self.epoch)
        self._at, self._schema, self._shapes = place, place.schema(self.feed.schema), {}
        if before is not None and (commits := before.unanswered):
            self._join(commits)  # at once, so that they are not lost if the loop ends here

    def _stand_at(self, step: int, epoch: int) -> Prefetcher | None:
        """Leave the group; the next batch is asked for from another one. The prefetcher that it had is given back."""
        self._check_process()
        if (before := self._prefetcher) is not None:
            before.raise_refused()
            before.close(0.0, has_seen_all=False)
        self._start, self._epoch, self._prefetcher = step, epoch, None
        self._seen = self._returned = self._process = None
        return before

    # ------------------------------------------------------------------ models

    @checked(ConfigurationError)
    def commit(self, model_uri: str) -> None:
        """Bind a model that has seen all batches so far to the feed: ``feed.resume(model_uri)`` goes on behind them,
        and ``ps.run(…, resume_model=model_uri)`` brings back what that needs. It costs nothing here: the checkpoint is
        found and kept on other threads (``flush``). One rank's call suffices; others may call at the same step. If it
        is refused, because the model is bound to another step, the next batch, ``flush`` or ``close`` raises."""
        if not model_uri:
            raise ConfigurationError("commit: model_uri is empty", "give each model a name of its own", self.feed.name)
        self._join().commit(Commit(model_uri, self.step, self._edits, self.epoch))

    @checked(ConfigurationError)
    def flush(self, timeout: Seconds | None = None) -> None:
        """Wait until all models are bound. Raises ConfigurationError if one was refused, because it is bound to another
        step; TimeoutError after ``timeout`` seconds."""
        self._check_process()
        if self._prefetcher is not None:
            self._prefetcher.flush(timeout)

    @checked(ConfigurationError)
    def forget(self, model_uri: str) -> None:
        """Nobody goes on from this model any more: let go of its checkpoint."""
        self._join().commit(Commit(model_uri, FORGET))

    # ------------------------------------------------------------------ the end

    @checked(ConfigurationError)
    def close(self, timeout: Seconds = CLOSE_SECONDS) -> None:
        """End the reader. At the end of the feed this waits for the checkpoint that says that everything was read: a
        restart of the feed's task before that would wait for ranks that are gone. Raises ConfigurationError, when all
        is closed, if a model was refused and nobody has been told."""
        self._come_to_the_end(timeout)
        prefetcher = self._let_go(timeout)
        if prefetcher is not None:
            prefetcher.raise_refused()

    def _let_go(self, timeout: float, *, has_failed: bool = False) -> Prefetcher | None:
        """End the prefetcher, which is given back; what it could not do is a warning. ``has_failed``: see rule 12."""
        atexit.unregister(self._end_of_script)
        self._closed = True
        if self._is_inherited:
            return None
        if self._processes is not None:
            self._processes.close()
        prefetcher, self._prefetcher = self._prefetcher, None
        if prefetcher is None:
            return None
        if self._returned is None:
            self._start = prefetcher.next_batch
        has_seen_all = self._seen is None and self._returned is None and not has_failed
        if not prefetcher.close(timeout, has_seen_all=has_seen_all):
            _log.warning(
                "rank %d leaves feed %r before a checkpoint says that it has read everything (%s)",
                self.rank,
                self.feed.name,
                prefetcher.waits_for,
            )
        self._warn_of_commits(prefetcher)
        return prefetcher

    def _warn_of_commits(self, prefetcher: Prefetcher) -> None:
        if models := prefetcher.unbound:
            _log.warning(
                "rank %d leaves feed %r before these models are bound: %s", self.rank, self.feed.name, ", ".join(models)
            )

    def _leave(self, timeout: float, *, has_failed: bool) -> None:
        """Close it where nobody can be told of an error, or another one is on its way."""
        prefetcher = self._let_go(timeout, has_failed=has_failed)
        for refusal in () if prefetcher is None else prefetcher.refusals():
            _log.warning("rank %d of feed %r: %s", self.rank, self.feed.name, refusal)

    def _end_of_script(self) -> None:
        # the interpreter keeps what a script ended with
        self._leave(CLOSE_SECONDS, has_failed=getattr(sys, "last_value", None) is not None)

    def _come_to_the_end(self, timeout: float) -> None:
        """A loop over the epochs that are left has none behind the last one, so its reader has said nothing: the feed
        waits for it to say that it has everything."""
        if self._prefetcher is not None or self._closed or self._is_inherited or timeout <= 0:
            return
        if self.feed.epochs > 1 and self._epoch >= self.feed.epochs:
            try:
                self._join().take(timeout)
            except (PenstockError, TimeoutError) as error:
                _log.warning("rank %d cannot acknowledge all of feed %r: %s", self.rank, self.feed.name, error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            prefetcher = None if self._is_inherited or not isinstance(error, Exception) else self._prefetcher
            self._leave(BINDING_SECONDS if prefetcher is not None and prefetcher.unbound else 0.0, has_failed=True)


def _apart(prefetch: int | str | None) -> tuple[int | None, int | None]:
    """How many batches are fetched ahead, or how many bytes."""
    if isinstance(prefetch, str):
        return None, bytes_of("prefetch_batches", prefetch, ConfigurationError)
    return prefetch, None


def united(edits: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges in ascending order; those that touch are one."""
    found: list[tuple[int, int]] = []
    for first, end in sorted([*edits, *others]):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return tuple(found)


def _count(state: Mapping[str, Any], name: str) -> int:
    found = state.get(name)
    if not isinstance(found, int) or not _is_count(found):
        raise ConfigurationError(f"the state names the {name} {found!r}", "load a state that state_dict() gave")
    return found


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _ranges(state: Mapping[str, Any]) -> Ranges:
    """The batches that a state skips."""
    given = state.get("skipped", ())
    pairs = [each if isinstance(each, list | tuple) else () for each in given] if _is_list(given) else [()]
    for pair in pairs:
        if len(pair) != 2 or not all(map(_is_count, pair)) or pair[0] >= pair[1]:
            raise ConfigurationError(
                f"the state skips {given!r}, and not ranges of batches, each [first, end] with first < end",
                "load a state that state_dict() gave",
            )
    return united((), [(int(first), int(end)) for first, end in pairs])


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)
