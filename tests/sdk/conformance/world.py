"""The argument of a scenario: its broker, with a clock that can be moved, and clients of the SDK."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from happenings import cut_connections

from conformance.clients import Administrator, Bus
from conformance.program import Program
from peeklock.broker.agenda import system_clock
from peeklock.broker.queue import Queue
from peeklock.broker.session_queue import SessionQueue
from peeklock.entities.authorization import DEFAULT_KEY, AuthorizationRule, Right, default_authorization_rule
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.rules import CorrelationFilter, FilterKind, RuleDefinition
from peeklock.entities.settings import Status
from peeklock.server.http import WebSocketTransport
from peeklock.server.shell import Shell
from peeklock.store.base import Counters
from serving import BrokerThread, ServedBroker
from tools.suites.standard_ports import FURTHER_PORTS, PORT

ROOT = "RootManageSharedAccessKey"
MINUTE = 60_000


def _sql(name: str, expression: str, action: str | None = None) -> RuleDefinition:
    return RuleDefinition(name=name, filter_kind=FilterKind.SQL, sql_expression=expression, action=action)


def _subject(name: str, text: str) -> RuleDefinition:
    return RuleDefinition(name=name, filter_kind=FilterKind.CORRELATION, correlation=CorrelationFilter(label=text))


def _key(name: str, *rights: Right) -> AuthorizationRule:
    return AuthorizationRule(name=name, primary_key=f"{name}-key", rights=frozenset(rights))


NAMESPACE = NamespaceDefinition(
    authorization_rules=(default_authorization_rule(), _key("sender", Right.SEND), _key("listener", Right.LISTEN)),
    queues=(
        QueueDefinition(name="queue", max_delivery_count=3, lock_duration_ms=MINUTE),
        QueueDefinition(name="other", lock_duration_ms=MINUTE),
        QueueDefinition(name="brief-lock", lock_duration_ms=5_000),
        QueueDefinition(name="sessions", requires_session=True, lock_duration_ms=MINUTE),
        QueueDefinition(name="first", forward_to="second"),
        QueueDefinition(name="second", forward_to="other"),
        QueueDefinition(name="letters", forward_dead_lettered_messages_to="other"),
        QueueDefinition(name="astray", forward_to="sessions"),
        QueueDefinition(name="unique", requires_duplicate_detection=True, duplicate_detection_window_ms=MINUTE),
        QueueDefinition(name="brief", default_message_ttl_ms=10_000, dead_lettering_on_message_expiration=True),
        QueueDefinition(name="closed", status=Status.DISABLED),
        QueueDefinition(name="no-sending", status=Status.SEND_DISABLED),
        QueueDefinition(name="no-receiving", status=Status.RECEIVE_DISABLED),
    ),
    topics=(
        TopicDefinition(
            name="topic",
            subscriptions=(
                SubscriptionDefinition(name="all", lock_duration_ms=MINUTE),
                SubscriptionDefinition(name="red", rules=(_sql("red", "color = 'red'"),)),
                SubscriptionDefinition(name="orders", rules=(_subject("orders", "order"),)),
                SubscriptionDefinition(
                    name="big", rules=(_sql("mark", "amount > 10", "SET mark = 'big'; REMOVE secret"),)
                ),
            ),
        ),
        TopicDefinition(
            name="quiet", subscriptions=(SubscriptionDefinition(name="red", rules=(_sql("red", "color = 'red'"),)),)
        ),
        TopicDefinition(name="talks", subscriptions=(SubscriptionDefinition(name="all", requires_session=True),)),
        TopicDefinition(name="relay", subscriptions=(SubscriptionDefinition(name="onward", forward_to="other"),)),
        TopicDefinition(
            name="news",
            requires_duplicate_detection=True,
            duplicate_detection_window_ms=MINUTE,
            subscriptions=(SubscriptionDefinition(name="all"),),
        ),
    ),
)
"""The entities that each scenario finds."""


COARSER = {
    ("go", "message-not-found"): "not-found",
    ("go", "session-lock-lost"): "lock-lost",
    ("python", "no-entity"): "unauthorized",
    ("python-aio", "no-entity"): "unauthorized",
}
"""Errors for which an SDK has no code. `no-entity`: the token for a missing queue or topic is refused."""


class World:
    def __init__(self, sdk: str, program: Program, address: str, authority: Path, folder: Path) -> None:
        self.sdk = sdk
        self._program = program
        self._address = address
        self._authority = authority
        self._folder = folder
        self._broker: BrokerThread | None = None
        self._served: ServedBroker | None = None

    # --- the broker ---

    @property
    def broker(self) -> BrokerThread:
        """The broker in memory with a clock that the scenario moves; started at the first access."""
        if self._broker is None:
            self._start({})
        assert self._broker is not None
        return self._broker

    def _be_ready(self) -> None:
        if self._broker is None and self._served is None:
            self._start({})

    def in_real_time(self) -> None:
        """Start the broker with the real clock."""
        self._start({"clock": system_clock})

    def _start(self, options: Mapping[str, Any]) -> None:
        self._broker = BrokerThread(
            namespace=NAMESPACE,
            host=self._address,
            port=PORT,
            further_ports=FURTHER_PORTS,
            tls_folder=self._authority.parents[1],
            **options,
        )

    def in_a_process(self) -> ServedBroker:
        """Start a broker on disk in a separate process that can be killed, with the default namespace."""
        arguments = ("--host", self._address, "--port", str(PORT))
        self._served = ServedBroker(self._folder, *arguments)
        return self._served

    def stop(self) -> None:
        if self._broker is not None:
            self._broker.stop()
        if self._served is not None:
            self._served.stop()

    def advance(self, seconds: float) -> None:
        self.broker.advance(seconds)

    def now(self, minutes: float = 0) -> int:
        """Return the broker's time, plus that many minutes."""
        return self.broker.clock() + round(minutes * MINUTE)

    def counters(self, path: str = "queue") -> Counters:
        return self.broker.counters(path)

    def active(self, path: str = "queue") -> int:
        return self.counters(path).active

    def until(self, condition: Callable[[], bool], what: str, patience: float = 30) -> None:
        """Wait until the condition is true, at most that many seconds."""
        deadline = time.monotonic() + patience
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"it did not happen: {what}")
            time.sleep(0.02)

    def cut(self) -> None:
        """Break the connections of all clients."""
        cut_connections(self.broker)

    def let_it_be_noticed(self) -> None:
        """That a link or a connection has ended.

        One SDK waits for ever for the answer to what it sends before it has read that; nothing shows when it has.
        """
        time.sleep(3)

    def connections(self) -> set[Shell]:
        """Return the AMQP connections."""
        return self.broker.call(lambda: set(self.broker.broker.shells))

    def ways(self) -> set[tuple[str, int]]:
        """Return the transports and ports of the AMQP connections."""
        return self.broker.call(lambda: {_way(shell._transport) for shell in self.broker.broker.shells})

    def receivers_that_wait(self, path: str = "queue") -> int:
        """Return how many receivers have credit."""
        return self.broker.call(lambda: len(self._queue(path)._queued))

    def locked(self, path: str = "queue") -> int:
        return self.broker.call(lambda: len(self._queue(path).locks.by_number))

    def _queue(self, path: str) -> Queue:
        queue = self.broker.broker.namespace.queue(path)
        assert isinstance(queue, Queue)
        return queue

    def await_session_waiter(self) -> None:
        queue = self.broker.broker.namespace.queue("sessions")
        assert isinstance(queue, SessionQueue)
        self.until(
            lambda: self.broker.call(lambda: queue.sessions.waiting) > 0, "a receiver waits for the next session"
        )

    def kind(self, kind: str) -> str:
        """Return the kind of an error, as far as this SDK distinguishes it."""
        return COARSER.get((self.sdk, kind), "not-found" if kind == "no-entity" else kind)

    # --- clients ---

    def connect(
        self,
        *,
        transport: Literal["plain", "tls", "websocket"] = "plain",
        key: tuple[str, str] | None = None,
        signature: str | None = None,
        retries: int = 0,
        across: bool = False,
    ) -> Bus:
        """Make a client of the SDK. By default it does not retry, so that expected errors are immediate."""
        self._be_ready()
        return Bus(
            self._program,
            connection=self._connection(key, signature, emulator=transport == "plain"),
            transport=transport,
            retries=retries,
            across=across,
            trust=str(self._authority),
        )

    def administer(self, key: tuple[str, str] | None = None) -> Administrator:
        self._be_ready()
        connection = self._connection(key, None, emulator=False)
        return Administrator(self._program, connection=connection, trust=str(self._authority))

    def _connection(self, key: tuple[str, str] | None, signature: str | None, *, emulator: bool) -> str:
        name, secret = key or (ROOT, DEFAULT_KEY)
        proof = f"SharedAccessKeyName={name};SharedAccessKey={secret}"
        if signature is not None:
            proof = f"SharedAccessSignature={signature}"
        return f"Endpoint=sb://{self._address};{proof}" + (";UseDevelopmentEmulator=true" if emulator else "")

    def signature(self, entity: str = "", *, minutes: float = 60) -> str:
        """Return a token for an entity, or for all, with that validity."""
        scope = quote(f"sb://{self._address}/{entity}", safe="")
        expiry = self.now(minutes) // 1000
        digest = hmac.digest(DEFAULT_KEY.encode(), f"{scope}\n{expiry}".encode(), hashlib.sha256)
        proof = quote(base64.b64encode(digest), safe="")
        return f"SharedAccessSignature sr={scope}&sig={proof}&se={expiry}&skn={ROOT}"


def _way(transport: Any) -> tuple[str, int]:
    below: Any = transport._request.transport if isinstance(transport, WebSocketTransport) else transport
    port: int = below.get_extra_info("sockname")[1]
    if below is not transport:
        return "websocket", port
    return "plain" if below.get_extra_info("sslcontext") is None else "tls", port
