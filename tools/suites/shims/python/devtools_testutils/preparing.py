"""Decorators that create the resources of a test, pass them to it, and delete them.

The suite's own classes create resources by `create_mgmt_client`, that is, by `management`. Each test gets new entities,
even if the suite would share one between tests, so that a failed test leaves no messages to another.
"""

from __future__ import annotations

import functools
import inspect
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from devtools_testutils.management import Management, Named
from devtools_testutils.resource_testcase import RESOURCE_GROUP_PARAM

FakeResource = Named


class _Preparer:
    """Passes arguments to a test. The suite's own preparers inherit from it."""

    def create_resource(self, name: str, **kwargs: Any) -> dict[str, Any]:
        raise NotImplementedError

    def remove_resource(self, name: str, **kwargs: Any) -> None:
        pass

    def __call__(self, test: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(test)
        # A function that another preparer has decorated accepts more than pytest sees.
        takes_all = hasattr(test, "prepared") or any(
            each.kind is each.VAR_KEYWORD for each in signature.parameters.values()
        )

        def accepted(arguments: dict[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in arguments.items() if takes_all or name in signature.parameters}

        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def prepared(self_of_test: Any, **given: Any) -> None:
                with self._made(given) as arguments:
                    await test(self_of_test, **accepted(arguments))

        else:

            @functools.wraps(test)
            def prepared(self_of_test: Any, **given: Any) -> None:
                with self._made(given) as arguments:
                    test(self_of_test, **accepted(arguments))

        # The remaining arguments are pytest's: no resources.
        wanted = [
            each
            for each in signature.parameters.values()
            if each.kind is each.POSITIONAL_OR_KEYWORD
            and each.default is each.empty
            and not each.name.startswith(("servicebus_", RESOURCE_GROUP_PARAM, "location"))
        ]
        prepared.__signature__ = signature.replace(parameters=wanted)
        prepared.prepared = True
        return prepared

    @contextmanager
    def _made(self, given: dict[str, Any]) -> Iterator[dict[str, Any]]:
        name = f"{getattr(self, 'name_prefix', '')}{uuid.uuid4().hex[:16]}"
        made = self.create_resource(name, **given)
        try:
            yield {**given, **made}
        finally:
            self.remove_resource(name, **given)


class AzureMgmtPreparer(_Preparer):
    """Creates a resource: on Azure in the original, here on the broker."""

    def __init__(
        self, name_prefix: str = "", random_name_length: int = 24, *, random_name_enabled: bool = False, **_: Any
    ) -> None:
        self.name_prefix = name_prefix
        self.random_name_enabled = random_name_enabled
        self.is_live = True
        self.resource: Any = None
        self.resource_moniker = self.moniker = name_prefix

    def set_cache(self, enabled: bool, *key: Any) -> None:
        """Return whether tests may share the resource: never."""

    def create_mgmt_client(self, kind: type, **_: Any) -> Management:
        return Management()


class _ResourceGroup(AzureMgmtPreparer):
    def create_resource(self, name: str, **kwargs: Any) -> dict[str, Any]:
        return {RESOURCE_GROUP_PARAM: Named(name), "location": "here"}


CachedResourceGroupPreparer = RandomNameResourceGroupPreparer = _ResourceGroup


class PowerShellPreparer(_Preparer):
    """Passes the values of environment variables to a test."""

    def __init__(self, _service: str, **variables: str) -> None:
        self._names = list(variables)

    def create_resource(self, name: str, **kwargs: Any) -> dict[str, Any]:
        return {each: os.environ[each.upper()] for each in self._names}
