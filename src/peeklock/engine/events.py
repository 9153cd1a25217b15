"""What an engine tells its owner: the events that `Connection.receive` returns, in the order in which they happened.

A received delivery is its own event (`deliveries.IncomingDelivery`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from peeklock.amqp.performatives import Error, Open

if TYPE_CHECKING:
    from peeklock.engine.deliveries import IncomingDelivery, OutgoingDelivery
    from peeklock.engine.links import Link, Receiver, Sender
    from peeklock.engine.session import Session


@dataclass(frozen=True, slots=True)
class ConnectionOpened:
    """The peer's open arrived."""

    open: Open


@dataclass(frozen=True, slots=True)
class ConnectionRefused:
    """The peer's open arrived and `check_open` refused it: our open says so, and the owner must close."""

    error: Error


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The connection is over: closed by the peer, or for what the peer did (`error` is then ours)."""

    error: Error | None


@dataclass(frozen=True, slots=True)
class SessionBegun:
    session: Session


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session and all its links are gone."""

    session: Session
    error: Error | None


@dataclass(frozen=True, slots=True)
class LinkAttached:
    """The peer's attach arrived; if it came first, `link.accept` or `link.refuse` answers it."""

    link: Link


@dataclass(frozen=True, slots=True)
class LinkDetached:
    link: Link
    error: Error | None
    closed: bool = False
    """The peer closed it (2.6.6), and did not only suspend it."""


@dataclass(frozen=True, slots=True)
class CreditChanged:
    """A flow for a link we send on: its `credit` and `drain` are new."""

    link: Sender


@dataclass(frozen=True, slots=True)
class OutgoingDisposed:
    """The receiver gave these deliveries of one link a state, or settled them."""

    link: Sender
    deliveries: list[OutgoingDelivery]
    state: Any
    settled: bool


@dataclass(frozen=True, slots=True)
class IncomingDisposed:
    """The sender gave these deliveries of one link a state, or settled them."""

    link: Receiver
    deliveries: list[IncomingDelivery]
    state: Any
    settled: bool


@dataclass(frozen=True, slots=True)
class WindowOpened:
    """The peer's session window was shut and is open again."""

    session: Session
