"""A queue as all of its rooms know it: what is common to queues with and without sessions.

Who receives, and where active messages wait, is for `queue` and `sessions` to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from peeklock.broker.claim_records import Span
from peeklock.broker.claims import Claims
from peeklock.broker.deferred import Deferred
from peeklock.broker.deletion import Deletion
from peeklock.broker.entity import Entity, Machinery
from peeklock.broker.errors import BrokerError
from peeklock.broker.expiry import Expiry
from peeklock.broker.locks import Lock, LockTable
from peeklock.broker.packed import PackedRead, read_packed
from peeklock.broker.reading import unreadable
from peeklock.broker.settlements import Settlements
from peeklock.entities.definitions import AnyDefinition, SubscriptionDefinition
from peeklock.store.base import Counters, Damage, Range, Run, StoredMessage, StoreError

MAX_PEEKED_BYTES: Final = 4 * 1024 * 1024
MAX_NUMBER: Final = (1 << 63) - 1

Peeked = Callable[[list[StoredMessage] | BrokerError], None]


class MessageQueue(Entity):
    """A queue, a subscription, or a sub-queue of one: it lends messages, and takes receivers' word on them."""

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
        self.locks = LockTable(machinery.tags)
        self.settlements = Settlements(self, machinery.journal, machinery.agenda)
        if dead_letters is not None:
            self.scheduled.move = self.settlements.move
        self.expiry = Expiry(self, machinery)
        self.deferred = Deferred(self, machinery)
        self.deletion = Deletion(self, machinery)
        self.claims = Claims(self, machinery, is_by_session=self.has_sessions)
        self._sweeps = 0
        """How many are removing messages wherever they stand."""

    # --- for subclasses ---

    def returned(self, message: StoredMessage) -> None:
        """An active message that was locked, or on its way out, waits again."""
        raise NotImplementedError  # abstract

    def stayed(self, message: StoredMessage) -> None:
        """An active message was to leave and the store refused: it waits again, and nobody is told for a while."""
        raise NotImplementedError  # abstract

    def discard(self, message: StoredMessage) -> None:
        """A waiting message leaves; it may stand in a window."""
        raise NotImplementedError  # abstract

    def next_waiting(self, after: int, session_id: str | None) -> int:
        """The lowest number above that one that may be a waiting message's; those in between are locked."""
        return after + 1

    def may_sweep(self) -> bool:
        """Whether messages may be removed wherever they stand; if so no pages are read until `swept`."""
        raise NotImplementedError  # abstract

    def swept(self) -> None:
        """One of those who may sweep is done."""
        raise NotImplementedError  # abstract

    def check_lock(self, lock: Lock, monotonic: int) -> None:
        """Raise why a lock is not good any more, at that time."""
        raise NotImplementedError  # abstract

    def lend(self, messages: list[StoredMessage]) -> list[Lock]:
        """Lock deferred messages, of one session where there are sessions. Raises when they cannot be lent."""
        raise NotImplementedError  # abstract

    @property
    def subscription_definition(self) -> SubscriptionDefinition:
        """Its definition, where it is a subscription."""
        definition = self.definition
        assert isinstance(definition, SubscriptionDefinition)
        return definition

    # --- its life ---

    def begin(self) -> None:
        self.expiry.begin()
        super().begin()

    def on_message_damaged(self, damage: Damage) -> None:
        super().on_message_damaged(damage)
        self.claims.on_damaged(damage.sequence_number)

    def vanish(self) -> None:
        self.claims.close()
        self.expiry.stop()
        super().vanish()
        self.locks.forget()

    # --- locks ---

    def unlock(self, lock: Lock) -> None:
        """The lock is no more."""
        self.locks.remove(lock)
        if self.watches.under_way:
            self.watches.note(lock.message.sequence_number)

    def is_out(self, number: int) -> bool:
        """Whether a message does not wait: somebody has it, or it is leaving."""
        return number in self.locks.by_number or number in self.leaving or self.claims.covers(number)

    # --- looking ---

    def peek(
        self, first: int, limit: int, session_id: str | None, done: Peeked, max_bytes: int = MAX_PEEKED_BYTES
    ) -> None:
        """Messages from a number on, in any state, ascending; nothing is locked or counted. An empty answer says that
        nothing follows."""

        def found(messages: list[StoredMessage] | StoreError) -> None:
            if isinstance(messages, StoreError):
                done(unreadable(messages))
                return
            there = [message for message in messages if message.sequence_number not in self.leaving]
            if there or not messages:
                done(there)
            else:
                # All of them are on their way out; an empty answer would say that nothing follows.
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
        """What to ask the store for."""
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
        """Messages with these numbers, in any state, up to so many bytes."""
        read_packed(self, self._store, self._machinery.call_soon, spans, max_bytes, done)

    def state_of(self, span: Span) -> int | None:
        """The state of all messages between these numbers; None if it is not known."""
        return self.claims.state_of(span)

    # --- for claims ---

    def pause_for_claim(self) -> bool:
        """Hand out nothing that a claim may find, until `resume_after_claim`; False if that is not possible now."""
        raise NotImplementedError  # abstract

    def resume_after_claim(self) -> None:
        raise NotImplementedError  # abstract

    def lanes_to_claim(self, name: str, most: int) -> list[str | None]:
        """Where to look for messages, in order: session ids, at most so many sessions; None for all messages."""
        return [None]

    def claim_from(self, lane: str | None, name: str) -> int | None:
        """Keep the lane for claims of that name. Returns the number behind which to look; None if it is not to be
        had."""
        raise NotImplementedError  # abstract

    def on_claim_staged(self, lane: str | None, runs: list[Run]) -> None:
        """Active messages of the lane are being set aside: they wait no longer."""
        raise NotImplementedError  # abstract

    def on_claim_made(self, lane: str | None, runs: list[Run]) -> None:
        """They are set aside. The counters are right already."""
        self.watches.note_runs(runs)

    def on_claim_undone(self, lane: str | None, runs: list[Run]) -> None:
        """They wait again: the store refused, or the claim was released. Without runs: nothing was found there, or
        its messages are gone."""
        raise NotImplementedError  # abstract

    def out_numbers(self) -> list[int]:
        """Messages that do not wait: locked, or leaving."""
        return sorted({*self.locks.by_number, *self.leaving})
