"""Plots as inline SVG: lines over time, and bars, without scripts or external resources.

This module makes scales, ticks and labels, and escapes all text. The caller provides the values and their formats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Final

Format = Callable[[float], str]
Line = Sequence[tuple[datetime, float]]
"""Times and values, in order of time."""

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f6000", "#555555")
"""Colours that colour-blind people can distinguish."""
WIDTH: Final = 860
HEIGHT: Final = 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 34, 14, 30
_TICKS: Final = 6
_BAR, _GAP = 16, 7
_LABEL: Final = 240
_LONGEST: Final = 34

STEPS: Final = tuple(
    timedelta(seconds=seconds)
    for seconds in (
        *(1, 2, 5, 10, 15, 30),
        *(60 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
        *(3600 * hours for hours in (1, 2, 3, 6, 12)),
        *(86400 * days for days in (1, 2, 7, 14, 28, 91, 364)),
    )
)
"""Customary spans of time, for ticks and points."""


def step_for(span: timedelta, most: int) -> timedelta:
    """The shortest step of which at most `most` fit into the span."""
    return next((step for step in STEPS if span <= step * most), STEPS[-1])


def lines(of: Mapping[str, Line], show: Format, title: str) -> str:
    """Draw a line for each name; a short text if there are no values."""
    known = {name: line for name, line in of.items() if line}
    if not known:
        return '<p class="none">Nothing to show.</p>'
    moments = [moment for line in known.values() for moment, _ in line]
    first, last = min(moments), max(moments)
    if first == last:
        first, last = first - timedelta(seconds=1), last + timedelta(seconds=1)
    top, ticks = scale(max(value for line in known.values() for _, value in line))

    def x(moment: datetime) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * ((moment - first) / (last - first))

    def y(value: float) -> float:
        return _TOP + (HEIGHT - _TOP - _BOTTOM) * (1 - max(0.0, value) / top)

    drawn = [_horizontal(y(tick), show(tick)) for tick in ticks]
    drawn += [_vertical(x(moment), label) for moment, label in time_ticks(first, last)]
    for (name, line), colour in zip(known.items(), _colours(len(known)), strict=True):
        points = " ".join(f"{x(moment):.1f},{y(value):.1f}" for moment, value in line)
        drawn.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if len(line) <= 120:
            drawn += [_dot(x(moment), y(value), colour, name, moment, show(value)) for moment, value in line]
    return f"{_legend(known)}{_svg(title, HEIGHT, drawn)}"


def bars(of: Sequence[tuple[str, float]], show: Format, title: str) -> str:
    """Draw a horizontal bar for each name, with its value."""
    if not of:
        return '<p class="none">Nothing to show.</p>'
    most = max(value for _, value in of) or 1
    width = WIDTH - _LABEL - 110
    drawn = []
    for row, (name, value) in enumerate(of):
        top = row * (_BAR + _GAP) + _GAP
        base = top + _BAR - 4
        long = max(1.0, width * max(0.0, value) / most)
        drawn.append(
            f"<g><title>{escape(name)}: {escape(show(value))}</title>"
            f'<text x="{_LABEL - 8}" y="{base}" text-anchor="end">{escape(shortened(name))}</text>'
            f'<rect x="{_LABEL}" y="{top}" width="{long:.1f}" height="{_BAR}" fill="{COLOURS[0]}"/>'
            f'<text x="{_LABEL + long + 6:.1f}" y="{base}">{escape(show(value))}</text></g>'
        )
    return _svg(title, len(of) * (_BAR + _GAP) + _GAP, drawn)


def scale(most: float) -> tuple[float, list[float]]:
    """A round upper end for an axis from 0, and its ticks."""
    if not most > 0 or not math.isfinite(most):
        return 1.0, [0.0, 1.0]
    rough = most / (_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    count = math.ceil(most / step - 1e-9)
    return step * count, [step * tick for tick in range(count + 1)]


def time_ticks(first: datetime, last: datetime) -> list[tuple[datetime, str]]:
    """Round times in a period, in UTC, with labels that are as short as possible."""
    first, last = first.astimezone(UTC), last.astimezone(UTC)
    step = step_for(last - first, 8)
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
    moment = midnight + step * math.ceil((first - midnight) / step)
    shape = "%H:%M:%S" if step < timedelta(minutes=1) else "%H:%M"
    if step >= timedelta(days=1):
        shape = "%Y-%m-%d"
    elif last.date() != first.date():
        shape = "%m-%d " + shape
    ticks = []
    while moment <= last:
        ticks.append((moment, moment.strftime(shape)))
        moment += step
    return ticks


def shortened(text: str, longest: int = _LONGEST) -> str:
    """Shorten a long text to its beginning and its end, as entities and ids can differ at either."""
    if len(text) <= longest:
        return text
    return f"{text[: longest // 2]}…{text[-(longest - longest // 2 - 1) :]}"


def _colours(count: int) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(count)]


def _legend(of: Mapping[str, Line]) -> str:
    entries = (
        f'<span><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in zip(of, _colours(len(of)), strict=True)
    )
    return f'<p class="legend">{"".join(entries)}</p>'


def _svg(title: str, height: int, drawn: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(drawn)}</svg>"
    )


def _horizontal(y: float, label: str) -> str:
    return (
        f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>'
        f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(label)}</text>'
    )


def _vertical(x: float, label: str) -> str:
    bottom = HEIGHT - _BOTTOM
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{bottom}" y2="{bottom + 5}" class="tick"/>'
        f'<text x="{x:.1f}" y="{bottom + 19}" text-anchor="middle">{escape(label)}</text>'
    )


def _dot(x: float, y: float, colour: str, name: str, moment: datetime, value: str) -> str:
    label = f"{name}, {moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}: {value}"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{colour}"><title>{escape(label)}</title></circle>'
