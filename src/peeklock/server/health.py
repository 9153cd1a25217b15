"""The page `/health`: a probe message is stored, read back and removed.

At most one probe runs at a time, and a successful result is cached for one second.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from peeklock.broker.errors import BrokerError
from peeklock.broker.namespace import Namespace
from peeklock.store.base import Changes, Range, Store, StoredMessage, StoreError

TIMEOUT_SECONDS: Final = 5.0
"""Time for the store to finish a probe."""
CACHE_SECONDS: Final = 1.0
"""How long a successful probe is cached."""
MAX_PROBE_MESSAGES: Final = 100
"""Probe messages removed together: the current one, and any left by a crash."""


class Health:
    """Answers requests for the broker's health."""

    def __init__(self, namespace: Namespace, store: Store, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._namespace = namespace
        self._journal = namespace.journal
        self._store = store
        self._timeout_seconds = timeout_seconds
        self._cached_until = 0.0
        self._probe: asyncio.Task[str | None] | None = None

    async def answer(self, request: web.Request) -> web.Response:
        """Answer with the official emulator's JSON; `degraded` is ours: the broker works, but needs attention."""
        problem = await self.problem()
        if problem is not None:
            return web.json_response({"status": "unhealthy", "message": problem}, status=503)
        if (warning := self._warning()) is not None:
            return web.json_response({"status": "degraded", "message": warning})
        return web.json_response({"status": "healthy", "message": "Service is healthy."})

    def _warning(self) -> str | None:
        """Return what needs an operator's attention although the broker works, or None."""
        warnings = []
        if self._journal.refusal is not None:
            # Not "unhealthy": a load balancer would stop the receivers, whose settlements free the disk space.
            warnings.append(str(self._journal.refusal))
        damaged = self._namespace.damaged
        if damaged:
            entities = ", ".join(f"{path} ({count})" for path, count in damaged.items())
            warnings.append(
                f"Messages are damaged on disk and are not delivered: {entities}. See `peeklock store repair`."
            )
        return " ".join(warnings) or None

    async def problem(self) -> str | None:
        """Return why the broker does not work, or None if it works."""
        if self._journal.failure is not None:
            # The namespace itself tries a failed store again, and clears the failure when the store works.
            return str(self._journal.failure)
        if asyncio.get_running_loop().time() < self._cached_until:
            return None
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._run_probe())
        probe = self._probe
        await asyncio.wait([probe], timeout=self._timeout_seconds)
        return probe.result() if probe.done() else f"The store has not answered for {self._timeout_seconds:g} seconds."

    async def _run_probe(self) -> str | None:
        """Store a message, read it back and remove it. Returns why that failed, or None."""
        ((entity, message),) = self._namespace.make_probe().appends
        error = await self._committed(Changes(appends=[(entity, message)]))
        if error is not None:
            return self._reason(error)
        number = message.sequence_number
        received = await self._read(Range(entity=entity, through=number, limit=MAX_PROBE_MESSAGES, max_bytes=1 << 30))
        if isinstance(received, StoreError):
            return str(received)
        error = await self._committed(Changes(removals=[(entity, each) for each in received]))
        if error is not None:
            return self._reason(error)
        if all((each.sequence_number, each.content) != (number, message.content) for each in received):
            return "A message that was stored could not be read back."
        self._cached_until = asyncio.get_running_loop().time() + CACHE_SECONDS
        return None

    def _reason(self, error: BrokerError) -> str:
        """Return the store's own error if there is one: it has more detail than the error for clients."""
        return str(self._journal.failure or error)

    async def _committed(self, changes: Changes) -> BrokerError | None:
        committed: asyncio.Future[BrokerError | None] = asyncio.get_running_loop().create_future()
        lane = self._journal.sends if changes.appends else self._journal.rest
        lane.changes.appends += changes.appends
        lane.changes.removals += changes.removals
        lane.then(lambda _, error: committed.set_result(error), None)
        return await committed

    async def _read(self, wanted: Range) -> list[StoredMessage] | StoreError:
        found: asyncio.Future[list[StoredMessage] | StoreError] = asyncio.get_running_loop().create_future()
        self._store.read(wanted, found.set_result)
        return await found
