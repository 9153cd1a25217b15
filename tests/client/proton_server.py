"""A tiny queue broker on qpid-proton's Python container, in a thread: a server that we did not write.

An address is a queue; `missing` is refused; a message with the body `reject` is rejected.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from typing import Any

from proton import Condition, Delivery, Endpoint, Link, Message
from proton.handlers import MessagingHandler
from proton.reactor import ApplicationEvent, Container, EventInjector


class ProtonServer(MessagingHandler):
    """Listens on a free port of the loopback until `stop`."""

    def __init__(self) -> None:
        super().__init__(prefetch=100, auto_accept=False, auto_settle=False)
        self.queues: dict[str, deque[Any]] = defaultdict(deque)
        self.rejected: list[Any] = []
        self.outcomes: list[str] = []
        self.port = 0
        self._senders: dict[str, list[Any]] = defaultdict(list)
        self._held: dict[Any, tuple[str, Any]] = {}
        self._tags = 0
        self._started = threading.Event()
        self._injector = EventInjector()
        self._container = Container(self)
        self._container.container_id = "proton-server"
        self._container.selectable(self._injector)
        self._thread = threading.Thread(target=self._container.run, name="proton-server")
        self._thread.start()
        assert self._started.wait(10)

    @property
    def url(self) -> str:
        return f"amqp://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._injector.trigger(ApplicationEvent("stop_all"))
        self._thread.join(10)
        assert not self._thread.is_alive()

    # --- proton's events ---

    def on_start(self, event: Any) -> None:
        self._acceptor = event.container.listen("127.0.0.1:0")
        self.port = self._acceptor._selectable._delegate.getsockname()[1]
        self._started.set()

    def on_stop_all(self, event: Any) -> None:
        self._injector.close()
        self._container.stop()

    def on_link_opening(self, event: Any) -> None:
        link = event.link
        address = link.remote_source.address if link.is_sender else link.remote_target.address
        if address == "missing":
            link.condition = Condition("amqp:not-found", "no queue 'missing'")
            return
        if link.is_sender:
            if link.remote_source.dynamic:
                address = f"dynamic-{id(link)}"
            link.source.address = address
            self._senders[address].append(link)
        else:
            link.target.address = address
        link.snd_settle_mode = link.remote_snd_settle_mode
        link.rcv_settle_mode = link.remote_rcv_settle_mode

    def on_link_local_open(self, event: Any) -> None:
        if event.link.condition is not None:
            event.link.close()

    def on_link_flow(self, event: Any) -> None:
        if event.link.is_sender and event.link.state & Endpoint.LOCAL_ACTIVE:
            self._deliver(event.link)
            event.link.drained()

    def on_link_closed(self, event: Any) -> None:
        for links in self._senders.values():
            if event.link in links:
                links.remove(event.link)

    def on_message(self, event: Any) -> None:
        message, delivery = event.message, event.delivery
        if message.body == b"reject":
            delivery.local.condition = Condition("test:unwanted", "not this one")
            delivery.update(Delivery.REJECTED)
            delivery.settle()
            return
        if not delivery.settled:
            delivery.update(Delivery.ACCEPTED)
            delivery.settle()
        address = event.link.target.address
        if address == "echo":
            answer = Message(body=message.body, correlation_id=message.id, address=message.reply_to)
            self.queues[message.reply_to].append(answer)
            address = message.reply_to
        else:
            self.queues[address].append(message)
        for link in self._senders[address]:
            self._deliver(link)

    def on_delivery(self, event: Any) -> None:
        delivery = event.delivery
        if event.link.is_sender and delivery.updated and delivery.tag in self._held:
            self._on_outcome(delivery)

    # --- queues ---

    def _deliver(self, link: Any) -> None:
        queue = self.queues[link.source.address]
        while queue and link.credit > 0:
            message = queue.popleft()
            self._tags += 1
            delivery = link.send(message, tag=f"tag-{self._tags:011}!")
            if link.snd_settle_mode == Link.SND_SETTLED:
                delivery.settle()
            else:
                self._held[delivery.tag] = (link.source.address, message)

    def _on_outcome(self, delivery: Any) -> None:
        if not delivery.remote_state:
            return
        address, message = self._held.pop(delivery.tag)
        state = delivery.remote_state
        self.outcomes.append(str(state))
        if state == Delivery.RELEASED:
            self.queues[address].append(message)
        elif state == Delivery.MODIFIED:
            message.delivery_count += 1
            self.queues[address].append(message)
        elif state == Delivery.REJECTED:
            condition = delivery.remote.condition
            self.rejected.append((bytes(message.body), condition and (condition.name, condition.description)))
        delivery.update(state)
        delivery.settle()
        for link in self._senders[address]:
            self._deliver(link)
