"""Which checkpoint and which global batch belong to a saved model: the records of ``Reader.commit``.

Rules:

1. A record binds a model's name to a completed checkpoint of the job, and to a number of global batches that the model
   has seen. It lies in ``<checkpoint folder>/<job>/models``.
2. First the checkpoint is pinned in the job's log, then the record is written: a record never names a checkpoint that
   is not kept. A name without a record is pinned again when the commit is repeated. A model is forgotten the other
   way round, and that is over when the log says so: the next commit of the name finds no pin of a former one.
3. A model is bound once. Bound again with the same number nothing happens; with another it is refused, and so it is
   with other batches that were skipped.
4. A model that has seen all batches of a feed that nobody has to serve any more needs no checkpoint: the rank writes
   its record. It is known by ``last``, or, where it was bound before that was known, by the newest checkpoint.
5. A record is sealed (``coordinator.model.records``): a damaged one is an error, never another batch to go on from.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial

import msgspec
from pyarrow.fs import FileSelector, FileType

from ...coordinator.model.events import Event, PinRequested, UnpinRequested
from ...coordinator.model.manifest import LogEntry, Manifest, Pinned, Unpinned, closing_entry
from ...coordinator.model.records import decode_record, encode_record
from ...engine.core.errors import ConfigurationError, PenstockError
from ...engine.core.identity import CheckpointId
from ...engine.feed.messages import FORGET, Commit, Ranges
from ...engine.feed.progress import RankProgress
from ...engine.feed.sink import FeedSink
from ...engine.feed.state import read_counters
from ...engine.files.durable import make_folder, put_file
from ...engine.files.paths import absolute, resolve, safe_name, storage_error
from ...engine.plan.plan import JobPlan
from ..protocol.messages import UNKNOWN_TIME
from ..storage.damage import FROM_A_COPY, decoding
from ..storage.log import LogTail
from ..storage.snapshots import SnapshotFiles

LAST_WRITE = 5.0
"""Seconds that closing waits for what is being written, to a store that does not answer, say."""

PIN_SECONDS = 30.0
ASK_AGAIN = 2.0
PAUSE = 0.02
NO_CHECKPOINT = CheckpointId(0, 0)
"""In the record of a model that needs none."""
FINISHED = "finished"
"""What the closing entry of a job says whose feeds have been read to their ends."""

_log = logging.getLogger(__name__)


FORMAT = 2
"""Version of a record's form. 2: sealed."""


class ModelRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model. ``step``: the global batches that it has seen, but for those ``skipped``, which may also be ones that
    come; None: an earlier release did not write them down."""

    format: int = FORMAT
    model: str
    feed: str
    step: int
    batch_size: int
    checkpoint: CheckpointId
    fingerprint: str
    skipped: Ranges | None = None
    #: of the batch that comes next
    epoch: int = 0
    #: ranks that had not taken all that it has seen when it was bound, though they had the time to acknowledge it
    behind: tuple[RankProgress, ...] = ()
    #: it was known that nothing comes next
    last: bool = False


_RECORDS = msgspec.json.Decoder(ModelRecord)


def pin_name(feed: str, model: str) -> str:
    """The name under which the job's log keeps the checkpoint of a model."""
    return f"model {model} of feed {feed}"


class ModelBook:
    """The records of one job."""

    def __init__(self, folder: str, job: str) -> None:
        self._files, root = resolve(absolute(folder))
        self._root = root.rstrip("/")
        self._folder = f"{self._root}/{safe_name(job)}/models"
        #: the folder was made, or found, and synced with all above it
        self._is_made = False

    def read(self, feed: str, model: str) -> ModelRecord | None:
        """The record of a model; None if there is none."""
        return self._read(self._path(feed, model))

    def records(self, feed: str) -> list[ModelRecord]:
        """The records of all models that are bound to a feed, by their names."""
        try:
            infos = self._files.get_file_info(FileSelector(self._folder, allow_not_found=True))
        except OSError as error:
            raise storage_error("list the models in", self._folder, error) from error
        names = (info for info in infos if info.base_name.endswith(".json") and not info.base_name.startswith("."))
        found = [record for info in names if (record := self._read(info.path)) is not None]
        return sorted((each for each in found if each.feed == feed), key=lambda each: each.model)

    def _read(self, path: str) -> ModelRecord | None:
        try:
            with self._files.open_input_stream(path) as stream:
                data = stream.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error("read the model's record", path, error) from error
        way_on = f"{FROM_A_COPY}; without it, start the training over, or from another model"
        with decoding(f"the model's record {path}", way_on):
            return decode_record(data, _RECORDS, FORMAT)

    @property
    def has_place(self) -> bool:
        """Whether the checkpoint folder is there: a temporary one goes with its job."""
        return bool(self._files.get_file_info(self._root).type != FileType.NotFound)

    def write(self, record: ModelRecord) -> None:
        """Keep a record. Raises OSError."""
        if not self._is_made:
            make_folder(self._files, self._folder)
            self._is_made = True
        put_file(self._files, self._path(record.feed, record.model), encode_record(record))

    def delete(self, feed: str, model: str) -> None:
        """Forget a record, if there is one."""
        with suppress(FileNotFoundError):
            self._files.delete_file(self._path(feed, model))

    def _path(self, feed: str, model: str) -> str:
        digest = hashlib.sha256(f"{feed}\0{model}".encode()).hexdigest()[:32]
        return f"{self._folder}/{digest}.json"


class ModelBinder:
    """Carries out commits, one after the other, on a thread. ``report``: to the job's coordinator."""

    def __init__(self, plan: JobPlan, folder: str, report: Callable[[Event], None]) -> None:
        self._plan = plan
        self._book = ModelBook(folder, plan.name)
        #: of the thread
        self._log = LogTail(folder, plan.name)
        self._report = report
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-models")
        self._closing = threading.Event()
        self._running: set[Future[None]] = set()

    def bind(
        self,
        feed: str,
        commit: Commit,
        checkpoint: CheckpointId,
        behind: tuple[RankProgress, ...],
        done: Callable[[str | None], None],
    ) -> None:
        """Bind a model and call ``done``: "" when it is bound, why it is refused, or None if the checkpoint is not kept
        any more and a newer one must do. ``behind``: ranks that have not taken all that it covers."""
        if commit.step == FORGET:
            work: Callable[[], str | None] = partial(self._forget, feed, commit.model)
        else:
            work = partial(self._bind, feed, commit, checkpoint, behind)
        running = self._thread.submit(self._carry_out, work, done)
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    def close(self) -> None:
        """Start nothing new, and wait for what is being written: whoever closes may remove the folder next."""
        self._closing.set()
        self._thread.shutdown(wait=False, cancel_futures=True)
        wait(tuple(self._running), LAST_WRITE)

    def _carry_out(self, work: Callable[[], str | None], done: Callable[[str | None], None]) -> None:
        """``done`` is not called once it closes: the ranks learn that the job is over."""
        try:
            answer = work()
        except (PenstockError, OSError) as error:
            answer = f"it could not be written down: {error}"
        if not self._closing.is_set():
            done(answer)

    def _bind(
        self, feed: str, commit: Commit, checkpoint: CheckpointId, behind: tuple[RankProgress, ...]
    ) -> str | None:
        model = commit.model
        known = self._book.read(feed, model)
        if known is not None:
            return mismatch(known, commit)
        if not self._pin(pin_name(feed, model), checkpoint):
            return None
        made = _record(feed, commit, sink_of(self._plan, feed).batch_size, self._plan.fingerprint)
        self._book.write(msgspec.structs.replace(made, checkpoint=checkpoint, behind=behind))
        return ""

    def _forget(self, feed: str, model: str) -> str:
        self._book.delete(feed, model)
        name = pin_name(feed, model)
        request = UnpinRequested(name, UNKNOWN_TIME)
        if self._await_log(request, lambda: name not in self._log.pins, lambda: True):
            return ""
        return f"model {model!r} is forgotten, but its checkpoint is still kept: it was not unpinned in time"

    def _pin(self, name: str, checkpoint: CheckpointId) -> bool:
        """Pin it; False if it is not kept any more, or there is no answer."""
        request = PinRequested(checkpoint, name, UNKNOWN_TIME)
        return self._await_log(
            request, lambda: self._log.pins.get(name) == checkpoint, lambda: self._log.is_kept(checkpoint)
        )

    def _await_log(self, request: Event, has_come: Callable[[], bool], is_possible: Callable[[], bool]) -> bool:
        """Wait until the log says that it is done, and repeat the request meanwhile; False: it cannot be, or is not in
        time."""
        until, again = time.monotonic() + PIN_SECONDS, 0.0
        self._log.follow()
        while (now := time.monotonic()) < until and not self._closing.is_set():
            if has_come():
                return True
            if now >= again:
                if again:
                    self._log.read()  # what following it may have missed
                if not is_possible():
                    return False
                self._report(request)
                again = now + ASK_AGAIN
            self._closing.wait(PAUSE)
            self._log.follow(ahead=1)
        return False


def _record(feed: str, commit: Commit, batch_size: int, fingerprint: str) -> ModelRecord:
    """Of a model that needs no checkpoint."""
    return ModelRecord(
        model=commit.model,
        feed=feed,
        step=commit.step,
        batch_size=batch_size,
        checkpoint=NO_CHECKPOINT,
        fingerprint=fingerprint,
        skipped=commit.skipped,
        epoch=commit.epoch,
        last=commit.last,
    )


def bind_at_the_end(folder: str, job: str, feed: str, batch_size: int, fingerprint: str, commit: Commit) -> str:
    """Rule 4, in the process of a rank: bind a model that has seen the whole feed, or forget one. "", or why not."""
    book = ModelBook(folder, job)
    try:
        if not book.has_place:
            _log.warning(
                "model %r of feed %r: job %s kept its state in a temporary folder, %s, which is gone with it: nothing "
                "goes on from it",
                commit.model,
                feed,
                job,
                folder,
            )
        elif commit.step == FORGET:
            book.delete(feed, commit.model)
        elif (known := book.read(feed, commit.model)) is not None:
            return mismatch(known, commit)
        else:
            book.write(_record(feed, commit, batch_size, fingerprint))
    except (PenstockError, OSError) as error:
        return f"model {commit.model!r} could not be written down: {error}"
    return ""


def has_seen_all(record: ModelRecord, folder: str, job: str, entries: Sequence[LogEntry], drop_last: bool) -> bool:
    """Whether the job of these entries has finished, and the model has seen the whole feed (rule 4)."""
    closed = closing_entry(entries)
    if closed is None or closed.status != FINISHED:
        return False
    newest = next((entry for entry in reversed(entries) if isinstance(entry, Manifest)), None)
    if newest is None:
        return record.last
    if record.last:
        return newest.epochs <= max(record.epoch, 1)  # else it was the last of fewer epochs
    handles = [each for task in newest.tasks for each in task.state if each.operator == record.feed]
    table = SnapshotFiles(newest.root or folder, job).read([each for each in handles if not each.is_flight])
    if record.feed not in table:
        return False
    state = read_counters(table[record.feed])
    return state.ended and state.next_batch(record.batch_size, drop_last) == record.step


def mismatch(known: ModelRecord | Commit, commit: Commit) -> str:
    """Why a model that is bound already cannot be bound so; "" if it is bound just so."""
    model = commit.model
    if known.step != commit.step:
        found, wanted = f"bound to step {known.step}", f"bound to step {commit.step}"
    elif known.skipped not in (None, commit.skipped):
        found, wanted = (f"bound with {in_words(skipped or ())} skipped" for skipped in (known.skipped, commit.skipped))
    else:
        return ""
    remedy = "give each model a name of its own, or forget this one first"
    return f"model {model!r} is {found} and cannot be {wanted}: {remedy}"


def in_words(skipped: Ranges) -> str:
    """Batches that were left out."""
    more = f" and {len(skipped) - 20} more ranges" if len(skipped) > 20 else ""
    return ", ".join(f"batches {first} to {end - 1}" for first, end in skipped[:20]) + more or "no batch"


def pins_of(entries: Sequence[LogEntry]) -> dict[str, CheckpointId]:
    """The names that pin a checkpoint, by a log."""
    found: dict[str, CheckpointId] = {}
    for entry in entries:
        if isinstance(entry, Pinned):
            found[entry.name] = entry.checkpoint
        elif isinstance(entry, Unpinned):
            found.pop(entry.name, None)
    return found


def sink_of(plan: JobPlan, feed: str) -> FeedSink:
    """The sink of a feed."""
    found = plan.sinks[feed][1]
    assert isinstance(found, FeedSink)
    return found


def record_of(folder: str, job: str, feed: str, model: str, batch_size: int, fingerprint: str) -> ModelRecord:
    """The record of a model that this feed may go on from. Raises ConfigurationError."""
    found = ModelBook(folder, job).read(feed, model)
    if found is None:
        raise ConfigurationError(
            f"model {model!r} is not bound to feed {feed!r} of job {job!r} in {folder}",
            "name a model that reader.commit() was called for, and flushed, with this checkpoint folder",
        )
    if (found.batch_size, found.fingerprint) != (batch_size, fingerprint):
        raise ConfigurationError(
            f"model {model!r} was trained on another flow, other data, or global batches that may have another number "
            f"than {batch_size}",
            "run the flow that it was trained on, with the same batch_size, or tokens",
        )
    return found
