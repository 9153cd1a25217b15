"""A namespace: its entities by name, its keys, and the machinery they share.

Names are found whatever their case; the spelling they were created with is the one that is shown.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from peeklock.broker.access import Keys
from peeklock.broker.agenda import Agenda, Clock, system_clock
from peeklock.broker.backlog import Budget
from peeklock.broker.definitions import (
    NamespaceDefinition,
    QueueDefinition,
    TopicDefinition,
)
from peeklock.broker.entity import Machinery
from peeklock.broker.errors import EntityNotFound, NotSupported
from peeklock.broker.journal import Journal
from peeklock.broker.names import DefinitionError, fold
from peeklock.broker.queue import Queue
from peeklock.broker.sessions import SessionQueue
from peeklock.broker.settings import (
    DEFAULT_PROFILE,
    Profile,
    settings_of,
)
from peeklock.store.base import Changes, Store, StoredEntity, StoreError

log = logging.getLogger(__name__)

QUEUE, DEAD_LETTER_QUEUE = "queue", "dead-letter-queue"
DEAD_LETTER_SUFFIX = "$DeadLetterQueue"

PROBE_INTERVAL_MS = 1000
"""How often a store that failed is tried again."""

CallSoon = Callable[[Callable[[], None]], object]
AnyQueue = Queue | SessionQueue


class Namespace:
    """All entities of a broker."""

    def __init__(
        self,
        definition: NamespaceDefinition,
        store: Store,
        call_soon: CallSoon,
        *,
        clock: Clock = system_clock,
        profile: Profile = DEFAULT_PROFILE,
    ) -> None:
        self.definition = definition
        self.profile = profile
        self.agenda = Agenda(clock)
        self.journal = Journal(store, call_soon)
        self.journal.on_failed = self._expect_recovery
        self.keys = Keys()
        self._store = store
        self._machinery = Machinery(store, self.journal, self.agenda, Budget(), call_soon)
        self._queues: dict[str, AnyQueue] = {}
        self._topics: dict[str, TopicDefinition] = {fold(topic.name): topic for topic in definition.topics}
        self._last_entity = 0
        self._recovery_expected = False

    @property
    def now(self) -> Clock:
        return self.agenda.now

    @property
    def queues(self) -> list[AnyQueue]:
        """All queues, without their sub-queues."""
        return [queue for queue in self._queues.values() if not queue.is_dead_letter_queue]

    def start(self, ready: Callable[[StoreError | None], None]) -> None:
        """Open the store and take up its entities, with what the definition adds or changes; then call `ready`.

        DefinitionError when it changes what cannot be changed.
        """
        stored = {fold(entity.path): entity for entity in self._store.open()}
        self._last_entity = max((entity.id for entity in stored.values()), default=0)
        changes = Changes()
        wanted = {fold(queue.name): queue for queue in self.definition.queues}
        for path, entity in stored.items():
            if entity.kind == QUEUE and path not in wanted:
                wanted[path] = QueueDefinition.from_json(entity.definition)
        for path, definition in wanted.items():
            if path in stored:
                _check_change(QueueDefinition.from_json(stored[path].definition), definition)
            self._take_up(definition, stored, changes)
        self.keys.set("", self.definition.authorization_rules)
        if changes:
            self._store.commit(changes, lambda error: ready(error) if error is not None else self._load(ready))
        else:
            self._load(ready)

    def _load(self, ready: Callable[[StoreError | None], None]) -> None:
        """What must be known of the messages before anybody is served."""
        loading = [queue for queue in self._queues.values() if isinstance(queue, SessionQueue)]

        def load_next(error: StoreError | None) -> None:
            if error is not None or not loading:
                ready(error)
            else:
                loading.pop().load(load_next)

        load_next(None)

    def queue(self, path: str) -> AnyQueue:
        """The queue or sub-queue at that path."""
        folded = fold(path)
        queue = self._queues.get(folded)
        if queue is not None:
            return queue
        if folded.split("/subscriptions/")[0] in self._topics:
            raise NotSupported(f"'{path}' belongs to a topic; topics do not carry messages yet.")
        raise EntityNotFound(path)

    def _expect_recovery(self) -> None:
        """The store failed: try it again in a while, because senders may wait to hear that it works."""
        if not self._recovery_expected:
            self._recovery_expected = True
            self.agenda.at(self.now() + PROBE_INTERVAL_MS, self._probe)

    def _probe(self) -> None:
        self._recovery_expected = False
        # Not a dead-letter queue: its messages have the numbers of another one.
        queue = next(iter(self.queues), None)
        if self.journal.failure is not None and queue is not None:
            self.journal.probe(queue.passing_message())

    def _take_up(self, definition: QueueDefinition, stored: dict[str, StoredEntity], changes: Changes) -> None:
        path = definition.name
        _warn_of_unsupported(definition)
        dead_letter_path = f"{path}/{DEAD_LETTER_SUFFIX}"
        dead_letters = self._make(
            self._entity(dead_letter_path, DEAD_LETTER_QUEUE, {}, stored, changes), definition, None
        )
        self._make(self._entity(path, QUEUE, definition.to_json(), stored, changes), definition, dead_letters)
        self.keys.set(path, definition.authorization_rules)

    def _entity(
        self,
        path: str,
        kind: str,
        definition: dict[str, object],
        stored: dict[str, StoredEntity],
        changes: Changes,
    ) -> StoredEntity:
        known = stored.get(fold(path))
        if known is None:
            self._last_entity += 1
            known = StoredEntity(self._last_entity, path, kind, definition)
        elif (known.path, known.definition) == (path, definition):
            return known
        else:
            known.path, known.definition = path, definition
        changes.entities[known.id] = known
        return known

    def _make(self, entity: StoredEntity, definition: QueueDefinition, dead_letters: AnyQueue | None) -> AnyQueue:
        kind = SessionQueue if definition.requires_session and dead_letters is not None else Queue
        queue = kind(entity.id, entity.path, definition, self._machinery, entity.counters, dead_letters)
        self._queues[fold(entity.path)] = queue
        return queue


def _check_change(before: QueueDefinition, after: QueueDefinition) -> None:
    """Some settings are fixed when the queue is made: the messages in it are laid out by them."""
    for name, setting in settings_of(QueueDefinition).items():
        was, wanted = getattr(before, name), getattr(after, name)
        if not setting.changeable and was != wanted:
            shown = str(wanted).lower()
            raise DefinitionError(
                f"{setting.name} of the queue '{before.name}'", shown, "cannot be changed once the queue exists"
            )


def _warn_of_unsupported(definition: QueueDefinition) -> None:
    """What is configured and not done yet is at least said."""
    asked = {
        "RequiresDuplicateDetection": definition.requires_duplicate_detection,
        "ForwardTo": definition.forward_to is not None,
        "ForwardDeadLetteredMessagesTo": definition.forward_dead_lettered_messages_to is not None,
        "AutoDeleteOnIdle": definition.auto_delete_on_idle_ms is not None,
    }
    for setting, is_asked in asked.items():
        if is_asked:
            log.warning(
                "a setting has no effect yet", extra={"fields": {"entity": definition.name, "setting": setting}}
            )
