"""The methods of a stream that end it: in files, in a feed, in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ..core.arguments import checked
from ..core.operator import SinkConfig
from ..feed.sink import FeedSink
from ..sinks.collect import CollectSink
from ..sinks.parquet import ParquetSink
from .sequences import Sequences


class Ends(Sequences):
    """The methods; what they are built on is the stream's."""

    @checked()
    def write_parquet(
        self,
        path: str | Path,
        *,
        mode: Literal["new", "append"] = "new",
        compression: str = "zstd",
        name: str | None = None,
    ) -> None:
        """Write a folder of Parquet files, exactly once: files appear when the checkpoint that covers them commits.

        ``mode``: "new" wants a folder without data, "append" adds to what is there. ``compression``: "zstd" makes the
        smallest files, "snappy" and "lz4" take about two thirds of the time; others are "none", "gzip", "brotli".
        """
        self._end(ParquetSink(str(path), mode=mode, compression=compression), name)

    @checked()
    def feed(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: int | None = None,
        drop_last: bool = False,
        room: int | None = None,
        keep: int = 0,
        epochs: int = 1,
        name: str = "feed",
    ) -> None:
        """End the stream in a feed: training ranks read it in global batches of ``batch_size`` rows, the same whatever
        their number (``job.feed(name).reader(rank, world_size)``).

        ``shuffle``: rows of a window in which they are shuffled first, by ``seed`` (:meth:`shuffle`).
        ``epochs``: how often the job reads its sources, one time behind the other without a pause; no batch has rows of
        two epochs, and shuffles and mixtures draw anew in each, by (seed, epoch). ``drop_last``: a last batch of an
        epoch that is not full is left out. ``room``: rows that may wait for the slowest rank, and so how far ranks may
        be apart, by default 16 batches, and at least 128 Ki rows, but no more of them wait than have 256 MiB. ``keep``:
        rows that are kept after all ranks have taken them, for a rank that comes back with an older model.
        """
        sink = FeedSink.of(name, batch_size, drop_last, room, keep, epochs)
        stream = self if shuffle is None else self.shuffle(shuffle, seed=seed)
        stream._gathered()._end(sink, name)

    @checked()
    def collect(self, name: str) -> None:
        """Keep the rows in memory: ``ps.run_local(flow).result(name)``."""
        self._end(CollectSink(name), name)

    def _end(self, sink: SinkConfig, name: str | None) -> None:
        raise NotImplementedError
