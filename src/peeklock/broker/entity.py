"""An entity with messages, a queue or a topic: its life, what is sent to it, its numbers and counters.

All changes go through the journal. A message becomes visible when its commit is done, so memory never runs ahead of
what a crash would leave. What becomes of messages in a queue is for `message_queue` and its parts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from peeklock.broker import envelope
from peeklock.broker.agenda import Agenda
from peeklock.broker.backlog import Budget
from peeklock.broker.body_keys import BodyKeys
from peeklock.broker.duplicates import History
from peeklock.broker.envelope import (
    END_OF_TIME,
    Annex,
    Incoming,
)
from peeklock.broker.errors import (
    BrokerError,
    EntityDisabled,
    EntityNotFound,
    OperationNotAllowed,
    QuotaExceeded,
    SessionIdMissing,
)
from peeklock.broker.journal import Journal, Lane
from peeklock.broker.lock_tags import LockTags
from peeklock.broker.pace import Pace
from peeklock.broker.priorities import lane_of
from peeklock.broker.scheduled import Scheduled
from peeklock.broker.watches import Watches
from peeklock.entities.base import EntityKind
from peeklock.entities.definitions import AnyDefinition
from peeklock.entities.settings import DEFAULT_PROFILE, Status
from peeklock.limits.broker import MAX_MESSAGE_IDS
from peeklock.store.base import ACTIVE, SCHEDULED, Counters, Damage, Store, StoredMessage, StoreError

log = logging.getLogger(__name__)

Done = Callable[[BrokerError | None], None]
"""Told once, after the commit or instead of it."""

NO_ENTITY: Final = 0
"""The id of an entity that was deleted. No entity has it in the store, so nothing that is still staged or asked for the
deleted one can concern the entity that has its id now."""


@dataclass(frozen=True, slots=True)
class Machinery:
    """What all entities of a namespace share."""

    store: Store
    journal: Journal
    agenda: Agenda
    budget: Budget
    body_keys: BodyKeys
    call_soon: Callable[[Callable[[], None]], object]
    find: Callable[[str], Entity]
    """The entity that messages for a name go to; EntityNotFound."""
    tags: LockTags
    pace: Pace
    max_message_ids: int = MAX_MESSAGE_IDS
    """Of one entity, for duplicate detection."""
    max_message_bytes: int = DEFAULT_PROFILE.max_message_bytes


class Watcher(Protocol):
    """Somebody who stands at an entity: a link."""

    def entity_gone(self, failure: BrokerError) -> None:
        """It is deleted."""
        ...

    def entity_changed(self) -> None:
        """Its definition is another one."""
        ...


class Browser(Protocol):
    """A link that looks at messages without taking them."""

    def on_arrival(self) -> None:
        """A message came since it began to wait."""
        ...


class Entity:
    """One entity with messages. What is common to queues and topics."""

    def __init__(
        self,
        id: int,
        path: str,
        definition: AnyDefinition,
        machinery: Machinery,
        counters: Counters,
        dead_letters: Entity | None,
        transfer_dead_letters: Entity | None = None,
    ) -> None:
        self.id = id
        self.path = path
        self.definition = definition
        self.kind = definition.kind
        """Of a sub-queue: what it belongs to."""
        self.holds_copies = self.kind is EntityKind.SUBSCRIPTION
        """Its messages are copies of those of a topic."""
        self.dead_letters = dead_letters
        """Where dead letters go; None for a queue that is a dead-letter queue itself."""
        self.transfer_dead_letters = transfer_dead_letters
        """Where messages go that could not be forwarded; None as above."""
        self.counts_in: Entity | None = None
        """The queue of a sub-queue, or the topic of a subscription, which it shares a size with."""
        self.sub_queues = [part for part in (dead_letters, transfer_dead_letters) if part is not None]
        for part in self.sub_queues:
            part.counts_in = self
        self.created_at = self.updated_at = machinery.agenda.now()
        self.used_at = machinery.agenda.monotonic()
        """By the monotonic clock: an entity is not idle because the system's clock was set."""
        self.watchers: set[Watcher] = set()
        self._waiting_browsers: dict[Browser, None] = {}
        """Those that saw all there was, in the order in which they began to wait."""
        self.is_deleting = False
        """A commit is on its way that deletes it."""
        """It is deleted, or about to be: nothing is added to it any more."""
        self.counters = counters
        """As the store has them; what is staged is not counted yet."""
        self._machinery = machinery
        self._store = machinery.store
        self._journal = machinery.journal
        self._agenda = machinery.agenda
        self.last_number = counters.last_sequence_number
        """The highest that was given, also to a message that is not in the store yet."""
        self.staged_bytes = 0
        """What is on its way to the store."""
        self.max_bytes = definition.max_size_in_megabytes << 20
        """Its maximum size."""
        self.state_bytes = 0
        """What the states of its sessions count for."""
        self._refusal = self._why_no_sends()
        self.history: History | None = None
        """Where duplicates are detected."""
        if definition.requires_duplicate_detection and not self.is_dead_letter_queue:
            self.history = History(
                id,
                definition.duplicate_detection_window_ms,
                definition.enable_partitioning,
                machinery.journal,
                machinery.agenda,
                machinery.max_message_ids,
            )
        self.delivers_by_priority = False
        """Whether messages are stored in lanes by priority: the name of the lane is stored as the session id."""
        self.watches = Watches()
        self.leaving: set[int] = set()
        """Numbers of messages on their way out that nobody has locked: expired, deleted, enqueued, cancelled."""
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
        """Of its messages, those in its sub-queues too, and of the states of its sessions."""
        size = self.counters.size_in_bytes + self.state_bytes
        for part in self.sub_queues:
            size += part.counters.size_in_bytes
        return size

    @property
    def max_message_bytes(self) -> int:
        """Bytes of the largest message that it takes."""
        limit, kilobytes = self._machinery.max_message_bytes, self.definition.max_message_size_in_kilobytes
        return limit if kilobytes is None else min(limit, kilobytes * 1024)

    @property
    def reads_session_ids(self) -> bool:
        """Whether what is sent to it must be looked through for a session id."""
        return self.definition.requires_session

    @property
    def copies(self) -> int:
        """How many a message sent to it may become, at most."""
        return 1

    @property
    def is_in_use(self) -> bool:
        """Whether it is more than idle at the moment: somebody stands at it, or messages wait."""
        # A subscription is given messages; that some wait there does not mean that anybody wants them.
        waiting = 0 if self.kind is EntityKind.SUBSCRIPTION else self.counters.active
        return bool(waiting or self.counters.scheduled or self.counters.claimed) or any(
            part.watchers for part in self.parts
        )

    @property
    def has_sessions(self) -> bool:
        return self.definition.requires_session and not self.is_dead_letter_queue

    @property
    def last_used_at(self) -> int:
        """As `used_at`, with what belongs to it."""
        return self.used_at

    @property
    def accessed_at(self) -> int:
        """When it was last used, in Unix time."""
        return self._agenda.now() - (self._agenda.monotonic() - self.last_used_at)

    def touch(self) -> None:
        """It is being used."""
        self.used_at = self._agenda.monotonic()

    def watch(self, watcher: Watcher) -> None:
        """Somebody comes to stand at it."""
        self.watchers.add(watcher)
        self.touch()

    def unwatch(self, watcher: Watcher) -> None:
        self.watchers.discard(watcher)
        self.touch()

    # --- browsing ---

    def await_arrival(self, browser: Browser) -> None:
        """Tell the browser, once and in a turn of its own, when the next message is in the store."""
        self._waiting_browsers[browser] = None

    def stop_awaiting(self, browser: Browser) -> None:
        self._waiting_browsers.pop(browser, None)

    def soon(self, action: Callable[[], None]) -> None:
        """Do that in a turn of its own."""
        self._machinery.call_soon(action)

    def _tell_browsers(self) -> None:
        waiting, self._waiting_browsers = self._waiting_browsers, {}
        for browser in waiting:
            self._machinery.call_soon(browser.on_arrival)

    # --- for subclasses ---

    def on_message_damaged(self, damage: Damage) -> None:
        """The store found that it no longer has that message's bytes, and returns it no more."""
        self.counters.count(damage.state, -1)
        self.counters.damaged += 1

    def on_active(self, message: StoredMessage) -> None:
        """A new active message is in the store, and counted. A topic has none."""

    def on_inactive(self, message: StoredMessage) -> None:
        """A message that was active is removed, or in another state."""

    def resume(self) -> None:
        """Deliver again: a sweep is over, or the deletion of the entity failed."""

    # --- its life ---

    def begin(self) -> None:
        """All entities are there, with what they must know of their messages: time may do its work."""
        self.scheduled.begin()

    def load_history(self, done: Callable[[StoreError | None], None]) -> None:
        """At start: which messages were taken within the window."""
        history = self.history
        assert history is not None

        def found(rows: list[tuple[bytes, int]] | StoreError) -> None:
            if isinstance(rows, StoreError):
                done(rows)
            else:
                history.load(rows)
                done(None)

        self._store.read_seen(self.id, history.since, found)

    def reconfigure(self, definition: AnyDefinition) -> None:
        """Go on under another definition, one with the same unchangeable settings."""
        self.definition = definition
        self.max_bytes = definition.max_size_in_megabytes << 20
        self._refusal = self._why_no_sends()
        if self.history is not None:
            self.history.window_ms = definition.duplicate_detection_window_ms
        for part in self.sub_queues:
            part.reconfigure(definition)

    def apply_forwarding(self) -> None:
        """Forward messages, and dead letters, as the definition says."""
        self.forward(self.definition.forward_to, self.transfer_dead_letters)
        if self.dead_letters is not None:
            self.dead_letters.forward(self.definition.forward_dead_lettered_messages_to, self.transfer_dead_letters)

    def forward(self, destination: str | None, unforwardable: Entity | None) -> None:
        """Forward messages to that entity, or to none; those that cannot be forwarded go to that sub-queue."""
        if destination is not None:
            log.warning("'%s' has sessions: its ForwardTo has no effect", self.path)

    @property
    def forwards(self) -> bool:
        return False

    def tell_of_change(self) -> None:
        """The new definition is in force: those who stand here may have to go."""
        for part in self.parts:
            for watcher in list(part.watchers):
                watcher.entity_changed()

    def mark_deleting(self, is_deleting: bool) -> None:
        """A commit is on its way that deletes the entity; or it failed, and the entity goes on."""
        self.is_deleting = is_deleting
        self._refusal = self._why_no_sends()
        if not is_deleting:
            self.resume()
        for part in self.sub_queues:
            part.mark_deleting(is_deleting)

    def close(self) -> None:
        """The entity was deleted: end everything that waits for it."""
        self.id = NO_ENTITY
        for part in self.sub_queues:
            part.close()
        failure = EntityNotFound(self.path)
        for watcher in list(self.watchers):
            watcher.entity_gone(failure)
        self.watchers.clear()
        if self.history is not None:
            self.history.close()
        self.scheduled.stop()

    # --- sending ---

    def send(self, messages: Sequence[Incoming], done: Done) -> None:
        """Take these messages, all or none; `done` hears when they are durable. Raises what can be said at once."""
        self._journal.check_growth()
        self.stage_sends(self._journal.sends, self.admit(messages), done)

    def admit(self, messages: Sequence[Incoming]) -> list[StoredMessage]:
        """The messages as they will be stored, but for their numbers. Raises why they are not taken."""
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
                admitted.append(StoredMessage(0, message.bare, now, None, 0, ACTIVE, session_id, None, message.annex))
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
    def whole(self) -> Entity:
        """The entity whose maximum size holds for this one."""
        whole = self
        while whole.counts_in is not None:
            whole = whole.counts_in
        return whole

    def check_growth(self, growth: int, beyond: int = 0) -> None:
        """Raise unless there is room after so many bytes more; in one part in `beyond` more than the maximum size."""
        whole = self.whole
        most = whole.max_bytes + (whole.max_bytes // beyond if beyond else 0)
        if whole.size_in_bytes + whole.staged_bytes + growth >= most:
            raise whole.size_exceeded()

    def stage_sends(self, lane: Lane, messages: list[StoredMessage], done: Done, come_back: bool = False) -> None:
        """Number the admitted messages and send them on their way.

        `come_back`: they leave this entity or its sub-queue in the same commit, and are no duplicates of themselves.
        """
        if self.is_deleting:
            raise EntityNotFound(self.path)
        if self.history is not None and not come_back:
            messages, done = self.history.sift(lane, messages, done)
        self.stage(lane, messages, done)

    def stage(self, lane: Lane, messages: list[StoredMessage], done: Done) -> None:
        appends = lane.changes.appends
        for message in messages:
            if not message.sequence_number:
                self.last_number += 1
                message.sequence_number = self.last_number
            self.staged_bytes += len(message.payload) if message.body is None else message.size
            appends.append((self.id, message))
        lane.then(self._sent, (messages, done))

    def number(self, messages: list[StoredMessage]) -> list[int]:
        """Give admitted messages their numbers before they are sent on their way, for those who must say them."""
        for message in messages:
            self.last_number += 1
            message.sequence_number = self.last_number
        return [message.sequence_number for message in messages]

    def _admit_timed(self, incoming: Incoming, now: int) -> StoredMessage:
        annex, ttl, scheduled_at = incoming.annex, incoming.ttl_ms, incoming.scheduled_at
        if scheduled_at is not None and scheduled_at > now:
            if ttl is not None:
                annex = Annex.decode(annex)._replace(ttl_ms=ttl).encode()
            return StoredMessage(0, incoming.bare, now, None, 0, SCHEDULED, incoming.session_id, scheduled_at, annex)
        return self.enqueued(incoming.bare, annex, ttl, incoming.session_id, now)

    def enqueued(
        self, bare: bytes, annex: bytes | None, ttl: int | None, session_id: str | None, now: int
    ) -> StoredMessage:
        """A message that is enqueued now: its time to live starts."""
        if self.delivers_by_priority:
            session_id = lane_of(annex)
        default = self.definition.default_message_ttl_ms
        if default is not None and (ttl is None or ttl > default):
            ttl = default
        if ttl is None:
            return StoredMessage(0, bare, now, None, 0, ACTIVE, session_id, None, annex)
        expires_at = min(now + ttl, END_OF_TIME)
        bare = envelope.stamp_expiry(bare, now, expires_at)
        return StoredMessage(0, bare, now, expires_at, 0, ACTIVE, session_id, None, annex)

    def _why_no_sends(self) -> BrokerError | None:
        if self.is_deleting:
            return EntityNotFound(self.path)
        if self.is_dead_letter_queue:
            return OperationNotAllowed(f"Messages cannot be sent to '{self.path}'.")
        if self.kind is EntityKind.SUBSCRIPTION:
            return OperationNotAllowed(f"Messages cannot be sent to '{self.path}': send to its topic.")
        status = self.definition.status
        if status not in (Status.ACTIVE, Status.RECEIVE_DISABLED):
            return EntityDisabled(f"The entity '{self.path}' does not take messages: its status is {status}.")
        return None

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
        if self._waiting_browsers:
            self._tell_browsers()
        if message.state == ACTIVE:
            counters.active += 1
            self.on_active(message)
        else:
            counters.scheduled += 1
            self.scheduled.expect(message)

    # --- receiving ---

    def check_sending(self) -> None:
        """Raise why nobody may send to this entity."""
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)  # raised often: each time would add to the trace

    def check_receiving(self) -> None:
        """Raise why nobody may receive from this entity."""
        if self.definition.status not in (Status.ACTIVE, Status.SEND_DISABLED):
            raise EntityDisabled(
                f"The entity '{self.path}' cannot be received from: its status is {self.definition.status}."
            )

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
