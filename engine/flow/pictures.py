"""A flow as a notebook shows it: its graph as SVG, columns as a table. Pure, and without a library."""

from __future__ import annotations

from html import escape

import pyarrow as pa

from ..planner.graph import Graph, Node

WIDTH, HEIGHT, ACROSS, DOWN = 190, 44, 36, 14
"""Of a box, and the gaps between boxes, in pixels."""
LONGEST = 30
"""Characters of a line that fit into a box."""


def picture(graph: Graph) -> str:
    """The graph as SVG, sources at the left: what stands in one column depends on nothing else in it. A box tells the
    name of an operator, and its kind; whoever points at it reads all of it."""
    columns = _columns(graph)
    places = {
        node.id: (10 + column * (WIDTH + ACROSS), 10 + row * (HEIGHT + DOWN))
        for column, nodes in enumerate(columns)
        for row, node in enumerate(nodes)
    }
    wide = 20 + len(columns) * (WIDTH + ACROSS) - ACROSS
    high = 20 + max(map(len, columns), default=0) * (HEIGHT + DOWN) - DOWN
    lines = [_line(places[source], places[node.id]) for node in graph.nodes for source in node.inputs]
    boxes = [_box(node, *places[node.id]) for node in graph.nodes]
    size = f'width="{wide}" height="{high}" viewBox="0 0 {wide} {high}"'
    style = 'style="font: 12px sans-serif; max-width: none"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(lines + boxes)}</svg>'


def columns_table(schema: pa.Schema) -> str:
    """Names and types of columns, as a table."""
    return table([("column", "type"), *((field.name, str(field.type)) for field in schema)])


def table(rows: list[tuple[str, ...]]) -> str:
    """Rows as a table; the first one is its head."""
    head, *others = rows
    lines = [_row("th", head), *(_row("td", each) for each in others)]
    return f'<table style="text-align: left">{"".join(lines)}</table>'


def titled(title: str, *parts: str) -> str:
    """A piece of a page."""
    return f"<div><p><b>{escape(title)}</b></p>{''.join(parts)}</div>"


def _columns(graph: Graph) -> list[list[Node]]:
    depths: dict[str, int] = {}
    found: list[list[Node]] = []
    for node in graph.nodes:
        depth = depths[node.id] = 1 + max((depths[source] for source in node.inputs), default=-1)
        found += [[] for _ in range(depth + 1 - len(found))]
        found[depth].append(node)
    return found


def _box(node: Node, x: int, y: int) -> str:
    color = "#dbe9f6" if not node.inputs else "#e3f1df" if node.schema is None else "#eeeeee"
    told = escape(f"{node.config.kind} {node.config.describe()}")
    lines = (
        f'<text x="{x + 8}" y="{y + offset}" fill="#222"{weight}>{escape(_cut(text))}</text>'
        for offset, weight, text in ((18, ' font-weight="bold"', node.id), (35, "", node.config.kind))
    )
    box = f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{color}" stroke="#888"/>'
    return f"<g><title>{told}</title>{box}{''.join(lines)}</g>"


def _line(source: tuple[int, int], target: tuple[int, int]) -> str:
    x, y = source[0] + WIDTH, source[1] + HEIGHT // 2
    to_x, to_y = target[0], target[1] + HEIGHT // 2
    middle = to_x - ACROSS // 2
    way = f"M{x} {y} H{middle - 6} C{middle} {y} {middle} {to_y} {middle + 6} {to_y} H{to_x}"
    return f'<path d="{way}" fill="none" stroke="#888"/>'


def _row(kind: str, cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in cells)}</tr>"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
