"""Transactions: sends and settlements that become durable and visible in one commit, or not at all.

Until its discharge, a transaction is only a list in memory: none of its work is in the store, and the messages that it
settles stay locked. So after a crash, a time-out or a rollback there is nothing to undo.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from peeklock.broker.accounts import Account, Accounts
from peeklock.broker.agenda import Agenda, Appointment
from peeklock.broker.entity import Done, Entity
from peeklock.broker.envelope import AddedProperties
from peeklock.broker.errors import (
    BrokerError,
    MessageLockLost,
    OperationNotAllowed,
    QuotaExceeded,
    TransactionRolledBack,
    TransactionTimedOut,
    UnknownTransaction,
)
from peeklock.broker.incoming import Incoming
from peeklock.broker.journal import Journal
from peeklock.broker.locks import Lock
from peeklock.broker.settlements import Settlements
from peeklock.broker.verdicts import Settlement
from peeklock.limits.broker import (
    MAX_ALL_TRANSACTION_BYTES,
    MAX_OPEN_TRANSACTIONS,
    MAX_RULE_TRANSACTION_BYTES,
    MAX_TRANSACTION_BYTES,
    MAX_TRANSACTION_MESSAGES,
    TRANSACTION_TIME_LIMIT_MS,
)
from peeklock.store.base import StoredMessage

PROPERTY_COST: Final = 4
"""About how many times more memory the properties of a settlement use than their encoded bytes."""
MESSAGE_BYTES: Final = 600
"""About how much memory a message uses in addition to its payload."""


OnRollback = Callable[[Lock], None]
"""Called for a message that the client settled, when the transaction is rolled back."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The origin of work: the entity of its link (or the entity that it sends through), and the AMQP session."""

    entity: str
    session: Any


def transaction_accounts() -> Accounts:
    return Accounts(all_bytes=MAX_ALL_TRANSACTION_BYTES, rule_bytes=MAX_RULE_TRANSACTION_BYTES)


class Transaction:
    """The work of one transaction, until its discharge."""

    def __init__(self, journal: Journal, agenda: Agenda, memory: Account) -> None:
        self._journal = journal
        self._agenda = agenda
        self._memory = memory
        self._scope: Scope | None = None
        self._deadline: Appointment | None = None
        self._messages = 0
        self._bytes = 0
        self._sends: list[tuple[Entity, list[Incoming]]] = []
        self._numbered: list[tuple[Entity, list[StoredMessage]]] = []
        self._settlements: list[tuple[Settlements, Lock, Settlement]] = []
        self._settled_by_client: list[tuple[Lock, OnRollback]] = []
        """Messages that the receiver has settled on its side. After a rollback it does not settle them again."""
        self._over: BrokerError | None = None
        """The error for more work, if the transaction has ended."""
        self._flaw: BrokerError | None = None
        """The reason why the transaction can only be rolled back."""

    def send(self, entity: Entity, messages: list[Incoming], scope: Scope) -> None:
        """Add sends to the transaction. Raise BrokerError if the messages are refused now."""
        self.check()
        self._journal.check_growth()
        entity.admit(messages)
        self._enter(scope, len(messages), _size(messages), sends=True)
        self._sends.append((entity, messages))

    def schedule(self, entity: Entity, messages: list[Incoming], scope: Scope) -> list[int]:
        """Add scheduled sends to the transaction, and return the sequence numbers, which the client needs now."""
        self.check()
        self._journal.check_growth()
        admitted = entity.admit(messages)
        self._enter(scope, len(messages), _size(messages), sends=True)
        self._numbered.append((entity, admitted))
        return entity.number(admitted)

    def settle(
        self,
        settlements: Settlements,
        locks: Sequence[Lock],
        settlement: Settlement,
        scope: Scope,
        on_rollback: OnRollback | None = None,
    ) -> None:
        """Add settlements to the transaction, all or none.

        After a rollback the messages stay locked for their receiver. If the receiver has settled them on its side,
        `on_rollback` is given, and is called for each message after a rollback.
        """
        self.check()
        for lock in locks:
            if any(lock is known for _, known, _ in self._settlements):
                raise MessageLockLost
            settlements.check_held(lock)
        added = settlement.added
        size = PROPERTY_COST * AddedProperties(added).size if added else 0
        self._enter(scope, len(locks), size, sends=False)
        self._settlements += [(settlements, lock, settlement) for lock in locks]
        if on_rollback is not None:
            self._settled_by_client += [(lock, on_rollback) for lock in locks]

    def mark_rollback_only(self, flaw: BrokerError) -> None:
        """Make the later commit fail, because a part of the work was refused."""
        if self._flaw is None:
            self._flaw = flaw

    def commit(self, done: Done) -> None:
        """Commit all of the work, or none of it. `done` gets None or the error."""
        self.check()
        self._stop(UnknownTransaction("The transaction is over."))
        gather = _Gather(len(self._sends) + len(self._numbered) + len(self._settlements), partial(self._done, done))
        try:
            if self._flaw is not None:
                raise self._flaw
            for settlements, lock, _ in self._settlements:
                settlements.check_held(lock)
            self._journal.all_or_nothing(partial(self._stage, gather))
        except BrokerError as failure:
            self._done(done, TransactionRolledBack(f"The transaction was rolled back: {failure}"))
            return
        if not gather.waiting:
            self._done(done, None)

    def _stage(self, gather: _Gather) -> None:
        # Not on the lane of sends: that lane may fail alone.
        sends = [(entity, entity.admit(messages)) for entity, messages in self._sends]
        for entity, messages in sends + self._numbered:
            entity.stage_sends(self._journal.moves, messages, gather.outcome)
        for settlements, lock, settlement in self._settlements:
            settlements.settle(settlement, lock, gather.outcome)

    def _done(self, done: Done, error: BrokerError | None) -> None:
        self._forget(rolled_back=error is not None)
        done(error)

    def roll_back(self) -> None:
        """Drop the work. Messages stay locked, or `on_rollback` is called for them (see `settle`)."""
        self._stop(UnknownTransaction("The transaction is over."))
        self._forget(rolled_back=True)

    def check(self) -> None:
        if self._over is not None:
            raise self._over

    def _enter(self, scope: Scope, messages: int, size: int, *, sends: bool) -> None:
        if self._messages + messages > MAX_TRANSACTION_MESSAGES:
            raise QuotaExceeded(f"A transaction can have at most {MAX_TRANSACTION_MESSAGES} messages.")
        first = self._scope
        if first is not None and scope.entity != first.entity and not (sends and scope.session is first.session):
            raise OperationNotAllowed(
                f"The transaction belongs to '{first.entity}' and cannot include '{scope.entity}': "
                "send through the first entity, or from its AMQP session."
            )
        self._memory.check()
        self._memory.take(size)
        self._bytes += size
        self._messages += messages
        if first is None:
            self._scope = scope
            self._deadline = self._agenda.after(TRANSACTION_TIME_LIMIT_MS, self._time_out)

    def _time_out(self) -> None:
        self._stop(
            TransactionTimedOut(f"The transaction was rolled back after {TRANSACTION_TIME_LIMIT_MS // 1000} seconds.")
        )
        self._forget(rolled_back=True)

    def _stop(self, reason: BrokerError) -> None:
        self._over = reason
        if self._deadline is not None:
            self._deadline.cancel()

    def _forget(self, *, rolled_back: bool) -> None:
        """Release the memory of the work."""
        settled_by_client = self._settled_by_client
        self._sends, self._numbered, self._settlements, self._settled_by_client = [], [], [], []
        self._memory.release(self._bytes)
        self._bytes = 0
        if rolled_back:
            for lock, on_rollback in settled_by_client:
                on_rollback(lock)


def _size(messages: list[Incoming]) -> int:
    return sum(MESSAGE_BYTES + len(message.bare) + len(message.annex or b"") for message in messages)


class _Gather:
    """Combines the outcomes of one commit into one."""

    def __init__(self, waiting: int, done: Done) -> None:
        self.waiting = waiting
        self._done = done

    def outcome(self, error: BrokerError | None) -> None:
        self.waiting -= 1
        if not self.waiting:
            self._done(error)


class Transactions:
    """The open transactions of one connection."""

    def __init__(self, journal: Journal, agenda: Agenda, accounts: Accounts | None = None) -> None:
        self.memory = Account("The open transactions", MAX_TRANSACTION_BYTES, accounts or transaction_accounts())
        """The memory of the transactions until their discharge. It does not count as unsaved bytes of senders."""
        self._make = partial(Transaction, journal, agenda, self.memory)
        self._open: dict[bytes, Transaction] = {}

    def declare(self) -> bytes:
        if len(self._open) >= MAX_OPEN_TRANSACTIONS:
            raise QuotaExceeded(f"The connection has {MAX_OPEN_TRANSACTIONS} open transactions; no more are allowed.")
        id = os.urandom(16)
        self._open[id] = self._make()
        return id

    def get(self, id: bytes | None) -> Transaction:
        transaction = self._open.get(id or b"")
        if transaction is None:
            raise UnknownTransaction("No such transaction is open on this connection.")
        return transaction

    def mark_rollback_only(self, id: bytes, flaw: BrokerError) -> None:
        """Make the commit of a transaction fail, because a part of its work was refused.

        The refusal itself may not reach the application: a client that settled a message on its side gets no outcome,
        and the Java SDK ignores the outcomes of messages that it sends within a transaction.
        """
        transaction = self._open.get(id)
        if transaction is not None:
            transaction.mark_rollback_only(flaw)

    def mark_all_rollback_only(self, flaw: BrokerError) -> None:
        """Make the commits of all transactions fail, because the client lost a right that their work may need."""
        for transaction in self._open.values():
            transaction.mark_rollback_only(flaw)

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
        """Roll back transactions whose client detached."""
        for id in ids:
            transaction = self._open.pop(id, None)
            if transaction is not None:
                transaction.roll_back()
