"""Mutants of Python functions: where one operator, constant or statement is another, one a mutant. No tests here.

Only what is inside functions is changed: its code can be put into the living function objects, so that a mutant needs
no import of its own. Tables and defaults at the level of modules and classes stay as they are.
"""

from __future__ import annotations

import ast
import copy
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType

Function = tuple[str, str]
"""A file and the qualified name of an outermost function in it."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
CALLS = {"any": "all", "all": "any", "min": "max", "max": "min"}


@dataclass(frozen=True)
class Mutant:
    """``number`` of the places of a file that can be changed, in the order of the text."""

    function: Function
    line: int
    number: int
    what: str

    def __str__(self) -> str:
        return f"{self.function[0]}:{self.line} {self.function[1]}: {self.what}"


Change = tuple[str, Callable[[], None]]


def changes(node: ast.AST) -> Iterator[Change]:
    """What can be changed at this node itself."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            other = COMPARISONS[type(op)]
            yield f"{type(op).__name__} is {other.__name__}", lambda: node.ops.__setitem__(0, other())
        case ast.BoolOp(op=op):
            swapped = ast.Or if isinstance(op, ast.And) else ast.And
            yield f"{type(op).__name__} is {swapped.__name__}", lambda: setattr(node, "op", swapped())
        case ast.BinOp(op=op) if type(op) in OPERATORS:
            swap = OPERATORS[type(op)]
            yield f"{type(op).__name__} is {swap.__name__}", lambda: setattr(node, "op", swap())
        case ast.UnaryOp(op=ast.Not()):
            yield "Not is left out", lambda: bare(node)
        case ast.Constant(value=bool() as value):
            yield f"{value} is {not value}", lambda: setattr(node, "value", not value)
        case ast.Constant(value=int() as value):
            yield f"{value} is {value + 1}", lambda: setattr(node, "value", value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield f"{name} is {CALLS[name]}", lambda: setattr(node.func, "id", CALLS[name])
        case ast.If(test=test):
            yield "the condition is turned", lambda: setattr(node, "test", ast.UnaryOp(ast.Not(), test))
        case _:
            return


def bare(node: ast.UnaryOp) -> None:
    """``not x`` becomes ``not not x``."""
    node.operand = ast.UnaryOp(ast.Not(), node.operand)


def removals(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, Change]]:
    """Statements that can be left out: calls for their effect, and changes of what outlives the function."""
    for place, statement in enumerate(body):
        effect = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        outlives = isinstance(statement, ast.Assign | ast.AugAssign) and not any(
            isinstance(target, ast.Name | ast.Tuple) for target in targets
        )
        if effect or outlives or isinstance(statement, ast.Continue | ast.Break | ast.Delete):
            empty = ast.copy_location(ast.Pass(), statement)
            yield (
                statement,
                ("left out: " + ast.unparse(statement)[:70], lambda p=place, e=empty: body.__setitem__(p, e)),
            )


def places(tree: ast.Module) -> Iterator[tuple[str, int, Change]]:
    """Everything that can be changed in the functions of a module: function, line, and what."""
    for name, function in functions_of(tree, ""):
        for node in executed(function):
            for change in changes(node):
                yield name, node.lineno, change
            for body in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
                if isinstance(body, list):
                    for statement, change in removals(body):
                        yield name, statement.lineno, change


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those below it, in the order of the text, without annotations and defaults of arguments."""
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list", "defaults", "kw_defaults"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from executed(child)


def functions_of(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The outermost functions, by qualified name, but for those that check invariants, which nothing breaks."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef) and not child.name.lstrip("_").startswith("validate"):
            yield prefix + child.name, child
        elif isinstance(child, ast.ClassDef):
            yield from functions_of(child, f"{prefix}{child.name}.")


def mutants_of(path: Path) -> list[Mutant]:
    """All mutants of a file."""
    found = enumerate(places(ast.parse(path.read_text())))
    return [Mutant((str(path), name), line, number, what) for number, (name, line, (what, _)) in found]


def mutated_code(mutant: Mutant) -> dict[int, CodeType]:
    """The code of the functions of that name, by first line, with the change in one of them."""
    file, name = mutant.function
    tree = copy.deepcopy(ast.parse(Path(file).read_text()))
    for number, (_, _, (_, apply)) in enumerate(places(tree)):
        if number == mutant.number:
            apply()
            break
    module = compile(ast.fix_missing_locations(tree), file, "exec")
    return {code.co_firstlineno: code for code in codes_in(module) if code.co_qualname == name}


def codes_in(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from codes_in(constant)


def living_functions(files: set[str]) -> dict[Function, list[FunctionType]]:
    """The function objects of these files that there are in this process."""
    found: dict[Function, list[FunctionType]] = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename in files:
            found.setdefault((each.__code__.co_filename, each.__code__.co_qualname), []).append(each)
    return found


def put_in(mutant: Mutant, living: list[FunctionType]) -> None:
    """Let the function be the mutant in this process, from now on."""
    codes = mutated_code(mutant)
    for function in living:
        function.__code__ = codes[function.__code__.co_firstlineno]
