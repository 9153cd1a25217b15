"""One connection as the broker sees it: which node stands at the end of each of its links, and what it may do.

Takes the events of an engine and leads them to the nodes. Sockets are the server's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from peeklock.amqp.errors import AmqpError, Condition, EncodeError
from peeklock.amqp.outcomes import Error
from peeklock.amqp.performatives import Open
from peeklock.broker.access import Claim, Claims
from peeklock.broker.accounts import MAX_HELD_BYTES, Account
from peeklock.broker.agenda import Appointment
from peeklock.broker.audit import DENIED, Audit
from peeklock.broker.errors import BrokerError, QuotaExceeded, Unauthorized
from peeklock.broker.namespace import Namespace
from peeklock.broker.transactions import Scope, Transactions
from peeklock.engine.connection import Connection
from peeklock.engine.deliveries import IncomingDelivery
from peeklock.engine.events import (
    ConnectionClosed,
    ConnectionOpened,
    ConnectionRefused,
    CreditChanged,
    LinkAttached,
    LinkDetached,
    OutgoingDisposed,
    SessionEnded,
    WindowOpened,
)
from peeklock.engine.links import Link, Sender
from peeklock.engine.session import Session
from peeklock.entities.names import fold
from peeklock.nodes.attaching import make_node, requested_address
from peeklock.nodes.capabilities import ClientKey, release_client_id, reserve_client_id
from peeklock.nodes.node import Node, error_of, rejected
from peeklock.nodes.turnstile import Turnstile

log = logging.getLogger(__name__)

MAX_LINKS: Final = 5000
MAX_UNAUTHENTICATED_LINKS: Final = 32
"""Links of a connection that has shown no token or key: enough for `$cbs`, and for attaches that will be refused."""
EXPIRY_GRACE_MS: Final = 10_000
"""How long links outlive their token: clients renew a little late."""


class Logins(Protocol):
    """Whether the address that a connection comes from may try to log in, which depends on how often it failed."""

    def check_login(self) -> None:
        """BrokerError when it may not."""
        ...

    def login_failed(self) -> None: ...


class Peer:
    """A connected client."""

    def __init__(
        self,
        connection: Connection,
        namespace: Namespace,
        name: str,
        wake: Callable[[], None],
        logins: Logins,
        audit: Audit,
    ) -> None:
        self.connection = connection
        self.namespace = namespace
        self.name = name
        """For the log: where it comes from."""
        self.wake = wake
        """There is something to write."""
        self.logins = logins
        self._audit = audit
        self.container_id = ""
        """As the client's open has it: the client id of JMS."""
        self.claims = Claims()
        self.transactions = Transactions(namespace.journal, namespace.agenda, namespace.transaction_memory)
        self.held = Account("Locked messages and answers", MAX_HELD_BYTES, namespace.held_memory, self._on_memory_freed)
        """What messages hold in memory that are lent to the client, and answers that it has not taken yet."""
        self.reads = Turnstile()
        self.unsaved_bytes = 0
        """Received and not yet durable: what the server keeps in bounds by not reading on."""
        self.busy: list[Node] = []
        """Nodes that want to hear when what was read at once is all handed over."""
        self._nodes: dict[Link, Node] = {}
        self._expiry: Appointment | None = None
        """When the first of the claims runs out, or the links that depend on it have had their grace."""
        self._soonest: int | None = None
        """The former, in Unix time, while it is waited for."""
        self.close_connection: Callable[[Error], None] = connection.close
        """End the connection and say why."""
        self.client_key: ClientKey | None = None
        """Under which no other connection may log in as long as this one lasts."""
        self._on_gone: dict[Link, list[Callable[[], None]]] = {}
        """What to do when a link is gone: an entity goes with it."""
        connection.check_open = self._check_open
        namespace.keys.watchers.add(self)

    @property
    def nodes(self) -> list[Node]:
        return list(self._nodes.values())

    def handle(self, events: list[Any]) -> None:
        """Lead events to where they belong, in order."""
        for event in events:
            kind = type(event)
            if kind is IncomingDelivery:
                node = event.link.node
                if node is not None:
                    try:
                        node.on_delivery(event)
                    except Exception as failure:
                        event.dispose(rejected(self.failed(failure, node)))
                        self.wake()
            elif kind is OutgoingDisposed:
                node = event.link.node
                if node is not None:
                    try:
                        node.on_disposed(event.deliveries, event.state, event.settled)
                    except Exception as failure:
                        outcome = rejected(self.failed(failure, node))
                        for delivery in event.deliveries:
                            delivery.settle(outcome)
                        self.wake()
            elif kind is CreditChanged:
                node = event.link.node
                if node is not None:
                    node.on_credit()
            else:
                self._end_turn()
                self._handle_rare(event)
        self._end_turn()

    def _end_turn(self) -> None:
        if self.busy:
            busy, self.busy = self.busy, []
            for node in busy:
                node.on_turn_ended()
        self.namespace.journal.hurry()

    def failed(self, failure: Exception, node: Node) -> BrokerError:
        """A failure as the client hears of it.

        A mistake of ours is logged whole and told without detail. At one message it is no reason to lose a connection.
        """
        if isinstance(failure, BrokerError):
            return failure
        fields = {"peer": self.name, "node": node.address.path}
        log.error("a message failed", exc_info=failure, extra={"fields": fields})
        return BrokerError("The broker failed at this; see its log.")

    def add_claim(self, claim: Claim) -> None:
        self._note_claim(claim)
        if claim.expires_at is not None and (
            self._expiry is None or (self._soonest is not None and claim.expires_at < self._soonest)
        ):
            self._expect_expiry()

    def audit(
        self, action: str, outcome: str, entity: str, *, client: str = "", count: int | None = None, reason: str = ""
    ) -> None:
        """Tell the audit log what this client did or was denied."""
        client = client or self.claims.key_names or self.container_id
        self._audit.record(
            action, outcome, connection=self.name, client=client, entity=entity, count=count, reason=reason
        )

    # --- rules that change ---

    def rules_changed(self, path: str) -> None:
        names = self.claims.revise(path, self.namespace.keys.current)
        if not names:
            return
        reason = f"The authorization rule '{names[0]}' was changed or removed."
        try:
            self._lose_rights(reason, names[0])
        except Exception:
            # Other connections have yet to be told, and this one must not keep a link.
            log.exception("links could not be detached", extra={"fields": {"peer": self.name}})
            self.close_connection(error_of(Unauthorized(reason)))

    def _lose_rights(self, reason: str, client: str) -> None:
        """Claims are gone: links that no other claim allows are detached, and a login by a key ends with its rule."""
        if self.connection.identity and not self.claims.has_lasting:
            error = error_of(Unauthorized(f"The login is no longer good: {reason}"))
            self._log("connection closed", error)
            self.audit("login", DENIED, "", client=client, reason=reason)
            self.close_connection(error)
            return
        # What is open could else be committed by a client that has no right to any of it.
        self.transactions.spoil_all(Unauthorized(reason))
        now = self.namespace.now() - EXPIRY_GRACE_MS
        for link, node in list(self._nodes.items()):
            try:
                node.check_rights(now)
            except Unauthorized as failure:
                if node.needs is not None:
                    self.audit(_action(link), DENIED, node.address.path, client=client, reason=reason)
                self.detach(link, Unauthorized(f"{failure} {reason}"))

    def scope(self, entity: str, link: Link) -> Scope:
        """Where work of that link comes from, for a transaction."""
        return Scope(fold(entity), link.session)

    def detach(self, link: Link, failure: BrokerError) -> None:
        """A link cannot stay: detach it and say why."""
        self.drop(link)
        link.detach(error_of(failure))
        self._log("link detached", error_of(failure), link=link.name)
        self.wake()

    def drop(self, link: Link) -> None:
        """The link is gone: forget its node."""
        node = self._nodes.pop(link, None)
        link.node = None
        if node is not None:
            node.stop_watching()
            node.on_closed()
            self._run_gone_actions(link)

    def on_writable(self) -> None:
        """There is room to write again."""
        for node in self.nodes:
            node.on_credit()

    def on_closed(self) -> None:
        """The connection is gone."""
        self.reads.close()
        self.namespace.keys.watchers.discard(self)
        if self._expiry is not None:
            self._expiry.cancel()
        for link in list(self._nodes):
            self.drop(link)
        release_client_id(self)

    def replace_node(self, link: Link, make: Callable[[], Node]) -> None:
        """What a link waited for is there: give it the node that it asked for."""
        waiting = self._nodes.pop(link, None)
        if waiting is not None:
            link.node = None
            waiting.stop_watching()
            self._add_node(link, make)

    def when_gone(self, link: Link, action: Callable[[], None]) -> None:
        """Do that when the link is gone, for whatever reason, or refused."""
        self._on_gone.setdefault(link, []).append(action)

    # --- inside ---

    def _check_open(self, opened: Open) -> Error | None:
        return reserve_client_id(self, opened)

    def _note_claim(self, claim: Claim) -> None:
        self.claims.add(claim)
        self.transactions.memory.join(claim.rule)
        self.held.join(claim.rule)

    def _on_memory_freed(self) -> None:
        """There is memory again for messages that are lent."""
        for node in self.nodes:
            node.on_credit()

    def _handle_rare(self, event: Any) -> None:
        if isinstance(event, LinkAttached):
            self._attach(event.link)
        elif isinstance(event, LinkDetached):
            self._log("link detached", event.error, link=event.link.name)
            node = self._nodes.get(event.link)
            if node is not None and event.closed:
                node.on_link_closed()
            self.drop(event.link)
        elif isinstance(event, SessionEnded):
            self._drop_session(event.session)
            if event.error is not None:
                self._log("session ended", event.error)
        elif isinstance(event, WindowOpened):
            for link, node in list(self._nodes.items()):
                if link.session is event.session:
                    node.on_credit()
        elif isinstance(event, ConnectionOpened):
            self._log_in(self.connection.identity or [])
            self.container_id = str(event.open.container_id)
            product = (event.open.properties or {}).get("product")
            self._log("connection opened", None, container=event.open.container_id, product=product)
        elif isinstance(event, ConnectionRefused):
            self._log("connection refused", event.error)
            self.close_connection(event.error)
        elif isinstance(event, ConnectionClosed):
            self._log("connection closed", event.error)
            self.on_closed()

    def _log_in(self, identity: list[Claim]) -> None:
        """Claims from the SASL exchange, as far as their rules are still there."""
        for claim in identity:
            current = self.namespace.keys.current(claim)
            if current is not None:
                self._note_claim(current)
        if identity and not self.claims.has_lasting:
            self._lose_rights("The authorization rule was changed or removed.", identity[0].key_name)

    def _attach(self, link: Link) -> None:
        def make() -> Node:
            if len(self._nodes) >= (MAX_LINKS if self.claims else MAX_UNAUTHENTICATED_LINKS):
                raise QuotaExceeded(f"The connection has {len(self._nodes)} links; no more are allowed.")
            return make_node(self, link)

        self._add_node(link, make)

    def _add_node(self, link: Link, make: Callable[[], Node]) -> None:
        try:
            node = make()
        except BrokerError as failure:
            link.refuse(error_of(failure))
            self._log("link refused", error_of(failure), link=link.name)
            if isinstance(failure, Unauthorized):
                self.audit(_action(link), DENIED, requested_address(link), reason=str(failure))
        except AmqpError as failure:
            # What cannot be encoded came with the attach, and should have been said back.
            wrong = Condition.INVALID_FIELD if isinstance(failure, EncodeError) else failure.condition
            link.refuse(Error(condition=wrong, description=failure.description))
        except Exception:
            # A mistake of ours at one link is no reason to lose the others.
            log.exception("a link failed", extra={"fields": {"peer": self.name, "link": link.name}})
            link.refuse(Error(condition=Condition.INTERNAL_ERROR, description="The broker failed; see its log."))
        else:
            link.node = node
            self._nodes[link] = node
            node.on_attached()
            self._log("link attached", None, link=link.name, address=node.address.path, node=type(node).__name__)
            node.on_credit()
        if link.node is None:
            self._run_gone_actions(link)
        self.wake()

    def _expect_expiry(self) -> None:
        """One appointment for all claims: it ends with the connection, however long they would last."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._soonest = soonest = self.claims.soonest_expiry
        if soonest is not None:
            agenda = self.namespace.agenda
            expected = agenda.monotonic() + soonest - agenda.now()
            self._expiry = agenda.at(soonest, lambda: self._wait_for_renewal(expected))

    def _wait_for_renewal(self, expected: int) -> None:
        """A token has run out. Its links have their grace, also if it ran out because the clock was set."""
        agenda = self.namespace.agenda
        late = agenda.monotonic() - expected
        self._soonest = None
        self._expiry = agenda.after(EXPIRY_GRACE_MS - (late if 0 <= late < EXPIRY_GRACE_MS else 0), self._check_claims)

    def _check_claims(self) -> None:
        """A token has run out: links that nothing else allows are detached."""
        for link, node in list(self._nodes.items()):
            if node.address.is_management:
                continue  # each request is checked, and the client may show a new token before the next
            try:
                node.check_rights(self.namespace.now())
            except Unauthorized as failure:
                self.detach(link, failure)
        self.claims.forget(self.namespace.now() - EXPIRY_GRACE_MS)
        self._expect_expiry()

    def _run_gone_actions(self, link: Link) -> None:
        for action in self._on_gone.pop(link, ()):
            action()

    def _drop_session(self, session: Session) -> None:
        for link in [link for link in self._nodes if link.session is session]:
            self.drop(link)

    def _log(self, what: str, error: Error | None, **fields: Any) -> None:
        if error is not None:
            fields |= {"condition": error.condition, "description": error.description}
        quiet = error is None or error.condition == Condition.CONNECTION_FORCED
        log.log(logging.INFO if quiet else logging.WARNING, what, extra={"fields": {"peer": self.name, **fields}})


def _action(link: Link) -> str:
    """What a client does on a link, for the audit log."""
    return "receive" if isinstance(link, Sender) else "send"
