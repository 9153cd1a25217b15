"""Replaces the package of the Azure SDK's repository that the tests of azure-servicebus import; it is not on PyPI.

It has the names that the tests use. The tests get a running broker, credentials with its shared key, and entities that
the administration client creates for each test. Nothing is recorded or played back.
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
    """The environment of a test could not be created."""


class ReservedResourceNameError(Exception):
    """A name is reserved on Azure. Never raised here."""


def get_region_override(default: str) -> str:
    return default
