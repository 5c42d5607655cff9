"""Contract: a cut may stand between any two calls of a chain's operators, and between any two pieces of what one emits.

Chains are drawn from a seed, of operators of every kind; what comes out of all attempts together is what comes out of a
run without cuts, and control elements keep their places among it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from penstock.engine.core.elements import Batch, PickedBatch, Tag
from penstock.engine.core.errors import FlowError, InternalError, PenstockError, UserCodeError
from penstock.engine.core.operator import OperatorConfig, Output, Stateless
from penstock.engine.core.traits import Cut, Traits
from penstock.engine.operators import Aggregate, HashAggregate, LookupJoin, Project
from penstock.engine.operators.rowwise import map_batches
from penstock.engine.runtime.driver import at_once
from penstock.engine.runtime.operator_chain import OperatorChain, OperatorInstance
from penstock.engine.state.change_log import Changes
from support.cut_drivers import CutDriver
from support.cut_operators import events_of
from support.driver_rig import batch
from support.index_kinds import Delayed
from support.operator_cases import INDEX, LIKE, ONE, TWO, ports_of, schemas_of
from support.operator_harness import context
from support.own_operators import Calls
from support.spilling import budget
from support.sweeps import seeds

ELSEWHERE: dict[str, OperatorConfig] = {
    "lookup elsewhere": LookupJoin(Delayed(INDEX), ("k",), prefetch=2),
    "map batches": ONE["map batches"],
    "map batches in parts": ONE["map batches in parts"],
    "map batches at once": replace(ONE["map batches in parts"], concurrency=3),
}
FIRST = {**ONE, **TWO, **ELSEWHERE}
CUTS = 5
"""Cuts of one run, about."""


def chain_of(first: str, length: int, schemas: list[pa.Schema], chance: random.Random) -> list[OperatorConfig]:
    """An operator, and others that take what it gives."""
    found = [FIRST[first]]
    schema = found[0].output_schema(schemas)
    # batches refuse what others make null, or dear; a part is given once
    names = [name for name in ONE if not name.startswith("batches") and name != "mark part"]
    names += ["map batches", "unnest", "aggregate", "sort"] * 2
    while len(found) < length and set(schema.names) >= {"k", "v", "c"}:
        config = ONE[chance.choice(names)]
        if config.kind == "map batches" and schema.names != LIKE.names:
            continue  # its function gives what it gets
        with suppress(FlowError):
            schema = config.output_schema([schema])
            found.append(config)
    return found


def run_of(seed: int) -> CutDriver:
    """Equal for equal seeds."""
    chance = random.Random(seed)
    first = chance.choice([*FIRST, *ELSEWHERE, *ELSEWHERE])
    ports = ports_of(first)
    configs = chain_of(first, chance.randint(1, 5), schemas_of(ports), chance)
    streams = [events_of(port, chance, with_final=False) for port in ports]
    credit = chance.choice([1, 1 << 30])
    return CutDriver(configs, schemas_of(ports), streams, chance, output_rows=chance.choice([3, 5, 50]), credit=credit)


@pytest.mark.parametrize("seed", seeds(12, of=2000))
def test_a_chain_that_is_cut_gives_what_it_gives_uncut(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(map_batches, "LONG_SECONDS", -1.0)  # every call of the first one is made elsewhere
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    expected = run_of(seed).run(count)
    chance = random.Random(seed)
    often = min(1.0, CUTS / steps)
    assert run_of(seed).run(lambda: chance.random() < often) == expected


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("seed", seeds(8, of=400))
def test_what_an_operator_takes_at_once_does_not_depend_on_cuts(seed: int, before: int) -> None:
    """Rows, tags and the number of each call."""

    def run_of() -> CutDriver:
        chance = random.Random(seed)
        configs = [Project((("k", "k"), ("v", "v")))] * before + [Calls(2), Calls(3)]
        streams = [events_of(ports_of("filter")[0], chance, with_final=bool(seed & 1))]
        return CutDriver(configs, [LIKE], streams, chance, output_rows=50, credit=chance.choice([1, 1 << 30]))

    expected, chance = run_of().run(lambda: False), random.Random(seed)
    assert run_of().run(lambda: chance.random() < 0.3) == expected
    told = [(lane, *row[-6:]) for round, lane, row in (each for each in expected if len(each) == 3)]
    assert {each[2] for each in told} == {1, 2}, "batches have up to five rows"
    assert all(rows == again for _, _, rows, _, _, again, _ in told), "what is small already is one part"
    by_call = Counter((lane, call) for lane, call, *_ in told)
    assert all(by_call[lane, call] == rows for lane, call, rows, *_ in told)


class Noting(Stateless):
    """Notes the tags and rows that it is given."""

    def __init__(self) -> None:
        self.given: list[tuple[int, int]] = []

    def process(self, port: int, batch: Batch, out: Output) -> None:
        self.given.append((batch.tag.sequence, batch.records.num_rows))


class NotingWhole(Noting):
    """May refuse a batch."""

    def accepts(self, port: int) -> bool:
        return True


def noting(running: Noting) -> OperatorChain:
    return OperatorChain([OperatorInstance("op", running, rows_at_once=2)], lambda batch: None)


def test_what_is_left_of_a_batch_is_in_flight_before_the_operator_that_takes_it_in_parts() -> None:
    first, again = Noting(), Noting()
    chain = noting(first)
    chain.push(0, batch(0, 0, *range(5)))
    chain.go_on(at_once)
    assert first.given == [(0, 2)]
    flight, aside = chain.capture()
    assert [each.records.num_rows for each in aside] == [3]
    assert [(each.operator, each.method) for each in flight.aside] == [(0, "")]
    restored = noting(again)
    restored.put_back(flight, aside)
    for each in (chain, restored):
        each.go_on(lambda: False)
        for later in (Batch(batch(0, 0, 7, 8).records, Tag(0, 0, 1)), batch(0, 1, 7), batch(1, 0, 7)):
            each.push(0, later)
            each.go_on(lambda: False)
    assert again.given == [(1, 2), (2, 1), (3, 2), (0, 1), (0, 1)]
    assert first.given == [(0, 2), *again.given]


def test_an_operator_that_may_refuse_a_batch_takes_it_whole() -> None:
    running = NotingWhole()
    chain = noting(running)
    chain.push(0, batch(0, 0, *range(5)))
    chain.go_on(lambda: False)
    assert running.given == [(0, 5)]


def test_rows_that_were_picked_where_they_were_read_count_once_however_they_are_taken() -> None:
    running = Noting()
    chain, rows = noting(running), batch(0, 0, *range(5)).records
    chain.push(0, PickedBatch(rows, Tag(0, 0, 0), counts=(9,)))
    chain.go_on(lambda: False)
    assert running.given == [(0, 2), (1, 2), (2, 1)]
    assert chain.operators[0].rows_in == 9


class Fickle(Stateless):
    """Gives less each time that it is built."""

    built = 0

    def __init__(self) -> None:
        type(self).built += 1
        self._gives = 5 - 2 * self.built

    def process(self, port: int, batch: Batch, out: Output) -> Iterator[None]:
        for number in range(self._gives):
            out.emit(Batch(batch.records, Tag(batch.tag.round, batch.tag.lane, number)))
            yield


@pytest.mark.parametrize(("is_users", "error"), [(False, InternalError), (True, UserCodeError)])
def test_a_call_that_gives_less_when_it_is_made_again_is_an_error(
    monkeypatch: pytest.MonkeyPatch, is_users: bool, error: type[PenstockError]
) -> None:
    monkeypatch.setattr(Fickle, "built", 0)

    def chain() -> OperatorChain:
        operator = OperatorInstance("op", Fickle(), is_users=is_users, cut={"process": Cut.BEFORE})
        return OperatorChain([operator], lambda batch: None)

    first, again = chain(), chain()
    first.push(0, batch(0, 0, 1))
    for _ in range(3):
        first.go_on(at_once)
    again.put_back(*first.capture())
    with pytest.raises(error, match="fewer rows when it was called again"):
        again.go_on(lambda: False)


def _rows_of(state: pa.Table | Changes) -> pa.Table:
    """In their order, whether they are written in parts or not."""
    whole = state.whole() if isinstance(state, Changes) else state
    return whole.sort_by("position")


@pytest.mark.parametrize("budgeted", [False, True])
def test_an_aggregate_that_is_cut_while_it_emits_puts_no_group_aside(budgeted: bool) -> None:
    """Its state has them already, all as before; only how many have left is in flight."""
    config = HashAggregate(("x",), (Aggregate("n", None, "count"),))
    given = batch(0, 0, *range(30))
    with budget(0 if budgeted else 1 << 30) as task:
        where = replace(context(), output_rows=3, memory=task.account("op"))
        operator = OperatorInstance("op", config.build(where, [given.records.schema], None), cut=config.traits.cut)
        left: list[Batch] = []
        chain = OperatorChain([operator], left.append)
        chain.push(0, given)
        chain.go_on(at_once)
        before = chain.snapshot()["op"]
        chain.call(chain.finish_steps()[0])
        while len(left) < 4:
            chain.go_on(at_once)
        flight, aside = chain.capture()
        assert aside == []
        assert [(each.method, each.given) for each in flight.aside] == [("finish", {0: 12})]
        assert _rows_of(chain.snapshot()["op"]).equals(_rows_of(before))
        chain.close()


@pytest.mark.parametrize(
    ("traits", "words"),
    [
        ({"rows_at_once": 0}, "no number of rows"),
        ({"rows_at_once": True}, "no number of rows"),
        ({"rows_at_once": "few"}, "no number of rows"),
        ({"rows_at_once": 5, "asynchronous": True}, "asynchronous"),
    ],
)
def test_traits_that_say_something_else_of_rows_at_once_are_refused(traits: Any, words: str) -> None:
    with pytest.raises(FlowError, match=words):
        Traits(**traits)


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        ({"process": Cut.WITHIN}, "taken twice"),
        ({"begin": Cut.BEFORE}, "'begin'"),
        ({"finish": "before"}, "give a dict"),
        (Cut.BEFORE, "give a dict"),
    ],
)
def test_traits_that_say_something_else_of_cuts_are_refused(cut: Any, words: str) -> None:
    with pytest.raises(FlowError, match=words):
        Traits(cut=cut)
