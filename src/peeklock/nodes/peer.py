"""The broker's side of one connection: its grants, and the node of each of its links.

It dispatches the events of the engine to the nodes. The server owns the sockets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, Protocol

from peeklock.amqp.errors import AmqpError, Condition, EncodeError
from peeklock.amqp.outcomes import Error
from peeklock.amqp.performatives import Open
from peeklock.broker.access import Grant, Grants
from peeklock.broker.accounts import Account
from peeklock.broker.agenda import Appointment
from peeklock.broker.audit import DENIED, Audit, AuditEvent
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
from peeklock.limits.amqp import MAX_LINKS, MAX_PARTIAL_BYTES, MAX_UNAUTHENTICATED_LINKS
from peeklock.limits.broker import MAX_HELD_BYTES
from peeklock.nodes.attaching import make_node, requested_address
from peeklock.nodes.capabilities import ClientKey, release_client_id, reserve_client_id
from peeklock.nodes.node import Node, error_of, rejected
from peeklock.nodes.read_slot import ReadSlot
from peeklock.nodes.unwritten import Unwritten

log = logging.getLogger(__name__)

EXPIRY_GRACE_MS: Final = 10_000
"""The time that links stay attached after their token has expired, because clients renew tokens a little late."""


class Logins(Protocol):
    """Limits attempts to log in, by the address of the client."""

    def check_login(self) -> None:
        """Raise BrokerError if too many attempts have failed."""
        ...

    def login_failed(self) -> None: ...


class Peer:
    """A connected client."""

    def __init__(
        self,
        connection: Connection,
        namespace: Namespace,
        *,
        name: str,
        wake: Callable[[], None],
        logins: Logins,
        audit: Audit,
    ) -> None:
        self.connection = connection
        self.namespace = namespace
        self.name = name
        """The remote address, for the log."""
        self.wake = wake
        """Called when the connection has output to write."""
        self.logins = logins
        self._audit = audit
        self.container_id = ""
        """The container-id of the client's open: the client id of JMS."""
        self.grants = Grants()
        self.transactions = Transactions(namespace.journal, namespace.agenda, namespace.transaction_memory)
        self.held = Account("Locked messages and answers", MAX_HELD_BYTES, namespace.held_memory, self._on_memory_freed)
        """The memory of messages that are locked for the client, and of answers that await credit."""
        self.unwritten = Unwritten(self.held, self._on_memory_freed)
        connection.partial_memory = self._partial = Account(
            "Incomplete messages", MAX_PARTIAL_BYTES, namespace.partial_memory
        )
        self.reads = ReadSlot()
        self.unsaved_bytes = 0
        """Bytes that were received and are not durable yet. The server throttles reading by this number."""
        self.busy: list[Node] = []
        """Nodes whose `on_turn_ended` is called after all events of one read."""
        self._nodes: dict[Link, Node] = {}
        self._expiry: Appointment | None = None
        """The appointment for the first expiry of a grant, or for the end of the grace of links that depend on it."""
        self._soonest: int | None = None
        """The first expiry of a grant, in Unix time; None during the grace."""
        self.close_connection: Callable[[Error], None] = connection.close
        """Closes the connection with an error."""
        self.client_key: ClientKey | None = None
        """The client id that is reserved for this connection while it is open."""
        self._detach_actions: dict[Link, list[Callable[[], None]]] = {}
        """Actions to call when a link is detached. One may delete an entity."""
        connection.check_open = self._check_open
        namespace.keys.watchers.add(self)

    @property
    def nodes(self) -> list[Node]:
        return list(self._nodes.values())

    def handle(self, events: list[Any]) -> None:
        """Dispatch events to the nodes, in order."""
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
        self.namespace.journal.commit_if_many()

    def failed(self, failure: Exception, node: Node) -> BrokerError:
        """Return the error to report to the client.

        An unexpected failure is logged with its traceback and reported without detail. The connection stays open.
        """
        if isinstance(failure, BrokerError):
            return failure
        fields = {"peer": self.name, "node": node.address.path}
        log.error("a message failed", exc_info=failure, extra={"fields": fields})
        return BrokerError("The broker failed at this message; see its log.")

    def add_grant(self, grant: Grant) -> None:
        self._note_grant(grant)
        if grant.expires_at is not None and (
            self._expiry is None or (self._soonest is not None and grant.expires_at < self._soonest)
        ):
            self._expect_expiry()

    def audit(
        self, action: str, outcome: str, entity: str, *, client: str = "", count: int | None = None, reason: str = ""
    ) -> None:
        """Write an event of this client to the audit log."""
        client = client or self.grants.key_names or self.container_id
        self._audit.record(
            AuditEvent(
                action=action,
                outcome=outcome,
                connection=self.name,
                client=client,
                entity=entity,
                count=count,
                reason=reason,
            )
        )

    # --- changes of authorization rules ---

    def on_rules_changed(self, path: str) -> None:
        names = self.grants.revise(path, self.namespace.keys.current)
        if not names:
            return
        reason = f"The authorization rule '{names[0]}' was changed or removed."
        try:
            self._lose_rights(reason, names[0])
        except Exception:
            # `Keys.set` must go on with other connections, and this connection must not keep a link.
            log.exception("links could not be detached", extra={"fields": {"peer": self.name}})
            self.close_connection(error_of(Unauthorized(reason)))

    def _lose_rights(self, reason: str, client: str) -> None:
        """Detach links that no grant allows any more, after a loss of grants.

        Close the connection if its login used a key of the rule.
        """
        if self.connection.identity and not self.grants.has_lasting:
            error = error_of(Unauthorized(f"The login is no longer valid: {reason}"))
            self._log("connection closed", error)
            self.audit("login", DENIED, "", client=client, reason=reason)
            self.close_connection(error)
            return
        # A client without the right could otherwise commit its open transactions.
        self.transactions.mark_all_rollback_only(Unauthorized(reason))
        now = self.namespace.now() - EXPIRY_GRACE_MS
        for link, node in list(self._nodes.items()):
            try:
                node.check_rights(now)
            except Unauthorized as failure:
                if node.needs is not None:
                    self.audit(_action(link), DENIED, node.address.path, client=client, reason=reason)
                self.detach(link, Unauthorized(f"{failure} {reason}"))

    def scope(self, entity: str, link: Link) -> Scope:
        """Return the origin of work on a link, for a transaction."""
        return Scope(fold(entity), link.session)

    def detach(self, link: Link, failure: BrokerError) -> None:
        """Detach a link with an error, and remove its node."""
        self.drop(link)
        link.detach(error_of(failure))
        self._log("link detached", error_of(failure), link=link.name)
        self.wake()

    def drop(self, link: Link) -> None:
        """Remove the node of a detached link."""
        node = self._nodes.pop(link, None)
        link.node = None
        if node is not None:
            node.stop_watching()
            node.on_closed()
            self._run_detach_actions(link)

    def on_writable(self) -> None:
        """The transport can be written to again."""
        self.on_written()
        for node in self.nodes:
            node.on_credit()

    def on_written(self) -> None:
        """The transport has written all output, except transfers for which the client's window has no room."""
        if self.unwritten.bytes and not self.connection.holds_transfers:
            self.unwritten.on_written()

    def on_closed(self) -> None:
        """The connection is closed."""
        self.reads.close()
        self.namespace.keys.watchers.discard(self)
        if self._expiry is not None:
            self._expiry.cancel()
        for link in list(self._nodes):
            self.drop(link)
        self.unwritten.on_written()
        release_client_id(self)

    def replace_node(self, link: Link, make: Callable[[], Node]) -> None:
        """Replace the waiting node of a link by the one that `make` makes."""
        waiting = self._nodes.pop(link, None)
        if waiting is not None:
            link.node = None
            waiting.stop_watching()
            self._add_node(link, make)

    def when_detached(self, link: Link, action: Callable[[], None]) -> None:
        """Call `action` when the link is detached, for any reason, or refused."""
        self._detach_actions.setdefault(link, []).append(action)

    # --- inside ---

    def _check_open(self, opened: Open) -> Error | None:
        return reserve_client_id(self, opened)

    def _note_grant(self, grant: Grant) -> None:
        self.grants.add(grant)
        self.transactions.memory.join(grant.rule)
        self.held.join(grant.rule)
        self._partial.join(grant.rule)

    def _on_memory_freed(self) -> None:
        """The account has room for locked messages and answers again."""
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

    def _log_in(self, identity: list[Grant]) -> None:
        """Add the grants of the SASL exchange whose rules still exist."""
        for grant in identity:
            current = self.namespace.keys.current(grant)
            if current is not None:
                self._note_grant(current)
        if identity and not self.grants.has_lasting:
            self._lose_rights("The authorization rule was changed or removed.", identity[0].key_name)

    def _attach(self, link: Link) -> None:
        def make() -> Node:
            if len(self._nodes) >= (MAX_LINKS if self.grants else MAX_UNAUTHENTICATED_LINKS):
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
            # The answer repeats values of the attach. An EncodeError means that one of them cannot be encoded again.
            wrong = Condition.INVALID_FIELD if isinstance(failure, EncodeError) else failure.condition
            link.refuse(Error(condition=wrong, description=failure.description))
        except Exception:
            # An unexpected failure at one link must not affect other links.
            log.exception("a link failed", extra={"fields": {"peer": self.name, "link": link.name}})
            link.refuse(
                Error(condition=Condition.INTERNAL_ERROR, description="The broker failed at this link; see its log.")
            )
        else:
            link.node = node
            self._nodes[link] = node
            node.on_attached()
            self._log("link attached", None, link=link.name, address=node.address.path, node=type(node).__name__)
            node.on_credit()
        if link.node is None:
            self._run_detach_actions(link)
        self.wake()

    def _expect_expiry(self) -> None:
        """Make the appointment for the grant that expires first."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self._soonest = soonest = self.grants.soonest_expiry
        if soonest is not None:
            agenda = self.namespace.agenda
            expected = agenda.monotonic() + soonest - agenda.now()
            self._expiry = agenda.at(soonest, lambda: self._wait_for_renewal(expected))

    def _wait_for_renewal(self, expected: int) -> None:
        """Start the grace of links whose token has expired. A change of the clock does not shorten it."""
        agenda = self.namespace.agenda
        late = agenda.monotonic() - expected
        self._soonest = None
        self._expiry = agenda.after(EXPIRY_GRACE_MS - (late if 0 <= late < EXPIRY_GRACE_MS else 0), self._check_grants)

    def _check_grants(self) -> None:
        """Detach the links that no grant allows any more, after a token has expired."""
        for link, node in list(self._nodes.items()):
            if node.address.is_management:
                continue  # each request is checked, and the client may send a new token before the next request
            try:
                node.check_rights(self.namespace.now())
            except Unauthorized as failure:
                self.detach(link, failure)
        self.grants.forget(self.namespace.now() - EXPIRY_GRACE_MS)
        self._expect_expiry()

    def _run_detach_actions(self, link: Link) -> None:
        for action in self._detach_actions.pop(link, ()):
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
    """Return the action of a client on a link, for the audit log."""
    return "receive" if isinstance(link, Sender) else "send"
