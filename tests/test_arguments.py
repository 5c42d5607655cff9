"""Every public function with wrong values for each of its arguments: an error that names what is wrong, or it works.

Which functions there are is found out from the public names and their signatures: one that is new and has no valid call
in ``CALLS`` fails the sweep.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.actors.feed.reader import FeedHandle, Reader
from penstock.actors.job import launch
from penstock.engine.core.errors import ConfigurationError, PenstockError
from penstock.engine.sources.memory import MemorySource

TABLE = pa.table({"k": ["a", "b", None], "v": [1, 2, 3], "x": [0.5, 1.5, 2.5], "l": [[1], [2, 3], []]})
OTHER = pa.schema([("other", pa.date32())])
WRONG: dict[str, Any] = {
    "text": "text",
    "true": True,
    "2.5": 2.5,
    "nan": float("nan"),
    "-1": -1,
    "10**12": 10**12,
    "None": None,
    "path": Path("nowhere"),
    "surrogate": "\ud800",
    "schema": OTHER,
    "empty list": [],
    "twice": ["k", "k"],
    "dict": {"no": 1},
    "object": object(),
    "bytes": b"v",
}

Call = tuple[Callable[..., Any], dict[str, Any]]
"""A function, and arguments that it takes."""


def stream(name: str = "sweep") -> ps.Stream:
    return ps.Flow(name).from_tables([TABLE])


def same(records: pa.RecordBatch) -> pa.RecordBatch:
    return records


def twice(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [row, row]


def other_of(one: ps.Stream) -> ps.Stream:
    return one.flow.from_tables([TABLE])


class NoSpark:
    """Looks like a session, and refuses everything."""

    @property
    def read(self) -> Any:
        raise ConfigurationError("no Spark", "there is none in this test")

    createDataFrame = read  # noqa: N815 (Spark's name)


class World:
    """What the calls are made on. ``job``: finished; ``reader``: one that has not begun."""

    def __init__(self) -> None:
        pq.write_table(TABLE.drop_columns(["l"]), "in.parquet")
        Path("in.csv").write_text("k,v\na,1\nb,2\n")
        with pa.ipc.new_file("in.arrow", TABLE.schema) as writer:
            writer.write_table(TABLE)
        flow = ps.Flow("world")
        flow.from_tables([TABLE]).collect("rows")
        flow.from_tables([TABLE]).write_parquet("out")
        self.job = ps.run_local(flow, checkpoints="state").wait(30)
        flow = ps.Flow("training")
        sources = [flow.from_tables([TABLE], name=name) for name in ("first", "second")]
        flow.mix(dict.fromkeys(sources, 1.0)).feed(2)
        self.feeding = ps.run_local(flow, checkpoints="feed-state")
        self.handle = self.feeding.feed()
        flow = ps.Flow("fed")
        flow.from_split_sets(TABLE.schema, name="in").collect("rows")
        self.fed = ps.run_local(flow, checkpoints="fed-state")

    def close(self) -> None:
        self.feeding.shutdown()
        self.fed.shutdown()


def fed() -> ps.Flow:
    flow = ps.Flow("replayed")
    flow.from_tables([TABLE]).feed(2)
    return flow


def expression() -> ps.Expression:
    return ps.col("v")


def plan_task() -> ps.PlanTask:
    return ps.PlanTask(ps.Flow("plan").from_split_sets(TABLE.schema, name="in"))


def calls(world: World) -> dict[str, Callable[[], Call]]:
    """By the function's name: what makes a call of it that works."""

    def method(make: Callable[[], Any], called: str, /, **valid: Any) -> Callable[[], Call]:
        def made() -> Call:
            owner = make()
            given = {key: value(owner) if value is other_of else value for key, value in valid.items()}
            return getattr(owner, called), given

        return made

    def function(called: Callable[..., Any], /, **valid: Any) -> Callable[[], Call]:
        return lambda: (called, valid)

    def flow() -> ps.Flow:
        return ps.Flow("sweep")

    def mixing() -> Call:
        one = stream()
        return one.flow.mix, {"weights": {one: 1, other_of(one): 2}}

    def applying() -> Call:
        one = stream()
        from penstock.engine.operators import Filter

        return one.flow.apply, {"config": Filter("v > 1"), "inputs": [one]}

    def attaching() -> Call:
        one = stream()
        from penstock.engine.sinks.collect import CollectSink

        return one.flow.attach, {"config": CollectSink("rows"), "stream": one}

    def writing() -> Call:
        from penstock.engine.sinks.collect import CollectSink

        return stream().write_to, {"sink": CollectSink("rows")}

    def applying_to() -> Call:
        from penstock.engine.operators import Filter

        return stream().apply, {"config": Filter("v > 1"), "others": ()}

    found: dict[str, Callable[[], Call]] = {
        "Columns": function(ps.Columns),
        "Lineage": function(ps.Lineage),
        "Traits": function(ps.Traits),
        "Stream.apply": applying_to,
        "Stream.forward": method(stream, "forward"),
        "Stream.write_to": writing,
        "Aggregate": function(ps.Aggregate, name="n", column="v", function="sum"),
        "aggregate_function": function(ps.aggregate_function, function=max, type=pa.int64()),
        "SortKey": function(ps.SortKey, column="v"),
        "WindowFunction": function(ps.WindowFunction, name="n", function="lag", column="v"),
        "Checkpoints": function(ps.Checkpoints, folder="state-2"),
        "Shuffle": function(ps.Shuffle, window=2),
        "Runtime": function(ps.Runtime),
        "col": function(ps.col, name="v"),
        "lit": function(ps.lit, value=1),
        "when": function(ps.when, condition=ps.col("v") > 1),
        "Expression.alias": method(expression, "alias", name="n"),
        "Expression.approx_quantile": method(expression, "approx_quantile", share=0.5),
        "Expression.quantile": method(expression, "quantile", share=0.5),
        "Expression.cast": method(expression, "cast", type=pa.int64()),
        "Expression.fill_null": method(expression, "fill_null", value=0),
        "Expression.is_between": method(expression, "is_between", low=1, high=2),
        "Expression.is_distinct_from": method(expression, "is_distinct_from", other=1),
        "Expression.is_in": method(expression, "is_in", values=[1, 2]),
        "Expression.round": method(expression, "round", digits=1),
        "Flow": function(ps.Flow, name="sweep"),
        "Flow.apply": applying,
        "Flow.attach": attaching,
        "Flow.explain": method(fed, "explain"),
        "Flow.from_ray_dataset": method(flow, "from_ray_dataset", dataset=1),
        "Flow.from_source": method(flow, "from_source", source=MemorySource((TABLE,))),
        "Flow.from_spark": method(flow, "from_spark", frame=1),
        "Flow.from_split_sets": method(flow, "from_split_sets", schema=TABLE.schema, name="in"),
        "Flow.from_tables": method(flow, "from_tables", tables=[TABLE]),
        "Flow.mix": mixing,
        "Flow.read_binary": method(flow, "read_binary", path="in.csv"),
        "Flow.read_csv": method(flow, "read_csv", path="in.csv"),
        "Flow.read_ipc": method(flow, "read_ipc", path="in.arrow"),
        "Flow.read_json": method(flow, "read_json", path="in.jsonl"),
        "Flow.read_parquet": method(flow, "read_parquet", path="in.parquet"),
        "Flow.read_text": method(flow, "read_text", path="in.csv"),
        "Stream.aggregate": method(stream, "aggregate", by=["k"], n="count"),
        "Stream.broadcast": method(stream, "broadcast"),
        "Stream.collect": method(stream, "collect", name="rows"),
        "Stream.count": method(stream, "count"),
        "Stream.distinct": method(stream, "distinct", by=("k",)),
        "Stream.feed": method(stream, "feed", batch_size=2),
        "Stream.filter": method(stream, "filter", predicate="v > 1"),
        "Stream.gather": method(stream, "gather"),
        "Stream.head": method(stream, "head", n=2),
        "Stream.hash_join": method(stream, "hash_join", other=other_of, on=["k"]),
        "Stream.iter_batches": method(stream, "iter_batches", batch_size=2),
        "Stream.limit": method(stream, "limit", count=2),
        "Stream.lookup_join": method(stream, "lookup_join", index=ps.index.memory(TABLE, key="v"), on="v"),
        "Stream.map_batches": method(stream, "map_batches", function=same, schema=TABLE.schema),
        "Stream.flat_map": method(stream, "flat_map", function=twice, schema=TABLE.schema),
        "Stream.mark_distinct": method(stream, "mark_distinct", by=("k",), marker="first"),
        "Stream.merge_join": method(stream, "merge_join", other=other_of, on=["v"]),
        "Stream.pack": method(stream, "pack", length=2, tokens="l"),
        "Stream.partition_by": method(stream, "partition_by", keys=("k",)),
        "Stream.partition_by_range": method(stream, "partition_by_range", column="v", bounds=[1, 2]),
        "Stream.project": method(stream, "project", columns=("k",)),
        "Stream.rebalance": method(stream, "rebalance"),
        "Stream.resources": method(stream, "resources"),
        "Stream.cast": method(stream, "cast", types={"v": "double"}),
        "Stream.drop": method(stream, "drop", columns=("v",)),
        "Stream.drop_nulls": method(stream, "drop_nulls"),
        "Stream.fill_null": method(stream, "fill_null", value=0),
        "Stream.group_by": method(stream, "group_by", by=("k",)),
        "Stream.rename": method(stream, "rename", columns={"v": "w"}),
        "Stream.sample": method(stream, "sample", fraction=0.5),
        "Stream.select": method(stream, "select", columns=("k",)),
        "Stream.show": method(stream, "show", n=2),
        "Stream.shuffle": method(stream, "shuffle", window=2),
        "Stream.sort": method(stream, "sort", keys=("v",)),
        "Stream.stream_aggregate": method(stream, "stream_aggregate", by=["k"], n="count"),
        "Stream.take": method(stream, "take", n=2),
        "Stream.to_arrow": method(stream, "to_arrow"),
        "Stream.to_pandas": method(stream, "to_pandas"),
        "Stream.to_polars": method(stream, "to_polars"),
        "Stream.top_n": method(stream, "top_n", count=2, keys=("v",)),
        "Stream.union": method(stream, "union"),
        "Stream.unnest": method(stream, "unnest", columns=("l",)),
        "Stream.window": method(stream, "window", by=["k"], order_by=["v"], r="row_number"),
        "Stream.with_columns": method(stream, "with_columns", y="v + 1"),
        "Stream.write_csv": method(stream, "write_csv", path="written"),
        "Stream.write_json": method(stream, "write_json", path="written"),
        "Stream.write_parquet": method(stream, "write_parquet", path="written"),
        "index.Between": function(ps.index.Between, column="v", low=1, high=2),
        "index.InList": function(ps.index.InList, column="v", values=(1,)),
        "index.memory": function(ps.index.memory, table=TABLE, key="v"),
        "index.parquet": function(ps.index.parquet, path="in.parquet", key="v"),
        "index.sql": function(ps.index.sql, database="in.db", relation="t", key="v"),
        "run": function(ps.run, flow=fed()),
        "run_local": function(ps.run_local, flow=fed(), checkpoints="local-state"),
        "attach": function(ps.attach, name="job"),
        "retire_output": function(ps.retire_output, log="state/world", output="out"),
        "list_jobs": function(ps.list_jobs),
        "warm": function(ps.warm, processes=1),
        "replay": function(ps.replay, flow=fed(), step=0),
        "PlanTask": function(ps.PlanTask, stream=fed_stream()),
        "PlanTask.add_split": method(plan_task, "add_split", source="in", split=TABLE),
        "PlanTask.no_more_splits": method(plan_task, "no_more_splits", source="in"),
        "PlanTask.read": method(plan_task, "read", timeout=0.01),
        "PlanTask.run": method(plan_task, "run", split_set={"in": TABLE}),
        "spark.session": function(ps.spark.session),
        "spark.start": function(ps.spark.start),
        "spark.read": function(ps.spark.read, spark=NoSpark(), result="out"),
        "spark.open_frame": function(ps.spark.open_frame, frame=1),
        "FeedHandle.skip": method(lambda: world.handle, "skip", steps=range(1)),
        "FeedHandle.reweight": method(
            lambda: world.handle, "reweight", weights={"first": 2.0}, from_step=1 << 20, from_row=None, timeout=5.0
        ),
        "FeedHandle.resume": method(lambda: world.handle, "resume", model_uri="model"),
        "FeedHandle.reader": method(lambda: world.handle, "reader"),
        "Reader.iter_batches": method(lambda: world.handle.reader(timeout=0.01), "iter_batches"),
        "Reader.iter_torch_batches": method(lambda: world.handle.reader(timeout=0.01), "iter_torch_batches"),
        "Reader.iter_jax_batches": method(lambda: world.handle.reader(timeout=0.01), "iter_jax_batches"),
        "Reader.loader": method(lambda: world.handle.reader(timeout=0.01), "loader"),
        "Reader.load_state_dict": method(
            world.handle.reader, "load_state_dict", state=world.handle.reader().state_dict()
        ),
        "Reader.rejoin": method(world.handle.reader, "rejoin", rank=0, world_size=2),
        "Reader.commit": method(world.handle.reader, "commit", model_uri="model"),
        "Reader.flush": method(world.handle.reader, "flush", timeout=0.01),
        "Reader.forget": method(world.handle.reader, "forget", model_uri="model"),
        "Reader.close": method(world.handle.reader, "close", timeout=0.01),
        "Job.add_splits": method(lambda: world.fed, "add_splits", split_set={"in": TABLE}),
        "Job.audit_feed": method(lambda: world.job, "audit_feed"),
        "Job.checkpoint": method(lambda: world.fed, "checkpoint", timeout=0.01),
        "Job.feed": method(lambda: world.feeding, "feed"),
        "Job.output": method(lambda: world.job, "output"),
        "Job.pin": method(lambda: world.fed, "pin", name="pin", timeout=0.01),
        "Job.result": method(lambda: world.job, "result", name="rows"),
        "Job.savepoint": method(lambda: world.fed, "savepoint", timeout=0.01),
        "Job.stop": method(lambda: world.job, "stop"),
        "Job.to_ray_dataset": method(lambda: world.feeding, "to_ray_dataset"),
        "Job.to_spark": method(lambda: world.feeding, "to_spark", spark=NoSpark()),
        "Job.unpin": method(lambda: world.fed, "unpin", name="pin", timeout=0.01),
        "Job.wait": method(lambda: world.job, "wait", timeout=1),
        "Job.wait_spark_released": method(lambda: world.job, "wait_spark_released", timeout=0.01),
        "Job.wait_until": method(lambda: world.job, "wait_until", condition=bool, timeout=0.01),
        "Job.window": method(lambda: world.fed, "window", number=1),
    }
    return found


def fed_stream() -> ps.Stream:
    return ps.Flow("plan").from_split_sets(TABLE.schema, name="in")


def _of(*names: str) -> Iterator[str]:
    for name in names:
        yield name
        yield from (f"{name}.{method}" for method in dir(getattr(ps, name)))


INNER = {
    *("Expression", "fn"),
    *("Job", "Savepoint", "ReplayedBatch", "Stream", "Schedule", "Schedule.at"),  # made by the library alone
    # values that the engine makes, and what users write and the engine calls
    *("Batch", "Committable", "Cut", "Emission", "State", "Multiplicity", "Columns.needed", "Traits.columns_of"),
    *_of("AggregateFunction", "Operator", "Source", "Sink", "Index", "Stateless", "LaneCounts"),
    *(f"errors.{name}" for name in dir(ps.errors)),
    *(f"index.{name}" for name in dir(ps.index) if name[0].isupper() and name not in ("Between", "InList")),
    *(
        f"Flow.{name}"
        for name in (
            *("ask", "asked", "fingerprint", "free", "leading_to", "node", "placement", "put", "take_out"),
            *("with_broadcasts", "with_nodes", "with_parts_of", "with_rounds_of", "without"),
        )
    ),
    *(f"PlanTask.{name}" for name in ("drained", "failed", "reply", "send")),
    *("Runtime.codecs", "WindowFunction.result_type", "field"),
    *("Job.cut_task", "Job.kill_task"),  # a task that there is not is a KeyError; for tests of recovery
}
"""Public by their name, but called by the engine, or pyarrow's own."""


def public() -> dict[str, inspect.Signature]:
    """Every public function that has arguments."""
    found: dict[str, Any] = {}
    for name in ps.__all__:
        value = getattr(ps, name)
        if inspect.ismodule(value):
            inner = getattr(value, "__all__", None) or [each for each, it in vars(value).items() if _is_own(it, value)]
            found |= {f"{name}.{each}": getattr(value, each) for each in inner}
        else:
            found[name] = value
            if inspect.isclass(value):
                found |= _methods(name, value)
    for kind in (FeedHandle, Reader):
        found |= _methods(kind.__name__, kind)
    signatures = {name: inspect.signature(value) for name, value in found.items() if name not in INNER}
    return {name: each for name, each in signatures.items() if set(each.parameters) - {"self"}}


def _is_own(value: Any, module: Any) -> bool:
    return getattr(value, "__module__", "") == module.__name__ and not value.__name__.startswith("_")


def _methods(name: str, kind: type) -> dict[str, Any]:
    functions = inspect.getmembers(kind, inspect.isfunction)
    return {f"{name}.{each}": value for each, value in functions if not each.startswith("_")}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.chdir(tmp_path)

    def connect(*_: object, **__: object) -> None:
        raise ConfigurationError("no cluster", "there is none in this test")

    monkeypatch.setattr(launch, "connect", connect)
    monkeypatch.setattr("penstock.actors.spark_bridge.connect", connect, raising=False)
    made = World()
    yield made
    made.close()


def call(signature: inspect.Signature, made: Call, parameter: str, value: Any) -> Any:
    """The call with one argument replaced."""
    called, valid = made
    listed = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in signature.parameters.values())
    given = {**valid, parameter: value}
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for each in signature.parameters.values():
        if each.name == "self" or (each.name not in given and each.kind is not inspect.Parameter.VAR_KEYWORD):
            continue
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            positional += [given[each.name]] if each.name == parameter else given[each.name]
        elif each.kind is inspect.Parameter.VAR_KEYWORD:
            known = signature.parameters
            named |= {key: it for key, it in given.items() if key not in known}
            named |= {"extra": value} if each.name == parameter else {}
        elif each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and listed:
            positional.append(given[each.name])
        else:
            named[each.name] = given[each.name]
    return called(*positional, **named)


def use(name: str, result: Any) -> None:
    """What comes of a value that was taken: a stream is run, a job is ended, an iterator begun."""
    if isinstance(result, ps.Stream) and not result.flow.name.startswith("plan"):
        if name in ("Flow.from_split_sets", "Flow.from_spark", "Flow.from_ray_dataset"):
            return
        if "hash_join" not in name:
            result.collect("end")
        ps.run_local(result.flow, threads=0).wait(20)
    elif isinstance(result, ps.Job) and name == "run_local":
        result.shutdown()
    elif isinstance(result, Reader):
        result.close(0.0)
    elif isinstance(result, Iterator):
        next(result, None)
    elif isinstance(result, contextlib.AbstractContextManager) and name == "spark.session":
        with result:
            pass


def outcome(name: str, signature: inspect.Signature, made: Callable[[], Call], parameter: str, value: Any) -> str:
    """ "taken", "refused", or what else has happened."""
    try:
        use(name, call(signature, made(), parameter, value))
    except PenstockError as error:
        return "refused" if "unexpected" not in error.message else f"{error.message}"
    except TimeoutError:
        return "waited"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return "taken"


def sweep(world: World) -> tuple[int, dict[str, str]]:
    """How many were tried, and those that were neither taken nor refused."""
    tried, raw = 0, {}
    made = calls(world)
    for name, signature in public().items():
        for parameter in signature.parameters:
            if parameter == "self":
                continue
            for what, value in WRONG.items():
                tried += 1
                found = outcome(name, signature, made[name], parameter, value)
                if found not in ("taken", "refused", "waited"):
                    raw[f"{name}({parameter}={what})"] = found
    return tried, raw


@pytest.mark.ray
def test_every_public_function_has_a_valid_call(world: World) -> None:
    assert set(public()) == set(calls(world))


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_no_wrong_value_ends_in_a_raw_error(world: World) -> None:
    tried, raw = sweep(world)
    assert tried > 2_000
    assert raw == {}


def test_computed_columns_may_be_called_like_parameters(tmp_path: Path) -> None:
    flow = ps.Flow("names")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "rows.parquet")
    rows = flow.read_parquet(tmp_path / "rows.parquet")
    named = {"columns": ps.field("a") + 1, "derived": ps.field("a") + 2}
    rows.project("a", **named).collect("rows")
    assert ps.run_local(flow).result("rows").to_pylist() == [{"a": 1, "columns": 2, "derived": 3}]
    with pytest.raises(PenstockError, match=r"project: euros=3 does not fit"):
        rows.project("a", euros=3)
