"""The mixture before a feed, whose weights may be changed while the job runs: where it is, and at which of its rows a
step begins.

Rules:

1. Global batch *k* of *B* rows has the rows from *k·B* on of the mixture, of its epoch. That holds where batches are
   counts of rows, and all operators and exchanges between the two give each row once, in its place. Anything else is
   refused by name. A change that names a row of the mixture needs none of that.
2. Where a later epoch begins follows from how many rows each has: all those of the mixture's sources, which must tell
   how many they have, and nothing on the way may leave out some or add others.
3. A stream is named by its source. One that was itself mixed, or is a union, has one weight here, so it is named by all
   that it was made of, with the same weight: nobody changes a stream that he has not named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...engine.core.arguments import LARGEST
from ...engine.core.errors import ConfigurationError
from ...engine.core.identity import Reweight
from ...engine.core.traits import Emission, Multiplicity, State, traits_of
from ...engine.feed.sink import FeedSink
from ...engine.operators import Batches, Mix, Union
from ...engine.operators.sequence.schedule import LEAST, MOST
from ...engine.plan.partitioning import Gather
from ...engine.plan.plan import JobPlan, OperatorPlan, PipelinePlan, PortPlan
from ..audit.origins import UnknownRoute, pipelines_of, producer_of, routes, sources_of


@dataclass(frozen=True, slots=True)
class Mixture:
    """``streams``: for each port those that were made one before they came to it (rule 3), each by its sources."""

    operator: str
    streams: tuple[tuple[tuple[str, ...], ...], ...]

    def change(self, weights: Mapping[str, float], position: int, request: str) -> Reweight:
        """The change that gives these streams other weights from a row on. Raises ConfigurationError for what is
        none."""
        if position > LARGEST:
            raise ConfigurationError(f"row {position} of a mixture", "give one that the feed can come to")
        by_port: dict[int, dict[str, float]] = {}
        for name, weight in weights.items():
            by_port.setdefault(self._port(name), {})[name] = _checked(name, weight)
        ports = tuple(sorted((port, self._weight(port, given)) for port, given in by_port.items()))
        if not ports or (len(ports) == len(self.streams) and not any(weight for _, weight in ports)):
            message = f"mixture {self.operator!r}: no stream is given a weight"
            raise ConfigurationError(message, "let one of them be positive")
        return Reweight(self.operator, position, ports, request)

    def _port(self, name: str) -> int:
        found = [port for port, parts in enumerate(self.streams) if any(name in sources for sources in parts)]
        if len(found) == 1:
            return found[0]
        known = "; ".join(_names(parts) for parts in self.streams)
        what = "no stream" if not found else "several streams"
        raise ConfigurationError(f"source {name!r} is in {what} of mixture {self.operator!r}", f"its streams: {known}")

    def _weight(self, port: int, given: Mapping[str, float]) -> float:
        """Rule 3."""
        parts = self.streams[port]
        weight, *others = set(given.values())
        if others or not all(any(name in given for name in sources) for sources in parts):
            raise ConfigurationError(
                f"{_names(parts)} come as one stream to mixture {self.operator!r}, and not alone",
                "name all of them, with one weight: that of the stream",
            )
        return weight


@dataclass(frozen=True, slots=True)
class Steps:
    """Where steps of a feed begin in its mixture (rule 1)."""

    batch_size: int
    epoch_rows: int | None = None
    """Of each epoch, where there are several."""
    drop_last: bool = False

    def position_of(self, step: int) -> int:
        """The mixture's first row of a step."""
        if self.epoch_rows is None:
            return step * self.batch_size
        epoch, batch = divmod(step, self._epoch_batches)
        return epoch * self.epoch_rows + batch * self.batch_size

    def first_step(self, position: int) -> int:
        """The first step that begins at the position or behind it."""
        if self.epoch_rows is None:
            return -(-position // self.batch_size)
        epoch, row = divmod(position, self.epoch_rows)
        return epoch * self._epoch_batches + min(-(-row // self.batch_size), self._epoch_batches)

    @property
    def _epoch_batches(self) -> int:
        whole, rest = divmod(self.epoch_rows or 0, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)


def mixture_of(plan: JobPlan, feed: str) -> Mixture:
    """The last mixture before a feed. Raises ConfigurationError if there is none."""
    for pipeline, operator in _before(plan, feed):
        if isinstance(operator.config, Mix):
            return Mixture(operator.id, tuple(_parts(plan, port) for port in pipeline.ports))
    raise _refused(feed, "no mixture stands before it", "flow.mix({stream: weight, …}) makes one")


def steps_of(plan: JobPlan, feed: str) -> Steps:
    """Where steps of a feed begin in the mixture before it. Raises ConfigurationError if its rows are not counted as
    the feed's are."""
    operators = _before(plan, feed)
    last, found = next(operators)
    sink = found.config
    assert isinstance(sink, FeedSink)
    size = sink.batch_size if sink.marks(found.inputs[0]) is None else None
    for pipeline, operator in operators:
        if pipeline is not last:
            _check_exchange(plan, feed, last.ports[0])
            last = pipeline
        if size is None and isinstance(operator.config, Batches):
            size = _rows_a_batch(feed, operator.config)
            continue
        if isinstance(operator.config, Mix):
            assert size is not None, "batches were cut nowhere"
            rows = _epoch_rows(plan, feed, pipeline, operator, sink) if sink.epochs > 1 else None
            return Steps(size, rows, sink.drop_last)
        traits = traits_of(operator.config)
        keeps = traits.rows is not Multiplicity.OTHER and traits.emission is Emission.PER_BATCH
        if not keeps or traits.state is not State.NONE:
            what = f"{operator.id!r} stands between the mixture and the feed"
            raise _no_step(feed, what, "it may change how many rows there are, or their order")
    raise AssertionError(f"feed {feed!r} has no mixture")


def _rows_a_batch(feed: str, cut: Batches) -> int:
    """Of batches that are marked before the feed. Raises ConfigurationError if it depends on the rows."""
    if cut.rows_a_batch is None:
        raise _no_step(feed, "its batches are cut by what rows cost", "which rows a step has is not known beforehand")
    return cut.rows_a_batch


def _parts(plan: JobPlan, port: PortPlan) -> tuple[tuple[str, ...], ...]:
    """The streams that were made one before they came to a port, each by its sources."""
    if port.kind != "source":
        pipeline = producer_of(plan, port)
        if len(pipeline.ports) == 1 or isinstance(pipeline.operators[0].config, Mix | Union):
            return tuple(part for each in pipeline.ports for part in _parts(plan, each))
    return (tuple(sources_of(plan, port)),)


def _names(parts: tuple[tuple[str, ...], ...]) -> str:
    return ", ".join(dict.fromkeys(name for sources in parts for name in sources))


def _epoch_rows(plan: JobPlan, feed: str, pipeline: PipelinePlan, mix: OperatorPlan, sink: FeedSink) -> int:
    """Rule 2."""
    what = f"it has {sink.epochs} epochs, and where a later one begins is not known beforehand"
    rows = 0
    try:
        for source, passed in routes(plan, pipeline, pipeline.operators.index(mix) + 1):
            known = plan.sources[source].rows
            if known is None:
                raise _no_step(feed, what, f"source {source!r} does not tell how many rows it has")
            for operator in passed:
                if traits_of(operator.config).rows is Multiplicity.OTHER:
                    raise _no_step(feed, what, f"{operator.id!r} may change how many rows there are")
            rows += known
    except UnknownRoute as error:
        raise _no_step(feed, what, str(error)) from error
    if rows < (sink.batch_size if sink.drop_last else 1):
        raise _no_step(feed, "its epochs have no batch", "give the feed smaller batches")
    return rows


def too_late(feed: str, place: str, why: str, possible: str) -> ConfigurationError:
    """The error for a step or row that the weights cannot be changed from. ``possible``: the first from which they can,
    if any."""
    remedy = f"the first {possible}" if possible else "run the job again"
    return ConfigurationError(f"the weights before feed {feed!r} cannot be changed from {place} on: {why}", remedy)


def _before(plan: JobPlan, feed: str) -> Iterator[tuple[PipelinePlan, OperatorPlan]]:
    """The feed, then what its rows have passed on one way, the last first."""
    pipeline = next(each for each in pipelines_of(plan) if any(operator.id == feed for operator in each.operators))
    ids = [operator.id for operator in pipeline.operators]
    operators = pipeline.operators[: ids.index(feed) + 1]
    while True:
        yield from ((pipeline, operator) for operator in reversed(operators))
        if len(pipeline.ports) != 1 or pipeline.ports[0].kind == "source":
            return
        pipeline = producer_of(plan, pipeline.ports[0])
        operators = pipeline.operators


def _check_exchange(plan: JobPlan, feed: str, port: PortPlan) -> None:
    exchange = next((each for each in plan.exchanges if each.id == port.id), None)
    if exchange is not None and not (isinstance(exchange.config, Gather) or exchange.pattern == "pointwise"):
        what = f"rows are sent round between the mixture and the feed ({exchange.config.describe()})"
        raise _no_step(feed, what, "they come in another order")


def _no_step(feed: str, what: str, why: str) -> ConfigurationError:
    return _refused(feed, what, f"{why}; name a row of the mixture instead, from_row=")


def _refused(feed: str, what: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"the weights before feed {feed!r} cannot be changed while it runs: {what}", why, feed)


def _checked(name: str, weight: float) -> float:
    if weight and not LEAST <= weight <= MOST:
        raise ConfigurationError(f"a weight of {weight} for {name!r}", f"give 0, or positive numbers up to {MOST:g}")
    return float(weight)
