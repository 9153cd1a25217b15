"""Links on which a client receives one session: a session by its id, or the next free session."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.errors import EncodeError
from peeklock.amqp.termini import Source
from peeklock.amqp.types import Described, Symbol
from peeklock.broker.errors import BrokerError, InvalidProperty
from peeklock.broker.session import Session, Waiter
from peeklock.broker.session_queue import AnyQueue, SessionQueue
from peeklock.engine.links import Sender
from peeklock.limits.amqp import MAX_SESSION_WAIT_MS
from peeklock.nodes.addresses import Address
from peeklock.nodes.filters import SESSION_FILTER, Filters, in_force, session_id_of
from peeklock.nodes.node import error_of
from peeklock.nodes.receiving import Receiving

if TYPE_CHECKING:
    from peeklock.nodes.peer import Peer

LOCKED_UNTIL: Final = "com.microsoft:locked-until-utc"
TIME_OUT: Final = "com.microsoft:timeout"
DEFAULT_WAIT_MS: Final = 60_000
TICKS_AT_EPOCH: Final = 621_355_968_000_000_000
"""The start of 1970 in .NET ticks, which are units of 100 ns since the start of the year 1."""


class SessionReceivingNode(Receiving):
    """Holds a session for a client. The attach is answered when the session is locked."""

    def __init__(self, peer: Peer, address: Address, link: Sender, queue: SessionQueue, filters: Filters) -> None:
        super().__init__(peer, address, link, queue)
        self._queue = queue
        self.session: Session | None = None
        self._waiter: Waiter | None = None
        assert link.remote is not None
        assert isinstance(link.remote.source, Source)
        self._source = link.remote.source
        self.selector = filters.selector
        self._selector_key = filters.selector_key
        id = session_id_of(filters)
        if id is None:
            self._waiter = queue.sessions.accept_next(self, _time_to_wait(link.remote.properties), self._accepted)
        else:
            self._waiter = queue.sessions.accept_when_settled(id, self, self._accepted)

    def _accepted(self, outcome: Session | BrokerError) -> None:
        self._waiter = None
        if not isinstance(outcome, BrokerError):
            try:
                self._answer(outcome)
            except EncodeError as error:
                self._queue.sessions.close_session(outcome, self)
                outcome = InvalidProperty(
                    f"The filters of the attach cannot be repeated in its answer: {error.description}."
                )
        if isinstance(outcome, BrokerError):
            self._link.refuse(error_of(outcome))
            self.peer.drop(self._link)
            self.peer.wake()
            return
        self.session = outcome
        self.on_credit()
        self.peer.wake()

    def _answer(self, session: Session) -> None:
        # In the form of the request, because some clients read only a plain string, and one only a described string.
        id: Any = session.id
        asked = self._source.filter or {}
        if isinstance(asked[SESSION_FILTER], Described):
            id = Described(asked[SESSION_FILTER].descriptor, id)
        answered = {Symbol(SESSION_FILTER): id}
        if self.selector is not None:
            answered[self._selector_key] = asked[self._selector_key]
        self._link.accept(
            source=replace(in_force(self._source), filter=answered),
            properties={Symbol(LOCKED_UNTIL): TICKS_AT_EPOCH + session.locked_until * 10_000},
        )

    def is_of(self, peer: Peer, link_name: str | None) -> bool:
        """Return whether this link sent a request: it is on the same connection, and names this link or no link."""
        return self.peer is peer and link_name in (None, self._link.name)

    def session_of(self, queue: AnyQueue, link_name: str) -> Session | None:
        """Return the session that this link holds; None if its name or queue are different."""
        return self.session if self._queue is queue and self._link.name == link_name else None

    def on_session_lost(self, failure: BrokerError) -> None:
        self.session = None
        self._link.detach(error_of(failure))
        self.peer.drop(self._link)
        self.peer.wake()

    def on_credit(self) -> None:
        if self.session is None:
            return
        if self._link.credit > 0:
            self._queue.want(self.session)
        else:
            self.on_starved()

    def on_closed(self) -> None:
        if self._waiter is not None:
            self._queue.sessions.stop_waiting(self._waiter)
        if self.session is not None:
            self._queue.sessions.close_session(self.session, self)


def _time_to_wait(properties: dict[Any, Any] | None) -> int:
    asked = (properties or {}).get(TIME_OUT)
    if isinstance(asked, int) and not isinstance(asked, bool) and asked >= 0:
        return min(int(asked), MAX_SESSION_WAIT_MS)
    return DEFAULT_WAIT_MS
