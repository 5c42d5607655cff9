"""A line plot as an SVG file, one panel per series: enough for a curve of a few points, and no dependency.

The x axis has a tick per point, at equal distances (the points double), the y axis begins at 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT, MARGIN = 420, 300, 50
LINE = "#2a6f97"
MORE = ("#c1440e", "#2a9d8f")


@dataclass(frozen=True, slots=True)
class Series:
    """One panel: its title, the name of its x axis, the points of the line ``name``; and ``more`` lines by name."""

    title: str
    axis: str
    xs: Sequence[int]
    ys: Sequence[float]
    name: str = ""
    more: Mapping[str, Sequence[float]] = field(default_factory=dict)


def write_plot(path: Path, title: str, series: Sequence[Series]) -> None:
    """Write all panels side by side."""
    width = WIDTH * len(series)
    panels = [
        f'<g transform="translate({WIDTH * number},24)">{draw_panel(one)}</g>' for number, one in enumerate(series)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT + 24}" '
        f'font-family="sans-serif" font-size="11">\n<rect width="100%" height="100%" fill="white"/>\n'
        + text(width / 2, 18, title, size=14)
        + "\n".join(panels)
        + "\n</svg>\n",
        encoding="utf-8",
    )


def draw_panel(series: Series) -> str:
    """Axes, ticks, line and points of one panel."""
    lines = {series.name: series.ys, **series.more}
    top = max(max(ys) for ys in lines.values()) * 1.1
    step = (WIDTH - 2 * MARGIN) / max(1, len(series.xs) - 1)
    bottom, height = HEIGHT - MARGIN, HEIGHT - 2 * MARGIN
    parts = [
        text(WIDTH / 2, MARGIN - 16, series.title, size=12),
        text(WIDTH / 2, HEIGHT - 12, series.axis),
        f'<path d="M{MARGIN},{MARGIN} V{bottom} H{WIDTH - MARGIN}" fill="none" stroke="black"/>',
        *(text(MARGIN + step * number, bottom + 16, str(name)) for number, name in enumerate(series.xs)),
    ]
    for row, (colour, (name, ys)) in enumerate(zip((LINE, *MORE), lines.items(), strict=False)):
        points = [(MARGIN + step * number, bottom - height * y / top) for number, y in enumerate(ys)]
        parts += [
            f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" fill="none" stroke="{colour}"/>',
            text(MARGIN + 70, MARGIN + 14 * row, name, colour=colour),
        ]
        for (x, y), value in zip(points, ys, strict=True):
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>', text(x, y - 8, f"{value:.0f}")]
    return "\n".join(parts)


def text(x: float, y: float, words: str, size: int = 11, colour: str = "black") -> str:
    """Words centred on a point."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="middle"'
    return f'<text {place} font-size="{size}" fill="{colour}">{escape(words)}</text>\n'
