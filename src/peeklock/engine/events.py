"""The events that `Connection.receive` and `tick` return, in the order in which they happened.

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
    """The peer's open arrived and `check_open` refused it. Our open announces that, and the owner must close."""

    error: Error


@dataclass(frozen=True, slots=True)
class ConnectionClosed:
    """The connection has ended: the peer closed it, or this side did because of an error of the peer.

    In the second case, `error` is the one that this side has sent.
    """

    error: Error | None


@dataclass(frozen=True, slots=True)
class SessionBegun:
    session: Session


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session has ended, and all its links are detached."""

    session: Session
    error: Error | None


@dataclass(frozen=True, slots=True)
class LinkAttached:
    """The peer's attach arrived. If the peer attached first, answer it with `link.accept` or `link.refuse`."""

    link: Link


@dataclass(frozen=True, slots=True)
class LinkDetached:
    link: Link
    error: Error | None
    closed: bool = False
    """Whether the peer closed the link (2.6.6) instead of suspending it."""


@dataclass(frozen=True, slots=True)
class CreditChanged:
    """A flow arrived for a link on which we send. Its `credit` and `drain` are updated."""

    link: Sender


@dataclass(frozen=True, slots=True)
class OutgoingDisposed:
    """The receiver sent a state for these deliveries of one link, or settled them."""

    link: Sender
    deliveries: list[OutgoingDelivery]
    state: Any
    settled: bool


@dataclass(frozen=True, slots=True)
class IncomingDisposed:
    """The sender sent a state for these deliveries of one link, or settled them."""

    link: Receiver
    deliveries: list[IncomingDelivery]
    state: Any
    settled: bool


@dataclass(frozen=True, slots=True)
class WindowOpened:
    """The peer's session window was closed and is open again."""

    session: Session
