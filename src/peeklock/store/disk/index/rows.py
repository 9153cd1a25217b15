"""Rows that the steps of an entry take out of JSON."""

from __future__ import annotations


def fields(*names: str) -> str:
    """The items of a row that came as a JSON array, under these names."""
    return ", ".join(f"json_extract(value, '$[{at}]') AS {name}" for at, name in enumerate(names))
