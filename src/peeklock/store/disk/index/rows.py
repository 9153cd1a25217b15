"""SQL for reading rows from JSON arrays."""

from __future__ import annotations


def fields(*names: str) -> str:
    """Return the SQL columns that name the items of a JSON array in `value`."""
    return ", ".join(f"json_extract(value, '$[{at}]') AS {name}" for at, name in enumerate(names))
