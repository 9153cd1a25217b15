"""What a row of the table of `$management` operations is made of, and a request on its way through one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from peeklock.broker.catalogue import AnyEntity, is_queue
from peeklock.broker.errors import BrokerError, OperationNotAllowed, QuotaExceeded
from peeklock.broker.session_queue import AnyQueue
from peeklock.broker.transactions import Scope, Transaction
from peeklock.entities.authorization import Right
from peeklock.nodes.fields import Field, check_keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A checked request on its way through an operation, which answers or fails it, now or later."""

    entity: AnyEntity
    """What is asked about."""
    arguments: dict[str, Any]
    transaction: Transaction | None
    scope: Scope
    link_name: str | None
    """The link the request speaks for, if it names one."""
    peer: Any
    link: Any
    """On which it came."""
    answer: Callable[..., None]
    """(body, status=200)"""
    fail: Callable[[BrokerError], None]
    is_crowded: Callable[[], bool]
    """Whether the client leaves so many answers waiting that a long one had better not be made."""

    @property
    def queue(self) -> AnyQueue:
        """The entity, if messages can be received from it; OperationNotAllowed for a topic."""
        if not is_queue(self.entity):
            raise OperationNotAllowed(f"'{self.entity.path}' is a topic: ask one of its subscriptions.")
        return self.entity

    def check_room(self) -> None:
        """QuotaExceeded when it is crowded: many may have been asked for before the first was answered."""
        if self.is_crowded():
            raise QuotaExceeded("Too many answers wait for the client to take them.")

    def done(self, error: BrokerError | None) -> None:
        """For what has no more to say than that it is done."""
        if error is None:
            self.answer({})
        else:
            self.fail(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One row of the table."""

    name: str
    summary: str
    right: Right
    request: tuple[Field, ...]
    response: tuple[Field, ...]
    run: Callable[[Call], None]
    transactional: bool = False
    max_request_bytes: int | None = None
    """Less than others may have, for requests that are kept while they wait."""
    audited: bool = False
    """Whether the audit log hears of it: it administers, or changes many messages at once."""
    explain: Callable[[AnyEntity, str], str] | None = None
    """Adds to the reason of a refusal what it means for the entity."""

    def check(self, body: dict[str, Any]) -> dict[str, Any]:
        """The request's values, as `check_keys` gives them."""
        return check_keys(self.request, body)
