"""Transactions: sends and settlements of one connection that are committed together or rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from peeklock.amqp.message import Message
from peeklock.amqp.outcomes import Accepted
from peeklock.amqp.transactions import Coordinator, Declare, Discharge, TransactionalState
from peeklock.client.errors import ClientError

if TYPE_CHECKING:
    from peeklock.client.connection import Connection


class Transaction:
    """An open transaction. Messages that are sent with `state=` or settled with `outcome` belong to it."""

    def __init__(self, id: bytes) -> None:
        self.id = id

    @property
    def state(self) -> TransactionalState:
        """The delivery state of a message that `Sender.send` or `Sender.post` sends in this transaction."""
        return TransactionalState(self.id)

    def outcome(self, outcome: Any = None) -> bytes:
        """Return the state for `Receiver.settle`: accepted, or the given outcome."""
        return TransactionalState(self.id, outcome or Accepted()).encode()


class Transactions:
    """A link to the peer's coordinator, made by `Connection.transactions`. It is a context manager."""

    def __init__(self, connection: Connection, timeout: float | None = None) -> None:
        coordinator = Coordinator(capabilities=["amqp:local-transactions"])
        self._coordinator = connection.sender(coordinator, timeout=timeout)

    def __enter__(self) -> Transactions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Detach; the peer rolls open transactions back."""
        self._coordinator.close()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Commit at the end of the block; roll back if the block raises."""
        opened = Transaction(self._coordinator.send(Message(value=Declare())).txn_id)
        try:
            yield opened
        except BaseException:
            with suppress(ClientError):  # the first failure is the reason
                self._coordinator.send(Message(value=Discharge(opened.id, fail=True)))
            raise
        self._coordinator.send(Message(value=Discharge(opened.id, fail=False)))
