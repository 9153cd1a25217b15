"""The base of the client's senders and receivers: attaching and detaching a link."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

from peeklock.amqp.outcomes import Error
from peeklock.amqp.performatives import Attach
from peeklock.client.errors import ClientError, LinkClosed, from_error
from peeklock.engine.deliveries import IncomingDelivery
from peeklock.engine.events import IncomingDisposed, OutgoingDisposed
from peeklock.engine.links import Link

if TYPE_CHECKING:
    from peeklock.client.connection import Connection

L = TypeVar("L", bound="ClientLink")


class ClientLink:
    """A link of a connection. A context manager."""

    def __init__(self, connection: Connection, link: Link) -> None:
        self.connection = connection
        self._link = link
        self._answered = False
        self._failure: ClientError | None = None
        link.node = self

    def __enter__(self: L) -> L:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        return self._link.name

    @property
    def closed(self) -> bool:
        return self._failure is not None or not self.connection.is_open

    @property
    def remote(self) -> Attach | None:
        """The properties of the peer's attach."""
        return self._link.remote

    def close(self) -> None:
        """Detach, without waiting for the answer."""
        if self._failure is None:
            self._failure = LinkClosed("amqp:link:detach-forced", "the link was closed here")
            self._link.detach()
            if self.connection.is_open:
                self.connection.flush()

    def check(self) -> None:
        """Raise the failure if the link or its connection has ended."""
        self.connection.check()
        if self._failure is not None:
            raise self._failure

    def on_attached(self) -> None:
        remote = self._link.remote
        assert remote is not None
        # Without its terminus the link was refused: the reason follows in a detach (2.6.3).
        self._answered = (remote.target if self._link.is_sender else remote.source) is not None

    def on_detached(self, error: Error | None) -> None:
        if self._failure is None:
            self._failure = from_error(LinkClosed, error, f"the peer closed the link '{self.name}'")

    def on_delivery(self, delivery: IncomingDelivery) -> None:
        """A message arrived; receivers override this."""

    def on_outcome(self, event: OutgoingDisposed) -> None:
        """The peer settled sent messages; senders override this."""

    def on_confirmed(self, event: IncomingDisposed) -> None:
        """The peer confirmed settlements; receivers override this."""

    def _attach(self, attach: Attach, what: str, timeout: float) -> None:
        self._link.attach(attach)
        self.wait_for(lambda: self._answered, timeout, f"the answer to the attach of {what}")
        self.check()  # some peers refuse with a terminus in the attach, followed by a detach

    def wait_for(self, done: Callable[[], bool], timeout: float | None, what: str) -> None:
        """Serve the connection until `done`. Raise the failure if the link ends first."""
        self.connection.wait(lambda: self._failure is not None or done(), timeout, what)
        if self._failure is not None and not done():
            raise self._failure
