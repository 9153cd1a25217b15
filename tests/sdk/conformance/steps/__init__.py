"""The steps of each scenario: a function, registered with the name that the list has."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping

from conformance.world import World

Steps = Callable[[World], None]

_known: dict[str, Steps] = {}


def scenario(name: str) -> Callable[[Steps], Steps]:
    """Register the steps of that scenario. They raise an error if an expectation is not met."""

    def note(steps: Steps) -> Steps:
        assert name not in _known, f"'{name}' has steps twice"
        _known[name] = steps
        return steps

    return note


def load() -> Mapping[str, Steps]:
    """Return the steps of all scenarios."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return _known
