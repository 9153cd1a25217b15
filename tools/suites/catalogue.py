"""All suites, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tools.suites import go_sdk, python_sdk, rust_sdk
from tools.suites.suite import Suite

SUITES: Final[Mapping[str, Suite]] = {
    each.name: each for each in (python_sdk.TESTS, python_sdk.SAMPLES, rust_sdk.TESTS, go_sdk.TESTS)
}
