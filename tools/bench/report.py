"""Tables in plain text, and the format of figures."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Sequence

NOTHING = "-"


def print_table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: the first column left-aligned, figures right-aligned."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    print(f"\n{title}")
    for row in (heads, ["-" * width for width in widths], *rows):
        first, *others = row
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        print("  ".join(cells).rstrip())
    sys.stdout.flush()


def figure(value: float | None, digits: int = 0) -> str:
    return NOTHING if value is None else f"{value:,.{digits}f}"


def megabytes(value: float | None, digits: int = 0) -> str:
    return NOTHING if value is None else figure(value / 1e6, digits)


def milliseconds(seconds: float | None) -> str:
    return NOTHING if seconds is None else figure(seconds * 1000, 2)


def median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the percentile: the value that so many percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def machine() -> str:
    return (
        f"{os.cpu_count()} CPUs shared by broker and load, {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}"
    )
