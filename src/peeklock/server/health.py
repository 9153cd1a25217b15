"""Whether the broker works: tried by a message that is stored, read back and removed, not by looking.

However often it is asked, one such message is on its way, and at most one a second while all is well.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from peeklock.broker.errors import BrokerError
from peeklock.broker.namespace import Namespace
from peeklock.store.base import Changes, Range, Store, StoredMessage, StoreError

PATIENCE_SECONDS: Final = 5.0
GOOD_SECONDS: Final = 1.0
"""How long a message that came through answers for."""
MOST_AT_ONCE: Final = 100
"""Messages that are removed together: one, and those that a crash has left."""


class Health:
    """Asked whether the broker works."""

    def __init__(self, namespace: Namespace, store: Store, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._namespace = namespace
        self._journal = namespace.journal
        self._store = store
        self._patience_seconds = patience_seconds
        self._good_until = 0.0
        self._trial: asyncio.Task[str | None] | None = None

    async def answer(self, request: web.Request) -> web.Response:
        """In the words of the official emulator, which has none for a broker that takes no messages and gives some."""
        complaint = await self.complaint()
        if complaint is not None:
            return web.json_response({"status": "unhealthy", "message": complaint}, status=503)
        if (warning := self._warning()) is not None:
            return web.json_response({"status": "degraded", "message": warning})
        return web.json_response({"status": "healthy", "message": "Service is healthy."})

    def _warning(self) -> str | None:
        """What somebody should see to, though the broker works."""
        warnings = []
        if self._journal.refusal is not None:
            # Receivers make room: whoever stops such a broker, or keeps them from it, makes it worse.
            warnings.append(str(self._journal.refusal))
        damaged = self._namespace.damaged
        if damaged:
            entities = ", ".join(f"{path} ({count})" for path, count in damaged.items())
            warnings.append(
                f"Messages are damaged on disk and are not delivered: {entities}. See `peeklock store repair`."
            )
        return " ".join(warnings) or None

    async def complaint(self) -> str | None:
        """Why the broker does not work; None when it does."""
        if self._journal.failure is not None:
            # A store that failed is tried again by the namespace itself, which tells when it works.
            return str(self._journal.failure)
        if asyncio.get_running_loop().time() < self._good_until:
            return None
        if self._trial is None or self._trial.done():
            self._trial = asyncio.create_task(self._try())
        trial = self._trial
        await asyncio.wait([trial], timeout=self._patience_seconds)
        return trial.result() if trial.done() else f"The store has not answered for {self._patience_seconds:g} seconds."

    async def _try(self) -> str | None:
        """Send, receive and complete."""
        ((entity, message),) = self._namespace.passing_message().appends
        error = await self._committed(Changes(appends=[(entity, message)]))
        if error is not None:
            return self._reason(error)
        number = message.sequence_number
        received = await self._read(Range(entity=entity, through=number, limit=MOST_AT_ONCE, max_bytes=1 << 30))
        if isinstance(received, StoreError):
            return str(received)
        error = await self._committed(Changes(removals=[(entity, each) for each in received]))
        if error is not None:
            return self._reason(error)
        if all((each.sequence_number, each.content) != (number, message.content) for each in received):
            return "A message that was stored could not be read back."
        self._good_until = asyncio.get_running_loop().time() + GOOD_SECONDS
        return None

    def _reason(self, error: BrokerError) -> str:
        """The store's own words, which say more than those for clients."""
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
