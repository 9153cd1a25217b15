"""The tables that a run prints at its end: faults, operations and violations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from tools.chaos.history import Delivery, Fault, Hold, Outcome, Record, SessionCall, Settlement
from tools.chaos.history_index import Violation
from tools.chaos.plan import Kind

_SHOWN: Final = 10
"""Violations printed for each promise."""


def faults(records: Iterable[Record]) -> str:
    found = Counter(record.kind for record in records if isinstance(record, Fault))
    rows = [(kind.value, str(found[kind])) for kind in Kind]
    return _table(("fault", "times"), [*rows, ("all", str(found.total()))])


def operations(records: Iterable[Record]) -> str:
    """Return the table of operations by kind and outcome."""
    found: Counter[tuple[str, str]] = Counter()
    for record in records:
        name = _name(record)
        if name is not None:
            found[name, getattr(record, "outcome", Outcome.OK)] += 1
    names = sorted({name for name, _ in found})
    rows = [(name, *(str(found[name, outcome]) for outcome in Outcome)) for name in names]
    totals = (str(sum(count for (_, each), count in found.items() if each == outcome)) for outcome in Outcome)
    return _table(("operation", "done", "refused", "unknown"), [*rows, ("all", *totals)])


def violations(found: list[Violation]) -> str:
    if not found:
        return "no violation"
    lines = [f"{len(found)} violations"]
    for promise, count in Counter(violation.promise for violation in found).items():
        lines.append(f"  {promise}: {count}")
        lines += [f"    {each.text}" for each in found if each.promise == promise][:_SHOWN]
        if count > _SHOWN:
            lines.append(f"    … and {count - _SHOWN} more")
    return "\n".join(lines)


def _name(record: Record) -> str | None:
    match record:
        case Settlement():
            return f"{record.disposition}{' in a transaction' if record.transaction else ''}"
        case Delivery():
            return f"received ({record.way})"
        case SessionCall():
            return f"session: {record.action}"
        case Hold():
            return "session: accept"
    return type(record).__name__.lower() if hasattr(record, "outcome") else None


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]

    def line(row: tuple[str, ...]) -> str:
        cells = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        return "  ".join((row[0].ljust(widths[0]), *cells))

    return "\n".join((line(head), *map(line, rows)))
