"""What an operator says of itself, so that the planner treats a user's operator like a built-in one.

A config may have an attribute ``traits`` (of its class, a field or a property) that is a :class:`Traits`. Each pass of
the planner, the tracer and the audits ask it, and nothing else; none of them knows an operator by its class.

Rules:

1. The defaults are those of an operator of which nothing is known: it reads all columns, its rows may come in any
   round, it holds anything, its rows cannot be traced. A flow with such operators is right, only slower.
2. What is declared must be true: ``tests/engine/operators/test_traits.py`` has a check for each trait.
3. ``columns`` and the other functions are called while a job is planned, with schemas that ``output_schema`` accepts.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from .errors import FlowError

if TYPE_CHECKING:
    from .operator import OperatorConfig


class Emission(Enum):
    """When rows leave, compared with the round of the rows that they are made of."""

    PER_BATCH = "per batch"
    """With the batch that they are made of."""
    PER_ROUND = "per round"
    """Before their round ends; what comes at a task barrier leaves at it (``drain``)."""
    PER_GROUP = "a group when the next one begins"
    PER_BLOCK = "a block when it is full"
    AT_END = "at the end"
    """All together, at a task barrier or at the end."""
    AFTER_BUILD = "after the build side"
    """Rows wait until the build side has ended; then they leave per batch."""
    IN_TURN = "in turn"
    """When it is their turn, which may be in a later round."""
    UNKNOWN = "unknown"


class State(Enum):
    """What is held between two batches, and so in a snapshot."""

    NONE = "none"
    """Nothing: ``snapshot`` always gives None."""
    COUNTERS = "counters"
    """Something, but no rows of the input."""
    ROWS = "rows"
    """Rows of the input, as structs in a column ``row`` of the snapshot."""
    OTHER = "other"


class Multiplicity(Enum):
    """Which rows come out."""

    SAME = "same"
    """Each row of each input once, as it is, perhaps with a further column; perhaps in another order."""
    ONE_EACH = "one each"
    """One row for each row of the input."""
    OTHER = "other"


class Cut(Enum):
    """On what the cut of a checkpoint stands that comes while steps of a call are left (``operator.Steps``).

    Wherever it stands, what an operator emits for a lane before the cut, and what one emits for it that is built of the
    state and goes on, are together the rows that it would have emitted without a cut, in their order.
    """

    AFTER = "after the call"
    """The steps that are left are taken first; the state is asked for behind them."""
    BEFORE = "before the call"
    """The state is that before the call, whichever piece has been emitted: the call is made again, and as many rows of
    each lane are left out as it had emitted. For who holds what it emits until the last piece has left."""
    WITHIN = "within the call"
    """The state lacks what has been emitted: the call is made again, and emits the rest. For who lets go of what it
    emits a piece at a time. Not for ``process``: the batch would be taken twice."""


@dataclass(frozen=True, slots=True)
class Columns:
    """What an operator does with the columns of one input.

    ``reads``: those that it looks at, whatever is wanted of its output; None: all. ``keeps``: those that come out with
    the values that they have, and their names in the output: every row that comes out of this input has them.
    ``uses``: for other columns of the output those of the input that they are computed from.
    """

    reads: Collection[str] | None = None
    keeps: Mapping[str, str] = field(default_factory=dict)
    uses: Mapping[str, Collection[str]] = field(default_factory=dict)

    @classmethod
    def passed_on(cls, schema: pa.Schema, reads: Iterable[str] | None = None) -> Columns:
        """All columns come out under their names."""
        return cls(None if reads is None else frozenset(reads), {name: name for name in schema.names})

    def needed(self, wanted: Collection[str], schema: pa.Schema) -> set[str]:
        """The columns of the input that are needed if those are ``wanted`` of the output."""
        if self.reads is None:
            return set(schema.names)
        kept = {mine for mine, theirs in self.keeps.items() if theirs in wanted}
        return kept.union(self.reads, *(self.uses[name] for name in wanted if name in self.uses)) & set(schema.names)


Columned: TypeAlias = Callable[[Sequence[pa.Schema]], Sequence[Columns]]
Narrowed: TypeAlias = "Callable[[Collection[str]], OperatorConfig]"
Asks: TypeAlias = Callable[[Sequence[pa.Schema]], Sequence[pc.Expression | None]]
Early: TypeAlias = Callable[[Sequence[pa.Schema], Collection[str]], Sequence[Mapping[str, pc.Expression]]]


def all_kept(reads: Iterable[str] | None = None) -> Columned:
    """For ``Traits.columns``: every column of each input comes out under its name, and ``reads`` are looked at (None:
    all are)."""
    names = None if reads is None else frozenset(reads)
    return lambda inputs: [Columns.passed_on(schema, names) for schema in inputs]


@dataclass(frozen=True, slots=True)
class BuildSide:
    """The input (``port``) that is read to its end before rows of the other one leave.

    ``gives_rows``: in words why its rows come out by themselves ("a full join"); "": only with rows of the other input.
    ``instead``: what can be asked for that does not give them.
    """

    port: int
    gives_rows: str = ""
    instead: str = ""


@dataclass(frozen=True, slots=True)
class SplitDraws:
    """The splits of the sources that lead here are read in an order drawn by (seed, epoch), at most ``interleave`` of
    them at once; ``window``: over so many rows they are to be mixed."""

    seed: int
    epoch: int
    interleave: int
    window: int


ALL_INPUTS = -1


@dataclass(frozen=True, slots=True)
class Lineage:
    """How a row of the output traces back. ``follows``: the input that has the row which it is made of, all of whose
    further columns come out with it; ALL_INPUTS: one of the inputs has it; None: there is no such row.

    ``carrying(column, inputs)``: the operator that carries a further ``column`` through, if it is not this one.
    ``lost``: in words of which rows nothing is known, as in "of rows that it gives of its right side alone".

    Where a row is made of several: ``of_batch``: of some of the batch that was taken last, whose tag it has.
    ``numbering(column)``: the operator that says in a list column (named second; ``column`` if it has none) of which
    rows of its input each token is, counted from 0, −1 for none; its running operator tells as ``count`` how many have
    come, and as ``oldest`` the first of which it holds anything.
    """

    follows: int | None = None
    carrying: Callable[[str, Sequence[pa.Schema]], OperatorConfig] | None = None
    lost: str = ""
    of_batch: bool = False
    numbering: Callable[[str], tuple[OperatorConfig, str]] | None = None

    def of_several(self) -> bool:
        """Whether a row may be made of several."""
        return self.of_batch or self.numbering is not None


def _check_names(what: str, value: object) -> None:
    if not isinstance(value, tuple) or not all(isinstance(each, str) for each in value):
        raise FlowError(f"Traits: {what} has {value!r:.100} for names of columns", "give a tuple of names: ('key',)")


_CUT_METHODS = frozenset({"process", "end_round", "end_port", "finish", "drain"})


def _check_cut(cut: object) -> None:
    if not isinstance(cut, Mapping) or not all(isinstance(how, Cut) for how in cut.values()):
        raise FlowError(f"Traits: cut has {cut!r:.100}", 'give a dict: {"finish": ps.Cut.WITHIN}')
    strange = [name for name in cut if name not in _CUT_METHODS]
    if strange:
        raise FlowError(
            f"Traits: cut names {strange[0]!r:.100}", f"only these answer with steps: {', '.join(sorted(_CUT_METHODS))}"
        )
    if cut.get("process") is Cut.WITHIN:
        raise FlowError("Traits: cut says WITHIN of process: its batch would be taken twice", "say ps.Cut.BEFORE")


def _check_rows_at_once(rows: object, asynchronous: bool) -> None:
    if rows is None:
        return
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise FlowError(f"Traits: rows_at_once={rows!r:.100} is no number of rows", "give 1 or more, or leave it out")
    if asynchronous:
        raise FlowError(
            "Traits: rows_at_once of an asynchronous operator", "leave it out: no cut waits for its batches"
        )


_KINDS = "use ps.Emission, ps.State, ps.Lineage, or leave it out: nothing is known then"


@dataclass(frozen=True, slots=True)
class Traits:
    """See the module's rules; a field that is left out says that nothing is known, or nothing is needed."""

    columns: Columned | None = None
    """What it does with the columns of each input, which have these schemas."""
    narrowed: Narrowed | None = None
    """The operator that gives these columns only, at least one; for who computes each column by itself."""
    unordered: Callable[[], OperatorConfig] | None = None
    """The operator that may be used instead where rows come in the order of their arrival."""
    emission: Emission = Emission.UNKNOWN
    state: State = State.OTHER
    rows: Multiplicity = Multiplicity.OTHER
    lineage: Lineage = Lineage()
    deterministic: bool = False
    """Equal rows in give equal rows out, wherever and however often they are computed."""
    grouped_by: tuple[str, ...] | None = None
    """Rows that are equal in these columns must come to one subtask; (): all rows; None: any row to any subtask."""
    co_partitioned_by: tuple[tuple[str, ...], ...] = ()
    """For each input the columns by which rows meet, only within a round and lane: inputs must come in the same rounds,
    and be partitioned alike."""
    key_filters: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """For inputs whose rows give nothing if the other input has none with the same keys: the key columns. It tells
    ``OperatorContext.listeners`` of them what the other one has, once that is complete."""
    needs_match: tuple[int, ...] = ()
    """Of a join: the inputs whose rows give nothing if the other one has none with the same keys. Each may wait until
    the other one is complete (:class:`~.operator.ReadsInTurn`)."""
    may_miss_rows: Callable[[Sequence[pa.Schema]], Sequence[bool]] | None = None
    """For each input whether rows may be left out of it, by the values of a column that is kept: what is made of the
    others, their order, and whether there is an error stay as they are."""
    asks: Asks | None = None
    """For each input a condition that has an answer for every row: those for which it does not hold may be left out of
    that input (None: there is none). Neither rows, nor their order, nor whether there is an error depends on it."""
    early: Early | None = None
    """For each input what stands in it for such columns of the output. If nobody behind needs a row for which a
    condition on these does not hold, the rows of the input for which it does not hold may be left out of it: the others
    come out in their order, and whether there is an error stays as it is. Without it: columns that are kept, of inputs
    that may miss rows."""
    picks: bool = False
    """It lets some rows through, and the reader of a source that it stands behind does that (``PickingOperator``)."""
    condition: Callable[[Sequence[pa.Schema]], pc.Expression] | None = None
    """It lets the rows through for which this holds."""
    needs_order: bool = False
    """The flow must have a deterministic order."""
    build_side: BuildSide | None = None
    blocking: bool = False
    """Nothing leaves before the input, or its window, has ended: a pipeline begins behind it."""
    asynchronous: bool = False
    """The running operator is an ``AsynchronousOperator``: a pipeline begins with it."""
    always_drains: bool = False
    """It has nothing of its own to hold at a task barrier: ``at_barrier="hold"`` is refused."""
    may_be_copied: bool = False
    """It may run in every subtask over copies of the same rows (behind a broadcast)."""
    ends_epochs: bool = False
    """It lets go of its rows, and of what it remembers of them, when an epoch's last round ends at the latest."""
    epochs: int | None = None
    """Of a sink: how often it wants the sources to be read; None: it takes rows of one epoch."""
    throttled: bool = False
    """Somebody outside sets its pace (``runtime.pacing``)."""
    lane_wise: bool = False
    """It takes each lane for itself, so that it does not matter which of them come to one subtask."""
    read_in_ratio: tuple[float, ...] = ()
    """One weight for each input: their sources are read in this ratio."""
    state_of: Callable[[Sequence[pa.Schema]], str] | None = None
    """In words what its state is of, if it is of use for nothing else: its keys and functions. None: it is of rows, or
    is useful whatever the options are. A flow that has changed does not go on with a state of something else."""
    cut: Mapping[str, Cut] = field(default_factory=dict)
    """For methods that answer with steps: on what a cut stands that comes while some are left; AFTER, if not named."""
    rows_at_once: int | None = None
    """It takes a batch in parts of so many rows, each in a call of its own, between which a cut may stand; None: a
    batch is one call, but for a user's sink: that is given parts which take about as long (``runtime.part_sizes``). For
    what takes long for each row. One that may refuse a batch (``accepts``) takes it whole."""
    takes_compact: bool = False
    """It may be given columns in their compact forms (``arrow.compact``), and may pass them on, or give its own so;
    its snapshots and what it spills are plain. Else the chain makes them plain before it."""
    counts_rows: bool = False
    """Which rows come out goes by their places: the splits of its sources are read in their own order."""
    draws_splits: SplitDraws | None = None
    """In which order it wants the splits of its sources, where nothing between them and it minds."""
    beyond_budget: str = "what it keeps"
    """In words what it has in memory whatever the memory budget is, beside a batch of its input and of its output: "the
    rows of one key"; "": nothing."""
    held_bytes: Callable[[int], int] | None = None
    """Of a sink: bytes that it may hold, beside the memory budget, if a row has about so many; None: those that may
    wait to be written."""
    held_at_most: tuple[int, str] | None = None
    """Of such a sink: bytes that it may hold however wide its rows are, and in words what it holds beside; None: that
    goes by their width."""

    def __post_init__(self) -> None:
        """Raises FlowError for a value of another kind."""
        kinds = {"emission": Emission, "state": State, "rows": Multiplicity, "lineage": Lineage}
        for name, kind in kinds.items():
            if not isinstance(getattr(self, name), kind):
                raise FlowError(f"Traits: {name}={getattr(self, name)!r:.100} is no {kind.__name__}", _KINDS)
        _check_cut(self.cut)
        _check_rows_at_once(self.rows_at_once, self.asynchronous)
        _check_names("grouped_by", () if self.grouped_by is None else self.grouped_by)
        if not isinstance(self.co_partitioned_by, tuple):
            _check_names("co_partitioned_by", self.co_partitioned_by)
        for each in self.co_partitioned_by:
            _check_names("co_partitioned_by", each)

    @classmethod
    def row_wise(
        cls, columns: Columned | None = None, narrowed: Narrowed | None = None, lineage: Lineage = Lineage(follows=0)
    ) -> Traits:
        """Those of an operator that makes each row of the output of one row of its only input, and keeps nothing: a
        batch may be processed again."""
        return cls(
            columns=columns,
            narrowed=narrowed,
            emission=Emission.PER_BATCH,
            state=State.NONE,
            lineage=lineage,
            deterministic=True,
            may_be_copied=True,
            beyond_budget="",
            ends_epochs=True,
            cut={"process": Cut.BEFORE},
        )

    def is_row_wise(self) -> bool:
        """Whether each row of the output depends on one row of the input alone."""
        return self.state is State.NONE and self.emission is Emission.PER_BATCH and self.deterministic

    def columns_of(self, inputs: Sequence[pa.Schema]) -> Sequence[Columns]:
        """What it does with the columns of each input."""
        if self.columns is None:
            return [Columns() for _ in inputs]
        found: object = self.columns(inputs)
        if not isinstance(found, Sequence) or [type(each) for each in found] != [Columns] * len(inputs):
            message = f"Traits: columns gave {found!r:.100} for {len(inputs)} inputs"
            raise FlowError(message, "let it give a list with one ps.Columns for each input")
        return found


UNKNOWN = Traits()

_known: Final[dict[int, tuple[weakref.ref[Any], Traits]]] = {}
"""What live configs have said, by their address. What refers to its config, as bound methods do, keeps it alive: so
these are few, and ``forget_traits`` lets go of them."""

MOST_KNOWN = 1024


def _forget(place: int, _: object, known: dict[int, Any] = _known) -> None:
    known.pop(place, None)


def traits_of(config: object) -> Traits:
    """What a config says of itself, asked once for each: configs do not change. Raises FlowError if that is something
    else."""
    known = _known.get(id(config))
    if known is not None and known[0]() is config:
        return known[1]
    found = getattr(config, "traits", UNKNOWN)
    if not isinstance(found, Traits):
        raise FlowError(
            f"the traits of {type(config).__name__} are no Traits", "give a ps.Traits(…), or leave them out"
        )
    if len(_known) >= MOST_KNOWN:
        forget_traits()
    with suppress(TypeError):  # nothing can tell when such an object is gone
        _known[id(config)] = weakref.ref(config, partial(_forget, id(config))), found
    return found


def forget_traits() -> None:
    """Keep no config alive any more: one of a job that is over may hold much of its user's."""
    _known.clear()
