"""Read and check the list of scenarios in the data files."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent

SDKS = ("python", "python-aio", "javascript", "java", "go")


class CatalogueError(Exception):
    """The data files are inconsistent; `str()` says where."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    name: str
    group: str
    expected: str
    """The expected outcome, as a sentence."""
    without: Mapping[str, str]
    """SDKs to which it does not apply, with the reasons."""
    slow: bool = False
    """It requires real time, and is started first."""

    def applies_to(self, sdk: str) -> bool:
        return sdk not in self.without


@cache
def scenarios() -> tuple[Scenario, ...]:
    document = _read("scenarios.toml")
    reasons: dict[str, str] = document["reasons"]
    found: list[Scenario] = []
    for group in document["group"]:
        for each in group["scenario"]:
            shared: dict[str, str] = group.get("without", {})
            without = {sdk: reasons[reason] for sdk, reason in (shared | each.get("without", {})).items()}
            if unknown := set(without) - set(SDKS):
                raise CatalogueError(f"scenarios.toml: '{each['name']}' names SDKs that are not run: {unknown}")
            made = Scenario(
                name=each["name"],
                group=group["name"],
                expected=each["expected"],
                without=without,
                slow=each.get("slow", False),
            )
            if made.name in {other.name for other in found}:
                raise CatalogueError(f"scenarios.toml: '{made.name}' is there twice")
            found.append(made)
    return tuple(found)


@dataclass(frozen=True)
class Explanation:
    why: str
    says: str
    """Words that the failure contains, so that a different failure is not accepted."""


@cache
def explanations() -> Mapping[tuple[str, str], Explanation]:
    """Return why scenarios fail with an SDK, where the reason is known."""
    found: dict[tuple[str, str], Explanation] = {}
    known = {scenario.name: scenario for scenario in scenarios()}
    for each in _read("explanations.toml").get("explanation", []):
        for sdk in each["sdks"]:
            scenario = known.get(each["scenario"])
            if scenario is None or not scenario.applies_to(sdk):
                raise CatalogueError(f"explanations.toml: there is no '{each['scenario']}' through {sdk}")
            found[scenario.name, sdk] = Explanation(each["why"], each["says"])
    return found


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / name).read_text())
