"""Every trait that an operator declares is true: built-in ones and users' own run, and do what they say."""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine import operators
from penstock.engine.core.elements import Batch, Tag
from penstock.engine.core.epochs import Epochs
from penstock.engine.core.operator import (
    AsynchronousOperator,
    PickingOperator,
    RunningOperator,
    exhaust,
    run_at_once,
)
from penstock.engine.core.traits import ALL_INPUTS, Emission, Multiplicity, State, Traits, traits_of
from penstock.engine.expressions.implied import implied
from penstock.engine.kernels.key_filter import KeyFilter
from penstock.engine.operators import (
    PackWhole,
)
from support.operator_cases import CASES, LIKE, ONE, ROUNDS, ports_of, schemas_of
from support.operator_harness import Collected, Units, context, rows_of, run

ID = "row_id"


def which(declare: Callable[[Traits], object] = lambda traits: True) -> pytest.MarkDecorator:
    """The cases that declare something."""
    return pytest.mark.parametrize("name", [name for name, config in CASES.items() if declare(traits_of(config))])


def whole(port: Units) -> pa.Table:
    return pa.concat_tables([port[at] for at in sorted(port)])


def selected(port: Units, names: set[str]) -> Units:
    """These columns alone; one at least, as sources give them."""
    return {at: rows.select([each for each in rows.schema.names if each in names] or [0]) for at, rows in port.items()}


def counted(table: pa.Table) -> Counter[str]:
    return Counter(map(repr, rows_of(table)))


def test_every_operator_is_looked_at() -> None:
    found = set()
    for module in pkgutil.walk_packages(operators.__path__, f"{operators.__name__}."):
        members = vars(importlib.import_module(module.name)).values()
        found |= {each for each in members if isinstance(each, type) and {"build", "describe"} <= set(dir(each))}
    found = {each for each in found if not getattr(each, "_is_protocol", False)}
    marked = {PackWhole}  # it takes rows that end in groups: test_pack_whole
    assert {type(config) for config in CASES.values()} >= found - marked
    assert all("traits" in dir(each) for each in found)


# ---------------------------------------------------------------------- columns


@which(lambda traits: traits.columns is not None)
@pytest.mark.parametrize("seed", range(4))
def test_what_is_wanted_is_made_of_the_columns_that_are_said_to_be_needed(name: str, seed: int) -> None:
    config, ports = CASES[name], ports_of(name)
    traits, schemas = traits_of(config), schemas_of(ports)
    everything = config.output_schema(schemas)
    chance = random.Random(seed)
    wanted = [each for each in everything.names if chance.random() < 0.4] or everything.names[-1:]
    needed = [each.needed(wanted, of) for each, of in zip(traits.columns_of(schemas), schemas, strict=True)]
    fewer = [selected(port, names) for port, names in zip(ports, needed, strict=True)]
    narrowed = config if traits.narrowed is None else traits.narrowed(wanted)
    found = run(narrowed, *fewer).table
    assert found.select(wanted).equals(run(config, *ports).table.select(wanted))


@which(lambda traits: traits.columns is not None)
def test_columns_that_are_kept_have_the_values_of_the_input(name: str) -> None:
    config, ports = CASES[name], ports_of(name)
    found = run(config, *ports).table
    columns = traits_of(config).columns_of(schemas_of(ports))
    given = [whole(port) for port in ports]
    for each, table in zip(columns, given, strict=True):
        for mine, theirs in each.keeps.items():
            known = {repr(value) for other in given if mine in other.schema.names for value in other[mine].to_pylist()}
            assert table.schema.field(mine).type == found.schema.field(theirs).type
            assert {repr(value) for value in found[theirs].to_pylist()} <= known


# ---------------------------------------------------------------------- rows


@which(lambda traits: traits.deterministic)
def test_deterministic_operator_gives_equal_rows_again(name: str) -> None:
    config, ports = CASES[name], ports_of(name)
    assert run(config, *ports, size=16).units == run(config, *ports, size=16, seed=5).units


@which(lambda traits: traits.rows is not Multiplicity.OTHER)
def test_rows_are_those_that_are_said(name: str) -> None:
    traits = traits_of(CASES[name])
    ports = ports_of(name)
    found, given = run(CASES[name], *ports).table, pa.concat_tables([whole(port) for port in ports])
    assert found.num_rows == given.num_rows
    if traits.rows is Multiplicity.SAME:
        assert counted(found.select(given.column_names)) == counted(given)


@which(lambda traits: traits.lineage.follows is not None)
def test_row_that_an_output_row_follows_goes_on_with_all_its_columns(name: str) -> None:
    config, ports = CASES[name], ports_of(name)
    traits, schemas = traits_of(config), schemas_of(ports)
    assert traits.lineage.follows is not None
    carrying = config if traits.lineage.carrying is None else traits.lineage.carrying(ID, schemas)
    followed = range(len(ports)) if traits.lineage.follows == ALL_INPUTS else [traits.lineage.follows]
    numbered, rows = list(ports), {}
    for port in followed:
        numbered[port] = {}
        for at, table in ports[port].items():
            ids = range(len(rows), len(rows) + table.num_rows)
            rows |= dict(zip(ids, table.to_pylist(), strict=True))
            numbered[port] = {**numbered[port], at: table.append_column(ID, pa.array(ids, pa.int64()))}
    found = run(carrying, *numbered).table
    assert counted(found.drop_columns([ID])) == counted(run(config, *ports).table), "an origin changes the rows"
    keeps = [traits.columns_of(schemas)[port].keeps for port in followed]
    for row in found.to_pylist():
        if row[ID] is None:
            assert traits.lineage.lost
        else:
            assert {theirs: row[theirs] for theirs in keeps[0].values()} == {
                theirs: rows[row[ID]][mine] for mine, theirs in keeps[0].items()
            }


@which(lambda traits: traits.lineage.numbering)
def test_rows_that_are_numbered_are_those_of_the_input(name: str) -> None:
    config, ports = CASES[name], ports_of(name)
    numbering = traits_of(config).lineage.numbering
    assert numbering is not None
    numbered, column = numbering("numbers")
    lists = whole(ports[0])["l"].to_pylist()
    for row in run(numbered, *ports).table.to_pylist():
        told = [(token, place) for token, place in zip(row["l"], row[column], strict=True) if place >= 0]
        assert all(token in lists[place] for token, place in told)


def needs_no_more_than_groups(traits: Traits) -> bool:
    """Not all rows, nor those of a group side by side."""
    return traits.grouped_by != () and traits.emission is not Emission.PER_GROUP


@pytest.mark.parametrize("name", [name for name in ONE if needs_no_more_than_groups(traits_of(ONE[name]))])
def test_rows_of_a_group_are_all_that_must_come_together(name: str) -> None:
    config, ports = CASES[name], ports_of(name)
    by = traits_of(config).grouped_by
    parts: list[dict[tuple[int, int], pa.Table]] = [{}, {}]
    for at, rows in ports[0].items():
        for part in (0, 1):
            keys = (
                [at[1]] * len(rows)
                if by is None
                else map(repr, zip(*(rows[key].to_pylist() for key in by), strict=True))
            )
            parts[part][at] = rows.filter(pa.array([sum(map(ord, str(key))) % 2 == part for key in keys], pa.bool_()))
    apart = pa.concat_tables([run(config, part).table for part in parts])
    assert counted(apart) == counted(run(config, *ports).table)


# ---------------------------------------------------------------------- emission and state


def steps_of(name: str, epochs: Epochs | None = None) -> Iterator[tuple[str, int, RunningOperator, Collected]]:
    """What an operator has after each call: the call, its round, itself, and what it has emitted."""
    config, ports = CASES[name], ports_of(name)
    running = config.build(replace(context(), epochs=epochs), schemas_of(ports), None)
    out = Collected(config.output_schema(schemas_of(ports)))
    order = list(reversed(range(len(ports)))) if traits_of(config).build_side else list(range(len(ports)))
    batches = {at: [port[at].combine_chunks().to_batches() for port in ports] for at in ports[0]}
    for round in range(ROUNDS):
        for port in order:
            for at in sorted(each for each in batches if each[0] == round):
                for records in batches[at][port]:
                    if records.num_rows and running.accepts(port):
                        exhaust(running.process(port, Batch(records, Tag(*at, 0)), out))
                        yield "batch", round, running, out
        for port in order:
            exhaust(running.end_round(port, round, out))
            yield "port's round", round, running, out
        yield "round", round, running, out
    for port in order:
        exhaust(running.end_port(port, out))
    yield "ports", ROUNDS, running, out
    exhaust(running.finish(out))
    yield "end", ROUNDS, running, out
    running.close()


@which()
def test_rows_leave_when_it_is_said(name: str) -> None:
    emission = traits_of(CASES[name]).emission
    before = 0
    for call, round, _, out in steps_of(name):
        new, before = out.batches[before:], len(out.batches)
        if emission is Emission.PER_BATCH:
            assert call == "batch" or not new
        if emission is Emission.PER_ROUND:
            assert not new or call not in ("ports", "end")
        if emission in (Emission.PER_BATCH, Emission.PER_ROUND):
            assert all(batch.tag.round == round for batch in new)
        if emission is Emission.AT_END:
            assert not new or call in ("ports", "end")
        if emission is Emission.AFTER_BUILD:
            assert not new or call in ("ports", "end")


@which(lambda traits: traits.state is not State.OTHER)
def test_state_is_what_is_said(name: str) -> None:
    traits = traits_of(CASES[name])
    for call, _, running, _ in steps_of(name):
        if call in ("round", "ports"):
            state = running.snapshot()
            if traits.state is State.NONE:
                assert state is None
            if traits.state is State.COUNTERS and state is not None:
                assert not any(pa.types.is_struct(each.type) for each in state.schema)
            if traits.state is State.ROWS and state is not None:
                assert set(LIKE.names) <= {each.name for each in state.schema.field("row").type}


@which(lambda traits: traits.ends_epochs)
def test_nothing_is_held_at_the_end_of_an_epoch_by_who_says_so(name: str) -> None:
    for call, round, running, _ in steps_of(name, Epochs(2, ROUNDS)):
        state = running.snapshot() if call == "round" and round == ROUNDS - 1 else None
        if state is not None and "row" in state.schema.names:
            assert state["row"].null_count == state.num_rows


@which()
def test_asynchronous_blocking_and_copied_operators_are_what_they_say(name: str) -> None:
    config, ports = CASES[name], ports_of(name)
    traits = traits_of(config)
    running = config.build(replace(context(), elsewhere=run_at_once), schemas_of(ports), None)
    assert isinstance(running, AsynchronousOperator) == traits.asynchronous
    running.close()
    assert not traits.blocking or traits.emission is Emission.AT_END
    assert not traits.may_be_copied or len(ports) == 1
    assert len(traits.read_in_ratio) in (0, len(ports))
    assert not traits.lane_wise or traits.grouped_by is None


@which(lambda traits: traits.build_side and not traits.build_side.gives_rows)
def test_build_side_gives_no_rows_by_itself_unless_it_says_so(name: str) -> None:
    build = traits_of(CASES[name]).build_side
    assert build is not None
    ports = ports_of(name)
    left = {at: rows.slice(0, 0) for at, rows in ports[1 - build.port].items()}
    assert run(CASES[name], left, ports[build.port]).table.num_rows == 0


@which(lambda traits: traits.key_filters)
def test_rows_that_its_key_filters_drop_give_nothing(name: str) -> None:
    config = CASES[name]
    for port, columns in traits_of(config).key_filters.items():
        ports = ports_of(name)
        ports[1 - port] = {at: rows.slice(0, 1) for at, rows in ports[1 - port].items()}
        told = KeyFilter(range(len(columns)))
        where = replace(context(), listeners={port: [told]})
        running, nobody = (
            config.build(where, schemas_of(ports), None),
            Collected(config.output_schema(schemas_of(ports))),
        )
        for (round, lane), rows in ports[1 - port].items():
            for records in rows.to_batches():
                if records.num_rows:
                    running.process(1 - port, Batch(records, Tag(round, lane, 0)), nobody)
        exhaust(running.end_port(1 - port, nobody))
        running.close()
        picked = {at: told.picked(0, [rows[column].combine_chunks() for column in columns])
                  for at, rows in ports[port].items()}  # fmt: skip
        fewer = [{at: rows.take(picked[at]) for at, rows in ports[port].items()}, ports[1 - port]]
        whole = run(config, *ports).table
        assert rows_of(run(config, *(fewer if port == 0 else fewer[::-1])).table) == rows_of(whole)
        assert 0 < told.passed < told.seen


@which(lambda traits: traits.may_miss_rows)
def test_rows_that_are_left_out_of_its_input_are_all_that_is_missing(name: str) -> None:
    config, ports = CASES[name], ports_of(name)
    schemas, traits = schemas_of(ports), traits_of(config)
    may = traits.may_miss_rows(schemas) if traits.may_miss_rows is not None else []
    before = run(config, *ports).table
    for port, columns in enumerate(traits.columns_of(schemas)):
        for theirs, mine in columns.keeps.items():
            if not may[port] or pa.types.is_nested(schemas[port].field(theirs).type):
                continue
            left_out = pa.array(whole(ports[port])[theirs].unique().to_pylist()[::2])
            fewer = [dict(each) for each in ports]
            fewer[port] = {at: rows.filter(~pc.field(theirs).isin(left_out)) for at, rows in ports[port].items()}
            assert rows_of(run(config, *fewer).table) == rows_of(before.filter(~pc.field(mine).isin(left_out)))


@which(lambda traits: traits.asks)
def test_rows_that_do_not_meet_what_it_asks_give_nothing(name: str) -> None:
    config, ports = CASES[name], ports_of(name)
    asks = traits_of(config).asks
    assert asks is not None
    before = rows_of(run(config, *ports).table)
    for port, condition in enumerate(asks(schemas_of(ports))):
        if condition is not None:
            fewer = [dict(each) for each in ports]
            fewer[port] = {at: rows.filter(condition) for at, rows in ports[port].items()}
            assert rows_of(run(config, *fewer).table) == before


@which(lambda traits: traits.early)
def test_a_condition_that_is_asked_early_leaves_out_rows_that_it_would_drop(name: str) -> None:
    config, ports = CASES[name], ports_of(name)
    early = traits_of(config).early
    assert early is not None
    before = run(config, *ports).table
    for port, columns in enumerate(early(schemas_of(ports), before.schema.names)):
        for column in columns:
            if pa.types.is_nested(before.schema.field(column).type):
                continue
            later = ~pc.field(column).isin(before[column].unique().to_pylist()[::2])
            condition = implied(later, columns)
            assert condition is not None
            fewer = [dict(each) for each in ports]
            fewer[port] = {at: rows.filter(condition) for at, rows in ports[port].items()}
            assert rows_of(run(config, *fewer).table.filter(later)) == rows_of(before.filter(later))


@which(lambda traits: traits.picks)
def test_operator_that_picks_says_what_it_lets_through(name: str) -> None:
    config, (port,) = CASES[name], ports_of(name)
    schema = schemas_of([port])[0]
    running = config.build(context(), [schema], None)
    assert isinstance(running, PickingOperator)
    condition = running.condition(schema)
    (columns,) = traits_of(config).columns_of([schema])
    assert set(condition.columns) == columns.reads
    told = traits_of(config).condition
    assert told is None or told([schema]).equals(condition.expression)
    (records,) = whole(port).combine_chunks().to_batches()
    passing = records.filter(condition.mask(records)).select(list(condition.keeps or schema.names))
    assert rows_of(run(config, port).table) == rows_of(pa.Table.from_batches([passing]))


@which(lambda traits: traits.co_partitioned_by)
def test_rows_meet_in_their_round_and_lane_if_inputs_must_be_alike(name: str) -> None:
    ports = ports_of(name)
    by_unit = [run(CASES[name], *({at: port[at]} for port in ports)).table for at in sorted(ports[0])]
    assert counted(pa.concat_tables(by_unit)) == counted(run(CASES[name], *ports).table)
