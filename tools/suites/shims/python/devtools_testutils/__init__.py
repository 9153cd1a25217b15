"""What the tests of azure-servicebus import from the Azure SDK's repository and what is not on PyPI.

Our own, with the names that the tests use: they get a broker that runs, credentials with its shared key, and entities
that the administration client creates for each test. Nothing is recorded and nothing is played back.
"""

from __future__ import annotations

from devtools_testutils.preparing import (
    AzureMgmtPreparer,
    CachedResourceGroupPreparer,
    FakeResource,
    PowerShellPreparer,
    RandomNameResourceGroupPreparer,
)
from devtools_testutils.sanitizers import add_general_regex_sanitizer, set_custom_default_matcher
from devtools_testutils.testing import (
    AzureMgmtRecordedTestCase,
    AzureRecordedTestCase,
    get_credential,
    recorded_by_proxy,
)

__all__ = [
    "AzureMgmtPreparer",
    "AzureMgmtRecordedTestCase",
    "AzureRecordedTestCase",
    "AzureTestError",
    "CachedResourceGroupPreparer",
    "FakeResource",
    "PowerShellPreparer",
    "RandomNameResourceGroupPreparer",
    "ReservedResourceNameError",
    "add_general_regex_sanitizer",
    "get_credential",
    "get_region_override",
    "recorded_by_proxy",
    "set_custom_default_matcher",
]


class AzureTestError(Exception):
    """The environment of a test could not be made."""


class ReservedResourceNameError(Exception):
    """A name is taken. Ours are not."""


def get_region_override(default: str) -> str:
    return default
