"""A receive over HTTP: a consumer of a queue that waits for one message.

It ends with a message, or without one: at its time-out, when the client disconnects, or when the entity or the client's
right is removed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from peeklock.broker.access import Grant
from peeklock.broker.agenda import Appointment
from peeklock.broker.errors import BrokerError, InvalidToken, Unauthorized
from peeklock.broker.locks import Lock
from peeklock.broker.namespace import Namespace
from peeklock.broker.queue import Queue
from peeklock.broker.window_budget import memory_cost
from peeklock.entities.authorization import Right
from peeklock.rest.usage import RuleUsage
from peeklock.server.http import HTTP_GRACE_MS
from peeklock.server.logs import event
from peeklock.store.base import StoredMessage

log = logging.getLogger(__name__)

AT_ONCE_MS: Final = 2000
"""The wait of a receive with time-out 0, so that the queue can read messages from disk. It ends earlier if the queue is
empty."""

Received = tuple[StoredMessage, Lock | None]


class Receive:
    """One receive. It is a consumer of the queue, for one message, and a watcher of the entity and its rules."""

    def __init__(
        self, namespace: Namespace, queue: Queue, grant: Grant, usage: RuleUsage, *, deletes: bool, timeout_ms: int
    ) -> None:
        self.deletes = deletes
        self._namespace = namespace
        self._queue = queue
        self._grant = grant
        self._usage = usage
        self._timeout_ms = timeout_ms
        self._is_over = False
        """No further message is accepted; a message that is already reserved is still delivered."""
        self._reserved = False
        self._timer: Appointment | None = None
        self._failure: BrokerError | None = None
        self._outcome: asyncio.Future[Received | None] = asyncio.get_running_loop().create_future()

    async def message(self) -> Received | None:
        """Wait for a message; None at the time-out. Raise the BrokerError for which there cannot be one."""
        try:
            self._start()
            return await self._outcome
        except asyncio.CancelledError:
            self.end(None)
            if self._outcome.done() and not self._outcome.cancelled() and self._outcome.exception() is None:
                received = self._outcome.result()
                if received is not None:
                    self.release(received)
                    self.on_response_written(received)
            raise
        finally:
            self._leave()

    def release(self, received: Received) -> None:
        """Release a message that the client did not get, without increasing its delivery count.

        A message of receive-and-delete is already removed: it is lost, which is logged.
        """
        message, lock = received
        if lock is not None:
            self._queue.settlements.release(lock)
        else:
            fields = {"entity": self._queue.path, "number": message.sequence_number}
            event(log, logging.WARNING, "a message was received and deleted, but the client had disconnected", **fields)

    def on_response_written(self, received: Received) -> None:
        """Free the memory of the message: the response was written, or cannot be written."""
        message, lock = received
        if lock is None:
            self._usage.account.release(memory_cost(message))

    def end(self, failure: BrokerError | None) -> None:
        """Stop waiting: with None after the client disconnected, else with the reason why it gets no message."""
        self._is_over = True
        self._failure = self._failure or failure
        if not self._reserved:
            self._resolve(None)

    # --- as a consumer ---

    def ready(self) -> bool:
        return not self._is_over and not self._reserved and not self._usage.is_full

    def deliver(self, message: StoredMessage, lock: Lock | None) -> None:
        self._is_over, self._reserved = True, False
        if lock is not None:
            lock.charge(self._usage.account)
        if self._outcome.done():
            self.release((message, lock))
            return
        if lock is None:
            self._usage.account.take(memory_cost(message))
        self._resolve((message, lock))

    def reserve(self, message: StoredMessage) -> None:
        self._reserved = True

    def unreserve(self, message: StoredMessage) -> None:
        self._reserved = False
        if self._is_over:
            self._resolve(None)
        else:
            self._queue.want(self)

    def on_starved(self) -> None:
        if not self._timeout_ms:
            self.end(None)

    def on_memory_freed(self) -> None:
        """Continue to wait for a message after the limit of memory was reached."""
        if not self._is_over:
            self._queue.want(self)

    # --- as a watcher ---

    def on_entity_deleted(self, failure: BrokerError) -> None:
        self.end(failure)

    def on_entity_changed(self) -> None:
        try:
            self._queue.check_receiving()
        except BrokerError as failure:
            self.end(failure)

    def on_rules_changed(self, path: str) -> None:
        """End the receive if the client's authorization rule was removed or no longer gives the right Listen."""
        if path == self._grant.owner:
            current = self._namespace.keys.current(self._grant)
            if current is None or Right.LISTEN not in current.rights:
                why = f"the authorization rule '{self._grant.key_name}' was changed or removed"
                self.end(Unauthorized(f"Unauthorized access to '{self._queue.path}': {why}."))

    # --- inside ---

    def _start(self) -> None:
        self._usage.add_waiting(self)
        self._queue.watch(self)
        self._namespace.keys.watchers.add(self)
        wait_ms, failure = self._timeout_ms or AT_ONCE_MS, None
        if self._grant.expires_at is not None:
            left_ms = max(0, self._grant.expires_at + HTTP_GRACE_MS - self._namespace.now())
            if left_ms < wait_ms:
                wait_ms, failure = left_ms, InvalidToken("The token expired while the request was waiting.")
        self._timer = self._namespace.agenda.after(wait_ms, lambda: self.end(failure))
        self._queue.want(self)

    def _leave(self) -> None:
        self._usage.remove_waiting(self)
        self._queue.leave(self)
        self._queue.unwatch(self)
        self._namespace.keys.watchers.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def _resolve(self, received: Received | None) -> None:
        if self._outcome.done():
            return
        if received is None and self._failure is not None:
            self._outcome.set_exception(self._failure)
        else:
            self._outcome.set_result(received)
