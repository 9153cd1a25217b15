"""Plots as SVG files for a Markdown page: grouped bars in panels, and lines over a logarithmic scale.

Scales and colours are those of the reports' plots. Whatever is shown is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from peeklock.spark.pipelines.plots import COLOURS, Format, scale, shortened

Bars = Sequence[tuple[str, Sequence[float | None]]]
"""Names with a value for each series; None if there is no value."""

WIDTH: Final = 1000
_NAMES: Final = 200
_HEAD: Final = 58
_BAR, _GAP = 11, 12
_VALUE: Final = 62
_HEIGHT: Final = 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 58, 44
_STYLE: Final = "text{font:12px sans-serif;fill:#222}.title{font-weight:bold}.grid{stroke:#ddd}.value{font-size:10px}"


def panels(title: str, of: Mapping[str, Bars], series: Sequence[str], show: Format) -> str:
    """Plot a panel for each name. All panels have the same rows, with a bar for each series."""
    rows = len(next(iter(of.values())))
    row_height = _BAR * len(series) + _GAP
    height = _HEAD + rows * row_height + 8
    wide = (WIDTH - _NAMES) / len(of)
    drawn = [_title(title), _legend(series)]
    for number, (name, bars) in enumerate(of.items()):
        left = _NAMES + number * wide
        drawn.append(f'<text x="{left:.1f}" y="{_HEAD - 8}" class="title">{escape(name)}</text>')
        most = max((value for _, values in bars for value in values if value is not None), default=0) or 1
        for row, (label, values) in enumerate(bars):
            top = _HEAD + row * row_height
            if number == 0:
                middle = top + row_height / 2
                drawn.append(
                    f'<text x="{_NAMES - 8}" y="{middle:.1f}" text-anchor="end">{escape(shortened(label, 28))}</text>'
                )
            for index, value in enumerate(values):
                if value is not None:
                    at = top + index * _BAR
                    long = max(1.0, (wide - _VALUE) * value / most)
                    drawn.append(_bar(left, at, long, COLOURS[index % len(COLOURS)], show(value)))
    return _svg(title, height, drawn)


def curves(title: str, of: Mapping[str, Sequence[tuple[float, float]]], show: Format, along: str) -> str:
    """Plot a line for each name over a logarithmic scale. `along` is the label of the horizontal axis."""
    places = sorted({x for line in of.values() for x, _ in line})
    first, last = math.log10(places[0]), math.log10(places[-1])
    span = (last - first) or 1.0
    top, ticks = scale(max(y for line in of.values() for _, y in line))
    bottom = _HEIGHT - _BOTTOM

    def x(value: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (math.log10(value) - first) / span

    def y(value: float) -> float:
        return _TOP + (bottom - _TOP) * (1 - value / top)

    drawn = [_title(title), _legend(list(of))]
    for tick in ticks:
        drawn.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" class="grid"/>')
        drawn.append(f'<text x="{_LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{escape(show(tick))}</text>')
    for place in places:
        drawn.append(f'<text x="{x(place):.1f}" y="{bottom + 18}" text-anchor="middle">{place:,.0f}</text>')
    drawn.append(f'<text x="{WIDTH / 2}" y="{bottom + 36}" text-anchor="middle">{escape(along)}</text>')
    for index, line in enumerate(of.values()):
        colour = COLOURS[index % len(COLOURS)]
        points = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line)
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{colour}"/>' for a, b in line]
    return _svg(title, _HEIGHT, drawn)


def _title(title: str) -> str:
    return f'<text x="8" y="18" class="title">{escape(title)}</text>'


def _legend(series: Sequence[str]) -> str:
    parts = []
    at = 8.0
    for index, name in enumerate(series):
        parts.append(f'<rect x="{at}" y="26" width="10" height="10" fill="{COLOURS[index % len(COLOURS)]}"/>')
        parts.append(f'<text x="{at + 15}" y="35">{escape(name)}</text>')
        at += 32 + 7 * len(name)
    return "".join(parts)


def _bar(left: float, top: float, long: float, colour: str, value: str) -> str:
    return (
        f'<rect x="{left:.1f}" y="{top}" width="{long:.1f}" height="{_BAR - 1}" fill="{colour}"/>'
        f'<text x="{left + long + 4:.1f}" y="{top + _BAR - 2}" class="value">{escape(value)}</text>'
    )


def _svg(title: str, height: float, drawn: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="{escape(title)}"><style>{_STYLE}</style><rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>'
        f"{''.join(drawn)}</svg>\n"
    )
