"""The base classes and decorators of the tests."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from suite_credentials import AsyncSharedKey, SharedKey

Test = TypeVar("Test", bound=Callable[..., Any])


class AzureRecordedTestCase:
    """A test that can be recorded."""

    is_live = True
    in_recording = False

    @staticmethod
    def await_prepared_test(test: Callable[..., Any]) -> Callable[..., None]:
        """Wrap a coroutine into a plain test."""

        @functools.wraps(test)
        def run(*arguments: Any, **named: Any) -> None:
            asyncio.run(test(*arguments, **named))

        return run


class AzureMgmtRecordedTestCase(AzureRecordedTestCase):
    """A test with resources that are created for it."""


def get_credential(*, is_async: bool = False, **_: Any) -> SharedKey | AsyncSharedKey:
    return AsyncSharedKey() if is_async else SharedKey()


def recorded_by_proxy(test: Test) -> Test:
    return test
