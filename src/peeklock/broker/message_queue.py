"""The base class of queues with and without sessions: settlement, expiry, deferral, claims, and reading of messages.

A part of the queue, `windows`, has the active messages. The two kinds of queue react differently to changes of these
(`on_active`, `on_inactive`, `on_returned`, `resume`), and lock deferred messages differently (`lock_deferred`). Each
adds the start and end of its own parts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from peeklock.broker.claim_lanes import ClaimLanes
from peeklock.broker.claim_records import Span
from peeklock.broker.claims import Claims
from peeklock.broker.dead_lettering import DeadLettering
from peeklock.broker.deferred import Deferred
from peeklock.broker.deletion import Deletion
from peeklock.broker.entity import Entity
from peeklock.broker.errors import BrokerError
from peeklock.broker.expiry import Expiry
from peeklock.broker.locks import Lock, LockTable
from peeklock.broker.machinery import Machinery
from peeklock.broker.packed import PackedRead, read_packed
from peeklock.broker.reading import unreadable
from peeklock.broker.settlements import Settlements
from peeklock.broker.waiting import Windows
from peeklock.entities.definitions import AnyDefinition, SubscriptionDefinition
from peeklock.limits.amqp import MAX_PEEKED_BYTES
from peeklock.store.base import Damage, Range, Run, StoredEntity, StoredMessage, StoreError

log = logging.getLogger(__name__)

MAX_NUMBER: Final = (1 << 63) - 1

Peeked = Callable[[list[StoredMessage] | BrokerError], None]


class MessageQueue(Entity):
    """A queue, a subscription, or a sub-queue: it delivers messages under locks, and receivers settle them."""

    windows: Windows
    """Its active messages that are in memory."""
    claim_lanes: ClaimLanes
    """The lanes in which claims search for active messages."""

    def __init__(
        self,
        row: StoredEntity,
        definition: AnyDefinition,
        machinery: Machinery,
        dead_letters: MessageQueue | None = None,
        transfer_dead_letters: MessageQueue | None = None,
    ) -> None:
        super().__init__(row, definition, machinery, dead_letters, transfer_dead_letters)
        self._dead_letters = dead_letters
        self.locks = LockTable(machinery.tags)
        self.dead_lettering = DeadLettering(self, machinery.journal)
        self.settlements = Settlements(self, machinery.journal, machinery.agenda)
        if dead_letters is not None:
            self.scheduled.move = self.dead_lettering.move
        self.expiry = Expiry(self, machinery)
        self.deferred = Deferred(self, machinery)
        self.deletion = Deletion(self, machinery)
        self.claims = Claims(self, machinery, is_by_session=self.has_sessions)
        self._sweeps = 0

    # --- differs between queues with and without sessions; see also `Entity` ---

    def on_returned(self, message: StoredMessage, *, was_refused: bool = False) -> None:
        """An active message can be received again, because its lock ended or its removal failed.

        `was_refused`: the store refused to remove it. It is delivered and expires only after a delay.
        """
        raise NotImplementedError  # abstract

    def lock_deferred(self, messages: list[StoredMessage]) -> list[Lock]:
        """Lock deferred messages; in a session queue they are of one session. Raise BrokerError if that fails."""
        raise NotImplementedError  # abstract

    # --- start and deletion ---

    def begin(self) -> None:
        self.expiry.begin()
        super().begin()

    def close(self) -> None:
        self.claims.close()
        self.expiry.stop()
        super().close()
        self.locks.forget()

    def on_message_damaged(self, damage: Damage) -> None:
        super().on_message_damaged(damage)
        self.claims.on_damaged(damage.sequence_number)

    @property
    def subscription_definition(self) -> SubscriptionDefinition:
        """Its definition. Only for subscriptions."""
        definition = self.definition
        assert isinstance(definition, SubscriptionDefinition)
        return definition

    def apply_forwarding(self) -> None:
        """Start or stop forwarding messages and dead letters, according to the definition."""
        self.forward(self.definition.forward_to, self.transfer_dead_letters)
        if self._dead_letters is not None:
            self._dead_letters.forward(self.definition.forward_dead_lettered_messages_to, self.transfer_dead_letters)

    def forward(self, destination: str | None, unforwardable: Entity | None) -> None:
        """Forward messages to an entity; None: stop. Messages that cannot be forwarded go to `unforwardable`."""
        if destination is not None:
            log.warning("the queue '%s' has sessions: its ForwardTo has no effect", self.path)

    # --- locks ---

    def unlock(self, lock: Lock) -> None:
        """Remove a lock that ended."""
        self.locks.remove(lock)
        if self.watches.under_way:
            self.watches.note(lock.message.sequence_number)
        if lock.session is not None:
            lock.session.on_unlocked(lock)

    def is_taken(self, number: int) -> bool:
        """Return whether an active message cannot be received: it is locked, claimed or being removed."""
        return number in self.locks.by_number or number in self.leaving or self.claims.covers(number)

    def taken_numbers(self) -> list[int]:
        """Return the messages that are locked or being removed."""
        return sorted({*self.locks.by_number, *self.leaving})

    # --- sweeps, which remove messages both in memory and only in the store ---

    def begin_sweep(self) -> bool:
        """Stop reading pages until `end_sweep`.

        Return False if a page is being read, because it may have messages that the sweep removes.
        """
        if self.windows.loading:
            return False
        self._sweeps += 1
        self.windows.hold(True)
        return True

    def end_sweep(self) -> None:
        self.read_pages_again()
        self.resume()

    def read_pages_again(self) -> None:
        self._sweeps -= 1
        self.windows.hold(self._sweeps > 0)

    @property
    def is_swept(self) -> bool:
        """Whether a sweep is under way. More messages may be read after it."""
        return self._sweeps > 0

    # --- reading messages ---

    def peek(
        self, first: int, limit: int, session_id: str | None, done: Peeked, max_bytes: int = MAX_PEEKED_BYTES
    ) -> None:
        """Read messages in any state from a sequence number on, in ascending order. Nothing is locked or counted.

        `done` gets an empty list only if no message follows.
        """

        def found(messages: list[StoredMessage] | StoreError) -> None:
            if isinstance(messages, StoreError):
                done(unreadable(messages))
                return
            there = [message for message in messages if message.sequence_number not in self.leaving]
            if there or not messages:
                done(there)
            else:
                # All messages of the page are being removed. An empty answer would mean that no message follows.
                self.peek(messages[-1].sequence_number + 1, limit, session_id, done, max_bytes)

        wanted = self.page_after(max(0, first - 1), limit, session_id, state=None, max_bytes=max_bytes)
        self._store.read(wanted, found)

    def page_after(
        self,
        after: int,
        limit: int,
        session_id: str | None,
        *,
        state: int | None,
        max_bytes: int = MAX_PEEKED_BYTES,
    ) -> Range:
        """Return the range of the store for a page of messages after a sequence number."""
        return Range(
            entity=self.id,
            after=after,
            through=MAX_NUMBER,
            limit=limit,
            max_bytes=max_bytes,
            state=state,
            session_id=session_id,
        )

    def read_packed(self, spans: Sequence[Span], max_bytes: int, done: PackedRead) -> None:
        """Read the messages with these numbers, in any state, up to `max_bytes`."""
        read_packed(self, self._store, self._machinery.call_soon, spans, max_bytes, done)

    # --- for claims ---

    def state_of(self, span: Span) -> int | None:
        """Return the state of all messages in the span; None if it is not known or differs."""
        return self.claims.state_of(span)

    def on_claim_made(self, lane: str | None, runs: list[Run]) -> None:
        """These messages are claimed. The counters are updated already."""
        self.watches.note_runs(runs)
