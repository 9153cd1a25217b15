"""The objects that all entities of a namespace share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from peeklock.broker.agenda import Agenda
from peeklock.broker.body_keys import BodyKeys
from peeklock.broker.journal import Journal
from peeklock.broker.lock_tags import LockTags
from peeklock.broker.pace import Pace
from peeklock.broker.window_budget import Budget
from peeklock.entities.settings import DEFAULT_PROFILE
from peeklock.limits.broker import MAX_MESSAGE_IDS
from peeklock.store.base import Store

if TYPE_CHECKING:
    from peeklock.broker.entity import Entity


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """The store, the journal, the clock and the other objects that all entities use."""

    store: Store
    journal: Journal
    agenda: Agenda
    budget: Budget
    body_keys: BodyKeys
    call_soon: Callable[[Callable[[], None]], object]
    find: Callable[[str], Entity]
    """Returns the queue or topic at a path that messages can be sent to, or raises EntityNotFound."""
    tags: LockTags
    pace: Pace
    max_message_ids: int = MAX_MESSAGE_IDS
    """The limit on message ids of one entity, for duplicate detection."""
    max_message_bytes: int = DEFAULT_PROFILE.max_message_bytes
