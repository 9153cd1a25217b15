"""The base class of queues and topics: sending, sequence numbers, counters, size, creation and deletion.

All changes go through the journal. A message becomes visible when its commit is done, so memory never has a message
that the store would lose in a crash. `message_queue` and its parts receive and settle the messages of a queue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from peeklock.amqp.service_bus import END_OF_TIME
from peeklock.broker import envelope
from peeklock.broker.annex import Annex
from peeklock.broker.duplicates import History, make_history
from peeklock.broker.errors import (
    BrokerError,
    EntityNotFound,
    QuotaExceeded,
    SessionIdMissing,
)
from peeklock.broker.incoming import Incoming
from peeklock.broker.journal import Lane
from peeklock.broker.machinery import Machinery
from peeklock.broker.observers import WaitingBrowsers, Watcher
from peeklock.broker.permissions import check_receiving, why_no_sends
from peeklock.broker.priorities import lane_of
from peeklock.broker.scheduled import Scheduled
from peeklock.broker.watches import Watches
from peeklock.entities.base import EntityKind
from peeklock.entities.definitions import AnyDefinition
from peeklock.store.base import ACTIVE, SCHEDULED, Damage, StoredEntity, StoredMessage

Done = Callable[[BrokerError | None], None]
"""Called once: with None after the commit, or with the error."""

NO_ENTITY: Final = 0
"""The id of a deleted entity. No entity has this id in the store. So changes and reads that are still under way cannot
affect a new entity that has got the old id."""


class Entity:
    """A queue or topic, a subscription, or a sub-queue."""

    def __init__(
        self,
        row: StoredEntity,
        definition: AnyDefinition,
        machinery: Machinery,
        dead_letters: Entity | None = None,
        transfer_dead_letters: Entity | None = None,
    ) -> None:
        self.id = row.id
        self.path = row.path
        self.definition = definition
        self.kind = definition.kind
        """The kind of the entity. A sub-queue has the kind of the entity it belongs to."""
        self.holds_copies = self.kind is EntityKind.SUBSCRIPTION
        """Whether its messages are copies of messages of a topic."""
        self.dead_letters = dead_letters
        """The dead-letter queue; None for a topic and for sub-queues."""
        self.transfer_dead_letters = transfer_dead_letters
        """The sub-queue for messages that could not be forwarded; None for a topic and for sub-queues."""
        self.parent: Entity | None = None
        """The queue of a sub-queue, or the topic of a subscription. Its maximum size is a limit for both together."""
        self.sub_queues = [part for part in (dead_letters, transfer_dead_letters) if part is not None]
        for part in self.sub_queues:
            part.parent = self
        self.created_at = self.updated_at = machinery.agenda.now()
        self.used_at = machinery.agenda.monotonic()
        """When a client last used it, by the monotonic clock: setting the system's clock must not make it idle."""
        self.watchers: set[Watcher] = set()
        self.browsers = WaitingBrowsers(machinery.call_soon)
        self.is_deleting = False
        """Whether it was deleted, or a commit that deletes it is under way. It accepts no more messages."""
        self.counters = row.counters
        """The counters of the store. Changes are counted after their commit."""
        self._machinery = machinery
        self._store = machinery.store
        self._journal = machinery.journal
        self._agenda = machinery.agenda
        self.last_number = row.counters.last_sequence_number
        """The highest sequence number that was assigned, including messages that are not in the store yet."""
        self.staged_bytes = 0
        """Bytes of messages whose commit is under way."""
        self.max_bytes = definition.max_size_in_megabytes << 20
        """The maximum size of the entity."""
        self.state_bytes = 0
        """The part of its size that the states of its sessions use."""
        self._refusal = why_no_sends(self)
        self.history: History | None = None
        """The message ids for duplicate detection; None if the entity does not detect duplicates."""
        if definition.requires_duplicate_detection and not self.is_dead_letter_queue:
            self.history = make_history(row.id, definition, machinery)
        self.delivers_by_priority = False
        """Whether messages are stored in lanes by priority: the name of the lane is stored as the session id."""
        self.watches = Watches()
        self.leaving: set[int] = set()
        """Sequence numbers of unlocked messages that are being removed: expired, deleted, enqueued, cancelled."""
        self.scheduled = Scheduled(self, machinery)

    @property
    def parts(self) -> list[Entity]:
        """The entity and its sub-queues."""
        return [self, *self.sub_queues]

    @property
    def dependents(self) -> Sequence[Entity]:
        """The subscriptions of a topic, which are deleted with it."""
        return ()

    @property
    def is_dead_letter_queue(self) -> bool:
        return self.dead_letters is None

    @property
    def size_in_bytes(self) -> int:
        """The size of its messages, of those in its sub-queues, and of the states of its sessions."""
        size = self.counters.size_in_bytes + self.state_bytes
        for part in self.sub_queues:
            size += part.counters.size_in_bytes
        return size

    @property
    def max_message_bytes(self) -> int:
        """The size of the largest message that it accepts."""
        limit, kilobytes = self._machinery.max_message_bytes, self.definition.max_message_size_in_kilobytes
        return limit if kilobytes is None else min(limit, kilobytes * 1024)

    @property
    def reads_session_ids(self) -> bool:
        """Whether the session ids of sent messages must be decoded."""
        return self.definition.requires_session

    @property
    def copies(self) -> int:
        """The most copies that are made of a sent message."""
        return 1

    @property
    def is_in_use(self) -> bool:
        """Whether it is not idle: links are attached to it, or it has messages."""
        # The topic sends messages to a subscription, so active messages do not mean that a client uses it.
        waiting = 0 if self.kind is EntityKind.SUBSCRIPTION else self.counters.active
        return bool(waiting or self.counters.scheduled or self.counters.claimed) or any(
            part.watchers for part in self.parts
        )

    @property
    def has_sessions(self) -> bool:
        return self.definition.requires_session and not self.is_dead_letter_queue

    @property
    def last_used_at(self) -> int:
        """When it was last used, by the monotonic clock. For a topic, also when one of its subscriptions was."""
        return self.used_at

    @property
    def accessed_at(self) -> int:
        """When it was last used, in Unix time."""
        return self._agenda.now() - (self._agenda.monotonic() - self.last_used_at)

    def touch(self) -> None:
        """Record that a client uses it now."""
        self.used_at = self._agenda.monotonic()

    def watch(self, watcher: Watcher) -> None:
        """Register a link that is attached to it."""
        self.watchers.add(watcher)
        self.touch()

    def unwatch(self, watcher: Watcher) -> None:
        self.watchers.discard(watcher)
        self.touch()

    # --- overridden by queues ---

    def on_message_damaged(self, damage: Damage) -> None:
        """The store found a damaged message, which it no longer returns."""
        self.counters.count(damage.state, -1)
        self.counters.damaged += 1

    def on_active(self, message: StoredMessage) -> None:
        """A new active message is in the store, and counted. A topic has none."""

    def on_inactive(self, message: StoredMessage) -> None:
        """A message that was active is removed, or has another state."""

    def resume(self) -> None:
        """Deliver messages again, after a sweep or after the deletion of the entity failed."""

    # --- start, change, deletion ---

    def begin(self) -> None:
        """Start the timers. All entities must exist and be loaded."""
        self.scheduled.begin()

    def reconfigure(self, definition: AnyDefinition) -> None:
        """Apply a new definition, with the same unchangeable settings."""
        self.definition = definition
        self.max_bytes = definition.max_size_in_megabytes << 20
        self._refusal = why_no_sends(self)
        if self.history is not None:
            self.history.window_ms = definition.duplicate_detection_window_ms
        for part in self.sub_queues:
            part.reconfigure(definition)

    @property
    def forwards(self) -> bool:
        return False

    def notify_changed(self) -> None:
        """Notify attached links of a new definition. They may have to detach."""
        for part in self.parts:
            for watcher in list(part.watchers):
                watcher.on_entity_changed()

    def mark_deleting(self, is_deleting: bool) -> None:
        """Set whether a commit that deletes the entity is under way; False after that commit failed."""
        self.is_deleting = is_deleting
        self._refusal = why_no_sends(self)
        if not is_deleting:
            self.resume()
        for part in self.sub_queues:
            part.mark_deleting(is_deleting)

    def close(self) -> None:
        """The entity was deleted: detach its links and stop its timers."""
        self.id = NO_ENTITY
        for part in self.sub_queues:
            part.close()
        failure = EntityNotFound(self.path)
        for watcher in list(self.watchers):
            watcher.on_entity_deleted(failure)
        self.watchers.clear()
        if self.history is not None:
            self.history.close()
        self.scheduled.stop()

    # --- sending ---

    def send(self, messages: Sequence[Incoming], done: Done) -> None:
        """Store messages, all or none. `done` is called when they are durable, or when the commit failed.

        Raise BrokerError if they are invalid or not allowed.
        """
        self._journal.check_growth()
        self.stage_sends(self._journal.sends, self.admit(messages), done)

    def admit(self, messages: Sequence[Incoming]) -> list[StoredMessage]:
        """Return the messages in the form to be stored, without sequence numbers. Raise BrokerError to refuse them."""
        if self._refusal is not None:
            self.check_sending()
        self._check_room()
        now = self._agenda.now()
        self.used_at = self._agenda.monotonic()
        needs_session, default_ttl = self.definition.requires_session, self.definition.default_message_ttl_ms
        admitted: list[StoredMessage] = []
        for message in messages:
            session_id = message.session_id
            if session_id is None and needs_session:
                raise SessionIdMissing(f"The entity '{self.path}' requires sessions: a message needs a session id.")
            if message.scheduled_at is not None or message.ttl_ms is not None or default_ttl is not None:
                admitted.append(self._admit_timed(message, now))
            else:
                admitted.append(StoredMessage(0, message.bare, now, ACTIVE, session_id, message.annex))
        if self.delivers_by_priority:
            for each in admitted:
                each.session_id = lane_of(each.annex)
        return admitted

    def _check_room(self) -> None:
        if self.size_in_bytes + self.staged_bytes >= self.max_bytes:
            raise self.size_exceeded()

    def size_exceeded(self) -> QuotaExceeded:
        return QuotaExceeded(f"The entity '{self.path}' has reached its maximum size of {self.max_bytes >> 20} MB.")

    @property
    def root(self) -> Entity:
        """The queue or topic whose maximum size limits this entity."""
        root = self
        while root.parent is not None:
            root = root.parent
        return root

    def check_growth(self, growth: int, beyond: int = 0) -> None:
        """Raise QuotaExceeded if the entity, grown by `growth` bytes, would exceed its maximum size.

        With `beyond`, it may exceed the maximum size by one part in `beyond`.
        """
        root = self.root
        most = root.max_bytes + (root.max_bytes // beyond if beyond else 0)
        if root.size_in_bytes + root.staged_bytes + growth >= most:
            raise root.size_exceeded()

    def stage_sends(
        self, lane: Lane, messages: list[StoredMessage], done: Done, checks_duplicates: bool = True
    ) -> None:
        """Assign sequence numbers to admitted messages and stage them.

        `checks_duplicates` is False for messages that are removed from this entity, or from its sub-queue, in the same
        commit: they would be duplicates of themselves.
        """
        if self.is_deleting:
            raise EntityNotFound(self.path)
        if self.history is not None and checks_duplicates:
            messages, done = self.history.sift(lane, messages, done)
        self.stage(lane, messages, done)

    def stage(self, lane: Lane, messages: list[StoredMessage], done: Done) -> None:
        """Stage messages without the checks of `stage_sends`."""
        appends = lane.changes.appends
        for message in messages:
            if not message.sequence_number:
                self.last_number += 1
                message.sequence_number = self.last_number
            self.staged_bytes += len(message.payload) if message.body is None else message.size
            appends.append((self.id, message))
        lane.then(self._sent, (messages, done))

    def number(self, messages: list[StoredMessage]) -> list[int]:
        """Assign sequence numbers to admitted messages before they are staged, for clients that need them at once."""
        for message in messages:
            self.last_number += 1
            message.sequence_number = self.last_number
        return [message.sequence_number for message in messages]

    def _admit_timed(self, incoming: Incoming, now: int) -> StoredMessage:
        annex, ttl, scheduled_at = incoming.annex, incoming.ttl_ms, incoming.scheduled_at
        if scheduled_at is not None and scheduled_at > now:
            if ttl is not None:
                annex = Annex.decode(annex)._replace(ttl_ms=ttl).encode()
            return StoredMessage(0, incoming.bare, now, SCHEDULED, incoming.session_id, annex, due_at=scheduled_at)
        return self.enqueued(incoming.bare, annex, ttl, incoming.session_id, now)

    def enqueued(
        self, bare: bytes, annex: bytes | None, ttl: int | None, session_id: str | None, now: int
    ) -> StoredMessage:
        """Make a message that is enqueued now. Its time to live starts now."""
        if self.delivers_by_priority:
            session_id = lane_of(annex)
        default = self.definition.default_message_ttl_ms
        if default is not None and (ttl is None or ttl > default):
            ttl = default
        if ttl is None:
            return StoredMessage(0, bare, now, ACTIVE, session_id, annex)
        expires_at = min(now + ttl, END_OF_TIME)
        bare = envelope.stamp_expiry(bare, now, expires_at)
        return StoredMessage(0, bare, now, ACTIVE, session_id, annex, expires_at)

    def _sent(self, argument: tuple[list[StoredMessage], Done], error: BrokerError | None) -> None:
        messages, done = argument
        for message in messages:
            self.staged_bytes -= len(message.payload) if message.body is None else message.size
            if error is None:
                self.on_stored(message)
        done(error)

    def on_stored(self, message: StoredMessage) -> None:
        """A message was added to the store."""
        counters = self.counters
        counters.size_in_bytes += len(message.payload) if message.body is None else message.size
        if message.sequence_number > counters.last_sequence_number:
            counters.last_sequence_number = message.sequence_number
        if self.browsers.any:
            self.browsers.wake()
        if message.state == ACTIVE:
            counters.active += 1
            self.on_active(message)
        else:
            counters.scheduled += 1
            self.scheduled.expect(message)

    # --- receiving ---

    def check_sending(self) -> None:
        """Raise BrokerError if no client may send to this entity."""
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)  # the same object is raised often, and its traceback would grow

    def check_receiving(self) -> None:
        """Raise BrokerError if no client may receive from this entity."""
        check_receiving(self)

    def on_removed(self, message: StoredMessage) -> None:
        """A message was removed from the store."""
        if self.watches.under_way:
            self.watches.note(message.sequence_number)
        counters = self.counters
        counters.size_in_bytes -= len(message.payload) if message.body is None else message.size
        if message.state == ACTIVE:
            counters.active -= 1
            self.on_inactive(message)
        else:
            counters.count(message.state, -1)
