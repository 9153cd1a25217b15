"""Transactions: sends and settlements that become durable and visible in one commit, or not at all.

Until it is discharged a transaction is only a list in memory: nothing of it is in the store, and what it would
settle stays locked as it was. So a crash, a time-out or a rollback has nothing to undo.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from peeklock.broker.agenda import Agenda, Appointment
from peeklock.broker.container import Container, Done, Lock
from peeklock.broker.envelope import Incoming
from peeklock.broker.errors import (
    BrokerError,
    MessageLockLost,
    OperationNotAllowed,
    QuotaExceeded,
    TransactionRolledBack,
    TransactionTimedOut,
    UnknownTransaction,
)
from peeklock.broker.journal import Journal
from peeklock.store.base import StoredMessage

TIME_LIMIT_MS: Final = 2 * 60 * 1000
MAX_MESSAGES: Final = 100
MAX_OPEN: Final = 1000
"""Transactions one connection may have open."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Where a piece of work comes from: the entity of its link (the one it sends through), and the AMQP session."""

    entity: str
    session: Any


class Transaction:
    """Work that waits for its discharge."""

    def __init__(self, journal: Journal, agenda: Agenda) -> None:
        self._journal = journal
        self._agenda = agenda
        self._scope: Scope | None = None
        self._deadline: Appointment | None = None
        self._messages = 0
        self._sends: list[tuple[Container, list[Incoming]]] = []
        self._numbered: list[tuple[Container, list[StoredMessage]]] = []
        self._settlements: list[tuple[Container, Lock, Callable[[Done], None]]] = []
        self._over: BrokerError | None = None
        """Why nothing can be added any more."""

    def send(self, container: Container, messages: list[Incoming], scope: Scope) -> None:
        """Send these with the transaction. Raises what can be said now."""
        self._enter(scope, len(messages), sends=True)
        container.admit(messages)
        self._sends.append((container, messages))

    def schedule(self, container: Container, messages: list[Incoming], scope: Scope) -> list[int]:
        """As `send`, for messages whose numbers are wanted now."""
        self._enter(scope, len(messages), sends=True)
        admitted = container.admit(messages)
        self._numbered.append((container, admitted))
        return container.number(admitted)

    def settle(self, container: Container, lock: Lock, act: Callable[[Done], None], scope: Scope) -> None:
        """Settle with the transaction; `act` does it."""
        if any(lock is known for _, known, _ in self._settlements) or container.lock_of(lock.tag) is not lock:
            raise MessageLockLost
        self._enter(scope, 1, sends=False)
        self._settlements.append((container, lock, act))

    def commit(self, done: Done) -> None:
        """Do all of it, or nothing: `done` hears which, and why."""
        self.check()
        try:
            for container, lock, _ in self._settlements:
                if lock.settling or container.lock_of(lock.tag) is not lock:
                    raise MessageLockLost
            sends = [(container, container.admit(messages)) for container, messages in self._sends]
        except BrokerError as failure:
            self.roll_back()
            done(TransactionRolledBack(f"The transaction was rolled back: {failure}"))
            return
        self._end(UnknownTransaction("The transaction is over."))
        sends += self._numbered
        waiting = len(sends) + len(self._settlements)
        if not waiting:
            done(None)
            return
        # One lane and one turn: all of it goes into one commit. Not the lane of plain sends, which may fail alone.
        gather = _Gather(waiting, done)
        for container, messages in sends:
            container.stage_sends(self._journal.rest, messages, gather.outcome)
        for _, _, act in self._settlements:
            act(gather.outcome)

    def roll_back(self) -> None:
        """Forget all of it. What it would have settled stays locked."""
        self._end(UnknownTransaction("The transaction is over."))

    def check(self) -> None:
        if self._over is not None:
            raise self._over

    def _enter(self, scope: Scope, messages: int, *, sends: bool) -> None:
        self.check()
        if self._messages + messages > MAX_MESSAGES:
            raise QuotaExceeded(f"A transaction takes at most {MAX_MESSAGES} messages.")
        if self._scope is None:
            self._scope = scope
            self._deadline = self._agenda.at(self._agenda.now() + TIME_LIMIT_MS, self._time_out)
        elif scope.entity != self._scope.entity and not (sends and scope.session is self._scope.session):
            raise OperationNotAllowed(
                f"The transaction belongs to '{self._scope.entity}' and cannot include '{scope.entity}': "
                "send through the first entity, or from its AMQP session."
            )
        self._messages += messages

    def _time_out(self) -> None:
        self._end(TransactionTimedOut(f"The transaction was rolled back after {TIME_LIMIT_MS // 1000} seconds."))

    def _end(self, reason: BrokerError) -> None:
        self._over = reason
        if self._deadline is not None:
            self._deadline.cancel()


class _Gather:
    """Several outcomes of one commit made one."""

    def __init__(self, waiting: int, done: Done) -> None:
        self._waiting = waiting
        self._done = done

    def outcome(self, error: BrokerError | None) -> None:
        self._waiting -= 1
        if not self._waiting:
            self._done(error)


class Transactions:
    """The open transactions of one connection."""

    def __init__(self, journal: Journal, agenda: Agenda) -> None:
        self._make = partial(Transaction, journal, agenda)
        self._open: dict[bytes, Transaction] = {}

    def declare(self) -> bytes:
        if len(self._open) >= MAX_OPEN:
            raise QuotaExceeded(f"The connection has {MAX_OPEN} transactions open.")
        id = os.urandom(16)
        self._open[id] = self._make()
        return id

    def get(self, id: bytes | None) -> Transaction:
        transaction = self._open.get(id or b"")
        if transaction is None:
            raise UnknownTransaction("No such transaction is open on this connection.")
        return transaction

    def discharge(self, id: bytes, *, fail: bool, done: Done) -> None:
        transaction = self.get(id)
        del self._open[id]
        if fail:
            transaction.check()
            transaction.roll_back()
            done(None)
        else:
            transaction.commit(done)

    def forget(self, ids: list[bytes]) -> None:
        """Whoever declared them is gone."""
        for id in ids:
            transaction = self._open.pop(id, None)
            if transaction is not None:
                transaction.roll_back()
