"""Credentials of the tested broker: a shared key in place of an identity on Azure."""

from __future__ import annotations

import os
from typing import Any

from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from azure.servicebus.aio._base_handler_async import ServiceBusSharedKeyCredential as AsyncServiceBusSharedKeyCredential


class SharedKey(ServiceBusSharedKeyCredential):
    """Signs tokens for every entity. Accepts the arguments of an identity, and ignores them."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(os.environ["SERVICEBUS_SAS_POLICY"], os.environ["SERVICEBUS_SAS_KEY"])

    def __enter__(self) -> SharedKey:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: no connection is open."""


class AsyncSharedKey(AsyncServiceBusSharedKeyCredential):
    """`SharedKey` for asyncio."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(os.environ["SERVICEBUS_SAS_POLICY"], os.environ["SERVICEBUS_SAS_KEY"])

    async def __aenter__(self) -> AsyncSharedKey:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Do nothing: no connection is open."""
