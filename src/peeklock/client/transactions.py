"""Transactions: sends and settlements on one connection that happen together or not at all."""

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
    """One that is open. What is sent with `state=` and settled with `outcome` belongs to it."""

    def __init__(self, id: bytes) -> None:
        self.id = id

    @property
    def state(self) -> TransactionalState:
        """For `Sender.send` and `Sender.post`."""
        return TransactionalState(self.id)

    def outcome(self, outcome: Any = None) -> bytes:
        """For `Receiver.settle`: accepted, or the outcome that is given."""
        return TransactionalState(self.id, outcome or Accepted()).encode()


class Transactions:
    """A link to the peer's coordinator, made by `Connection.transactions`. A context manager."""

    def __init__(self, connection: Connection, timeout: float | None = None) -> None:
        coordinator = Coordinator(capabilities=["amqp:local-transactions"])
        self._coordinator = connection.sender(coordinator, timeout=timeout)

    def __enter__(self) -> Transactions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Detach; the peer rolls back what is open."""
        self._coordinator.close()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Committed at the end of the block; rolled back when something is raised in it."""
        opened = Transaction(self._coordinator.send(Message(value=Declare())).txn_id)
        try:
            yield opened
        except BaseException:
            with suppress(ClientError):  # what went wrong first is the reason
                self._coordinator.send(Message(value=Discharge(opened.id, fail=True)))
            raise
        self._coordinator.send(Message(value=Discharge(opened.id, fail=False)))
