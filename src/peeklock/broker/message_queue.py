"""What queues with and without sessions share: the parts that do the work on messages, and looks at messages.

Where active messages wait is for `windows`, a part of the queue. Five methods differ between the two kinds of queue:
`on_active`, `on_inactive`, `on_returned`, `resume` and `lock_deferred`.
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
from peeklock.store.base import Counters, Damage, Range, Run, StoredMessage, StoreError

log = logging.getLogger(__name__)

MAX_NUMBER: Final = (1 << 63) - 1

Peeked = Callable[[list[StoredMessage] | BrokerError], None]


class MessageQueue(Entity):
    """A queue, a subscription, or a sub-queue of one: it delivers messages under locks, which receivers settle."""

    windows: Windows
    """Its active messages that are in memory."""
    claim_lanes: ClaimLanes
    """Where claims look for active messages."""

    def __init__(
        self,
        id: int,
        path: str,
        definition: AnyDefinition,
        machinery: Machinery,
        counters: Counters,
        dead_letters: MessageQueue | None,
        transfer_dead_letters: MessageQueue | None = None,
    ) -> None:
        super().__init__(id, path, definition, machinery, counters, dead_letters, transfer_dead_letters)
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

    # --- what differs between queues with and without sessions; see also `Entity` ---

    def on_returned(self, message: StoredMessage, *, was_refused: bool = False) -> None:
        """An active message can be received again: its lock ended, or it was to be removed and was not.

        `was_refused`: the store refused to remove it, so it is not delivered at once, nor does it expire at once.
        """
        raise NotImplementedError  # abstract

    def lock_deferred(self, messages: list[StoredMessage]) -> list[Lock]:
        """Lock deferred messages, of one session where there are sessions. BrokerError when they cannot be locked."""
        raise NotImplementedError  # abstract

    # --- its life ---

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
        """Its definition, where it is a subscription."""
        definition = self.definition
        assert isinstance(definition, SubscriptionDefinition)
        return definition

    def apply_forwarding(self) -> None:
        """Forward messages and dead letters as the definition says."""
        self.forward(self.definition.forward_to, self.transfer_dead_letters)
        if self._dead_letters is not None:
            self._dead_letters.forward(self.definition.forward_dead_lettered_messages_to, self.transfer_dead_letters)

    def forward(self, destination: str | None, unforwardable: Entity | None) -> None:
        """Forward messages to that entity, or stop. Messages that cannot be forwarded go to the sub-queue."""
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
        """Whether an active message cannot be received: it is locked, claimed or being removed."""
        return number in self.locks.by_number or number in self.leaving or self.claims.covers(number)

    def taken_numbers(self) -> list[int]:
        """The messages that are locked or being removed."""
        return sorted({*self.locks.by_number, *self.leaving})

    # --- sweeps: removing messages wherever they wait, in memory or only in the store ---

    def begin_sweep(self) -> bool:
        """Read no pages until `end_sweep`. False while a page is being read, which may have what the sweep removes."""
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
        """Whether a sweep is under way, so that more messages may be read after it."""
        return self._sweeps > 0

    # --- looks at messages ---

    def peek(
        self, first: int, limit: int, session_id: str | None, done: Peeked, max_bytes: int = MAX_PEEKED_BYTES
    ) -> None:
        """Read messages from a number on, in any state, ascending; nothing is locked or counted.

        An empty answer says that no message follows.
        """

        def found(messages: list[StoredMessage] | StoreError) -> None:
            if isinstance(messages, StoreError):
                done(unreadable(messages))
                return
            there = [message for message in messages if message.sequence_number not in self.leaving]
            if there or not messages:
                done(there)
            else:
                # All of them are being removed; an empty answer would say that no message follows.
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
        """The range of the store with the messages after a number."""
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
        """Read the messages with these numbers, in any state, up to so many bytes."""
        read_packed(self, self._store, self._machinery.call_soon, spans, max_bytes, done)

    # --- for claims ---

    def state_of(self, span: Span) -> int | None:
        """The state of all messages between these numbers; None if it is not known."""
        return self.claims.state_of(span)

    def on_claim_made(self, lane: str | None, runs: list[Run]) -> None:
        """The store has the claim of these messages, and the counters are right already."""
        self.watches.note_runs(runs)
