"""Checks of a package's structure, from its sources alone: layers, import-time loads, cycles, lengths, docstrings.

Modules are named relative to the package: ``engine.exchange.channels``; the root is the empty name. Every check takes
sources (name → text) and returns what it found, as sentences, so that a test can show it failing. The rules themselves
stand in ``tests/test_architecture.py``.

What an import means here:

1. ``from x import y`` imports ``x.y`` where that is a module, and otherwise ``x``.
2. Imports inside functions and under ``TYPE_CHECKING`` count for the layers and for cycles.
3. Importing a module imports the packages above it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import MappingProxyType

Sources = Mapping[str, str]


@cache
def parsed(text: str) -> ast.Module:
    """The tree of a source. Every check reads all of them, and none changes one."""
    return ast.parse(text)


@cache
def nodes_of(text: str) -> tuple[ast.AST, ...]:
    """All nodes of a source's tree."""
    return tuple(ast.walk(parsed(text)))


@dataclass(frozen=True)
class Rule:
    """What the modules below any of ``who`` may import: of the package, of other distributions, of the stdlib.

    Of several rules the one with the longest matching prefix holds. ``upward`` are exceptions from ``inside``.
    """

    who: tuple[str, ...]
    inside: tuple[str, ...]
    outside: frozenset[str] = frozenset()
    stdlib: frozenset[str] = frozenset(sys.stdlib_module_names)
    upward: tuple[str, ...] = ()


Floors = Sequence[Sequence[str]]
"""The rooms of a folder by floor, the lowest first."""


def floor_rules(
    folder: str,
    floors: Floors,
    also: tuple[str, ...] = (),
    *,
    outside: frozenset[str],
    stdlib: frozenset[str] = frozenset(sys.stdlib_module_names),
    wider: Mapping[str, frozenset[str]] = MappingProxyType({}),
) -> list[Rule]:
    """A rule for each room: it imports itself, the rooms on the floors below, and ``also``. ``wider``: rooms that may
    import other distributions than ``outside``."""
    rules: list[Rule] = []
    below: tuple[str, ...] = also
    for floor in floors:
        rooms = [f"{folder}.{room}" for room in floor]
        for room, name in zip(rooms, floor, strict=True):
            rules.append(Rule((room,), (room, *below), wider.get(name, outside), stdlib))
        below = (*below, *rooms)
    return rules


class When(Enum):
    """When an import statement runs."""

    IMPORT_TIME = "when the module is imported"
    TYPING = "for the type checker"
    CALL = "inside a function"


@dataclass(frozen=True)
class Import:
    """One imported module: ``target`` is relative to the package if ``inside``, and otherwise a top-level name."""

    target: str
    inside: bool
    relative: bool
    when: When
    line: int


def is_below(module: str, prefixes: tuple[str, ...]) -> bool:
    """Whether the module is one of the prefixes or lies below one."""
    return any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes)


def walk(node: ast.AST, when: When) -> Iterator[tuple[ast.Import | ast.ImportFrom, When]]:
    """All import statements with the time at which they run. They stand in no expression."""
    for child in ast.iter_child_nodes(node):
        inner = when
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, when
        elif not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            continue
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = When.CALL
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            inner = When.TYPING
        yield from walk(child, inner)


@cache
def imports_in(text: str) -> tuple[tuple[ast.Import | ast.ImportFrom, When], ...]:
    """The same of a whole source."""
    return tuple(walk(parsed(text), When.IMPORT_TIME))


def package_of(module: str, sources: Sources) -> list[str]:
    """The package that a relative import of the module begins in."""
    parts = module.split(".") if module else []
    is_package = not module or any(other.startswith(module + ".") for other in sources)
    return parts if is_package else parts[:-1]


def read_imports(module: str, sources: Sources) -> list[Import]:
    """Every module that ``module`` imports."""
    found = []
    package = package_of(module, sources)
    for node, when in imports_in(sources[module]):
        for name, relative in names_of(node, package, sources):
            inside = relative or name.partition(".")[0] == "penstock"
            target = name.removeprefix("penstock").removeprefix(".") if inside else name.partition(".")[0]
            found.append(Import(target, inside, relative, when, node.lineno))
    return found


def names_of(node: ast.Import | ast.ImportFrom, package: list[str], sources: Sources) -> Iterator[tuple[str, bool]]:
    """The modules of a statement; ``from x import y`` means ``x.y`` where that is a module."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, False) for alias in node.names)
        return
    start = package[: len(package) - node.level + 1] if node.level else []
    base = [*start, *(node.module.split(".") if node.module else [])]
    for alias in node.names:
        inner = ".".join([*base, alias.name])
        is_module = inner.removeprefix("penstock.") in sources
        yield (inner if is_module else ".".join(base)), bool(node.level)


def rule_for(module: str, rules: Sequence[Rule]) -> Rule:
    """The rule with the longest prefix of the module's name; the first rule if none has one."""
    matching = [(len(prefix), rule) for rule in rules for prefix in rule.who if is_below(module, (prefix,))]
    return max(matching, key=lambda found: found[0])[1] if matching else rules[0]


def is_allowed(found: Import, rule: Rule) -> bool:
    """Whether the rule allows the import."""
    if not found.inside:
        return found.target in rule.stdlib | rule.outside
    return is_below(found.target, rule.inside) and not is_below(found.target, rule.upward)


def find_breaches(sources: Sources, rules: Sequence[Rule], only_in_functions: str) -> list[str]:
    """Imports that the rules do not allow, absolute ones inside the package, early ones of one module."""
    breaches = []
    for module in sources:
        for found in read_imports(module, sources):
            where = f"{module or 'root'}:{found.line} imports {found.target or 'the root'} ({found.when.value})"
            if not is_allowed(found, rule_for(module, rules)):
                breaches.append(where)
            elif module and found.inside and not found.relative:
                breaches.append(f"{where}: write it as a relative import")
            elif found.target == only_in_functions and found.when is When.IMPORT_TIME:
                breaches.append(f"{where}: import it inside a function")
    return breaches


def import_graph(sources: Sources, times: set[When]) -> dict[str, set[str]]:
    """For every module the modules it imports at the given times: of the package by name, others with a ``!``."""
    return {
        module: {
            found.target if found.inside else f"!{found.target}"
            for found in read_imports(module, sources)
            if found.when in times
        }
        for module in sources
    }


def reachable(start: str, graph: Mapping[str, set[str]]) -> dict[str, str | None]:
    """Everything reachable from ``start``, each with the module that it was reached from."""
    reached: dict[str, str | None] = {start: None}
    queue = [start]
    while queue:
        here = queue.pop()
        for there in sorted(graph.get(here, ())):
            if there not in reached:
                reached[there] = here
                queue.append(there)
    return reached


def find_heavy(sources: Sources, light: Sequence[str], heavy: frozenset[str]) -> list[str]:
    """Those of the ``light`` modules that load a heavy distribution when they are imported, by any path."""
    graph = import_graph(sources, {When.IMPORT_TIME})
    for module in sources:
        parts = module.split(".")
        graph[module] |= {".".join(parts[:count]) for count in range(1, len(parts))}
    found = []
    for module in light:
        reached = reachable(module, graph)
        for name in sorted(f"!{name}" for name in heavy if f"!{name}" in reached):
            found.append(f"{module or 'root'} loads {name[1:]} through {reached[name] or 'root'}")
    return found


def find_cycles(sources: Sources) -> list[str]:
    """Modules that import themselves through others."""
    graph = import_graph(sources, set(When))
    reached = {module: reachable(module, graph) for module in sources}
    cycles = set()
    for module in sources:
        members = {there for there in reached[module] if there in sources and module in reached[there]}
        if len(members) > 1 or module in graph[module]:
            cycles.add(" ↔ ".join(sorted(members)))
    return sorted(cycles)


def find_lonely(sources: Sources) -> list[str]:
    """Functions, classes and methods that no line of the package mentions: neither by name nor in a text."""
    trees = {module: parsed(text) for module, text in sources.items()}
    mentioned = {name for text in sources.values() for node in nodes_of(text) for name in _mentions(node)}
    defined = {
        f"{module}.{name}": name.rpartition(".")[2] for module, tree in trees.items() for name in _definitions(tree, "")
    }
    return sorted(full for full, name in defined.items() if name not in mentioned and not name.startswith("__"))


def _mentions(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
            yield name
        case ast.Constant(value=str(text)) if text.replace(".", "").isidentifier():
            yield from text.split(".")


def _definitions(node: ast.AST, above: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield f"{above}{child.name}"
            if isinstance(child, ast.ClassDef):
                yield from _definitions(child, f"{above}{child.name}.")


LASTING = frozenset(
    [
        *("Lock", "RLock", "Condition", "Semaphore", "Event", "local", "ContextVar"),
        *("WeakSet", "WeakKeyDictionary", "WeakValueDictionary"),
    ]
)
"""Whoever makes one for a module means to change it."""
_DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
CONTAINERS = frozenset({"dict", "list", "set", "deque", "defaultdict", "OrderedDict", "Counter", "bytearray"})
CHANGES = frozenset(
    [
        *("append", "appendleft", "extend", "insert", "pop", "popleft", "popitem", "remove", "clear", "add", "discard"),
        *("update", "difference_update", "intersection_update", "symmetric_difference_update", "setdefault"),
    ]
)


def find_process_wide(sources: Sources) -> list[str]:
    """Names of modules whose values change while the process runs: what a function changes in place or rebinds, locks
    and weak tables, and instances of the package's classes that have an ``__init__`` of their own."""
    stateful = {
        node.name
        for text in sources.values()
        for node in nodes_of(text)
        if isinstance(node, ast.ClassDef)
        and any(isinstance(each, ast.FunctionDef) and each.name == "__init__" for each in node.body)
    }
    found = set()
    for module, text in sources.items():
        nodes, values = nodes_of(text), dict(_module_values(parsed(text)))
        made = {name for name, value in values.items() if _called(value) in LASTING | stateful}
        containers = {
            name for name, value in values.items() if isinstance(value, _DISPLAYS) or _called(value) in CONTAINERS
        }
        functions = _outermost_functions(parsed(text))
        changed = {name for function in functions for node in ast.walk(function) for name in _changed(node)}
        rebound = {name for node in nodes if isinstance(node, ast.Global) for name in node.names}
        found |= {f"{module}.{name}" for name in made | (changed & containers) | rebound}
    return sorted(found)


def _outermost_functions(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        else:
            yield from _outermost_functions(child)


def _module_values(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        for target in targets:
            if isinstance(target, ast.Name) and value is not None:
                yield target.id, value


def _called(value: ast.expr) -> str:
    """The last name of what is called."""
    return ast.unparse(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""


def _changed(node: ast.AST) -> Iterator[str]:
    """Names whose value the node changes in place."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) if method in CHANGES:
            yield name
        case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
            yield name


def find_bare_files(files: Mapping[str, str]) -> list[str]:
    """Files that do not begin with their docstring."""
    return [f"{path}: no module docstring" for path, text in files.items() if not ast.get_docstring(parsed(text))]


def find_long_functions(files: Mapping[str, str], maximum: int) -> list[str]:
    """Functions whose body, without its docstring, has more lines than that."""
    found = []
    for path, text in files.items():
        for node in nodes_of(text):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body and body[-1].end_lineno else 0
            if lines > maximum:
                found.append(f"{path}: {node.name} has {lines} lines, at most {maximum}: split it")
    return found


def find_namesakes(files: Mapping[str, str]) -> list[str]:
    """Classes of one name in two files of the same top-level folder."""
    seen: dict[tuple[str, str], str] = {}
    found = []
    for path, text in files.items():
        for node in parsed(text).body:
            if isinstance(node, ast.ClassDef):
                first = seen.setdefault((path.partition("/")[0], node.name), path)
                if first != path:
                    found.append(f"{path}: class {node.name} is in {first}, too")
    return found
