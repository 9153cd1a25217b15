"""An operation of `$management`, which is a row of the table of operations, and a call of an operation."""

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
    """A checked request. The operation answers it or fails it, now or later."""

    entity: AnyEntity
    """The entity of the management node."""
    arguments: dict[str, Any]
    transaction: Transaction | None
    scope: Scope
    link_name: str | None
    """The link that the request acts for, if it names one."""
    peer: Any
    link: Any
    """The link on which the request arrived."""
    answer: Callable[..., None]
    """Called with the body and, unless it is 200, the status."""
    fail: Callable[[BrokerError], None]
    is_crowded: Callable[[], bool]
    """Whether so many answers await credit that no long answer should be made."""

    @property
    def queue(self) -> AnyQueue:
        """The entity, if messages can be received from it. Raises OperationNotAllowed for a topic."""
        if not is_queue(self.entity):
            raise OperationNotAllowed(f"'{self.entity.path}' is a topic: ask one of its subscriptions.")
        return self.entity

    def check_room(self) -> None:
        """Raise QuotaExceeded if too many answers await credit. More requests may have arrived since this one."""
        if self.is_crowded():
            raise QuotaExceeded("Too many answers await credit on the reply link.")

    def done(self, error: BrokerError | None) -> None:
        """Answer with an empty map, or fail. For operations that return nothing."""
        if error is None:
            self.answer({})
        else:
            self.fail(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One row of the table of operations."""

    name: str
    summary: str
    right: Right
    request: tuple[Field, ...]
    response: tuple[Field, ...]
    run: Callable[[Call], None]
    transactional: bool = False
    max_request_bytes: int | None = None
    """A limit below the general one, for requests that stay in memory while they wait."""
    audited: bool = False
    """Whether calls are written to the audit log: the operation administers, or changes many messages at once."""
    explain: Callable[[AnyEntity, str], str] | None = None
    """Adds the consequence for the entity to the reason of a refusal."""

    def check(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the request's values by key; see `check_keys`."""
        return check_keys(self.request, body)
