"""Links on which a client browses messages without receiving them (distribution mode copy).

A browser gets the messages that a peek would return, in order of the sequence numbers. Nothing is locked, counted or
removed, and the client's outcomes change nothing. The node keeps a position, which is a sequence number, and reads
pages from the store only while it may send. So browsing does not slow down receivers, and an idle browser uses the
memory of one page at most.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from peeklock.amqp.outcomes import Received
from peeklock.amqp.termini import Source
from peeklock.broker.errors import BrokerError, OperationNotAllowed
from peeklock.broker.heads import head
from peeklock.broker.session_queue import AnyQueue
from peeklock.broker.window_budget import OBJECT_BYTES, memory_cost
from peeklock.engine.deliveries import OutgoingDelivery
from peeklock.engine.links import Sender
from peeklock.entities.authorization import Right
from peeklock.nodes.addresses import Address
from peeklock.nodes.filters import (
    COPY,
    FIRST_NUMBER_FILTER,
    SESSION_FILTER,
    Filters,
    first_number_of,
    in_force,
    session_id_of,
)
from peeklock.nodes.node import Node
from peeklock.nodes.read_slot import Leave
from peeklock.nodes.settling import ACCEPTED, ECHOES
from peeklock.store.base import StoredMessage

if TYPE_CHECKING:
    from peeklock.nodes.peer import Peer

PAGE_MESSAGES: Final = 256
PAGE_BYTES: Final = 256 * 1024
PAGE_WORK: Final = 256
"""The most work for a selector in one turn of the loop: the number of messages times the cost of the selector."""
UNSETTLED: Final = 0
"""The snd-settle-mode of a client that settles all messages itself."""


class BrowsingNode(Node):
    """Sends copies of the messages of a queue, subscription or sub-queue."""

    needs: Right | None = Right.LISTEN

    def __init__(self, peer: Peer, address: Address, link: Sender, queue: AnyQueue, filters: Filters) -> None:
        super().__init__(peer, address)
        queue.check_receiving()
        if filters.asks_session and not queue.has_sessions:
            raise OperationNotAllowed(f"The entity '{queue.path}' has no sessions; browse without a session filter.")
        self._link = link
        self._queue = queue
        self._held = peer.held
        self._pace = peer.namespace.pace
        self._session_id = session_id_of(filters)
        self._selector = filters.selector
        self._position = first_number_of(filters) - 1
        """All messages up to this number were sent, or do not match."""
        self._page: deque[StoredMessage] = deque()
        self._page_end = 0
        """The number up to which the page was read."""
        self._is_counted = False
        """Whether the account of the connection includes the page, which waits for credit."""
        self._is_reading = False
        self._arrived = False
        """Whether a message arrived after the page was requested. The page may not have it."""
        self._is_at_end = False
        self._is_closed = False
        self._unsettled = 0
        """The number of deliveries that the client has not settled."""
        attach = link.remote
        assert attach is not None
        assert isinstance(attach.source, Source)
        self._settles = attach.snd_settle_mode != UNSETTLED
        keys = [filters.selector_key] if filters.selector is not None else []
        keys += [SESSION_FILTER] if self._session_id is not None else []
        keys += [FIRST_NUMBER_FILTER] if filters.first_number is not None else []
        self.depend_on(link, queue)
        link.accept(source=in_force(attach.source, *keys, mode=COPY))

    def on_entity_changed(self) -> None:
        try:
            self._queue.check_receiving()
        except BrokerError as failure:
            self.on_entity_deleted(failure)

    def on_credit(self) -> None:
        if self._is_closed:
            return
        self._send_page()
        link = self._link
        if self._is_reading:
            return
        may_send = self._may_send()
        if link.credit <= 0 or self._is_at_end or (link.ready() and not may_send):
            self._answer_drain()
        elif may_send:
            self._read()

    def on_arrival(self) -> None:
        """A message arrived after `await_arrival`."""
        if self._is_reading:
            self._arrived = True
        elif self._is_at_end:
            self._is_at_end = False
            self.on_credit()

    def on_disposed(self, deliveries: list[OutgoingDelivery], state: Any, settled: bool) -> None:
        if not settled and (state is None or isinstance(state, Received)):
            return  # not an outcome
        for delivery in deliveries:
            if delivery.context is self:
                delivery.context = None
                self._unsettled -= 1
                self._held.release(OBJECT_BYTES)
                delivery.settle(ECHOES.get(type(state), ACCEPTED))
        self.on_credit()
        self.peer.wake()

    def on_closed(self) -> None:
        self._is_closed = True
        self._queue.browsers.remove(self)
        self._drop_page()
        self._held.release(self._unsettled * OBJECT_BYTES)
        self._unsettled = 0

    # --- inside ---

    def _may_send(self) -> bool:
        # With a full account, stop only if the client can make room by settling.
        return self._link.ready() and not (self._held.is_full and self._unsettled)

    def _send_page(self) -> None:
        page = self._page
        while page and self._may_send():
            message = page.popleft()
            self._position = message.sequence_number if page else self._page_end
            self._send(message)
            if self._is_counted:
                self._held.release(memory_cost(message))  # may call this method again

    def _send(self, message: StoredMessage) -> None:
        link = self._link
        parts = [head(message, None, with_state=True, is_copy=self._queue.holds_copies), message.payload]
        if message.body is not None:
            parts.append(message.body.data)
        tag = message.sequence_number.to_bytes(16)
        if self._settles:
            link.send(tag, parts, settled=True)
        else:
            link.send(tag, parts, context=self)
            self._unsettled += 1
            self._held.take(OBJECT_BYTES)
        self.peer.wake()

    def _answer_drain(self) -> None:
        if self._link.drain and self._link.attached:
            self._link.finish_drain()
            self._link.drain = False
            self.peer.wake()

    def _read(self) -> None:
        self._is_reading = True
        self.peer.reads.enter(self._ask, self._failed)

    def _ask(self, leave: Leave) -> None:
        if self._is_closed:
            leave()
            return
        if self._selector is not None and self._pace.is_resting:
            self._pace.when_rested(partial(self._ask, leave))
            return
        # Before the read, because the page may not have messages that arrive during the read.
        self._arrived = False
        self._queue.browsers.add(self)
        cost = 0 if self._selector is None else self._selector.cost
        wanted = max(1, PAGE_WORK // cost if cost else min(PAGE_MESSAGES, self._link.credit))
        if self._held.is_full:
            wanted = 1
        found = partial(self._found, leave)
        self._queue.peek(self._position + 1, wanted, self._session_id, found, PAGE_BYTES // max(1, cost))

    def _found(self, leave: Leave, messages: list[StoredMessage] | BrokerError) -> None:
        self._is_reading = False
        if self._is_closed:
            pass
        elif isinstance(messages, BrokerError):
            self._failed(messages)
        elif messages:
            self._queue.browsers.remove(self)
            self._take_page(messages)
        else:
            self._is_at_end = not self._arrived
        leave()
        self._queue.browsers.call_soon(self.on_credit)  # in another turn, so that other work is done in between

    def _take_page(self, messages: list[StoredMessage]) -> None:
        selector = self._selector
        self._page_end = messages[-1].sequence_number
        if selector is not None:
            started = self.peer.namespace.agenda.monotonic()
            messages = [message for message in messages if selector.matches(message)]
            self._pace.worked(started)
        if not messages:
            self._position = self._page_end
        self._is_counted = False
        self._page.extend(messages)
        self._send_page()
        if self._held.is_full:
            self._page.clear()  # the rest of the page is read again later
        elif self._page:
            self._is_counted = True
            self._held.take(sum(map(memory_cost, self._page)))

    def _drop_page(self) -> None:
        page, self._page = self._page, deque()
        if self._is_counted:
            self._held.release(sum(map(memory_cost, page)))

    def _failed(self, failure: BrokerError) -> None:
        self._is_reading = False
        self.on_entity_deleted(failure)
