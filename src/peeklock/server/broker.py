"""The broker: a store, a namespace, listeners and timers in one process. `peeklock serve` and the tests start it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from peeklock.amqp.allocation import keep_freed_memory
from peeklock.amqp.errors import Condition
from peeklock.amqp.outcomes import Error
from peeklock.broker.agenda import Agenda, Clock, system_clock
from peeklock.broker.audit import NO_AUDIT, Audit
from peeklock.broker.namespace import CallSoon, Namespace
from peeklock.broker.watermark import Watermark
from peeklock.entities.authorization import DEFAULT_KEY, AuthorizationRule, Right
from peeklock.entities.names import DefinitionError
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.entities.settings import DEFAULT_PROFILE, Profile
from peeklock.limits.broker import MAX_MESSAGE_IDS
from peeklock.limits.server import Limits
from peeklock.server.admission import Admission, Ticket
from peeklock.server.audit import AuditLog
from peeklock.server.browsers import BrowserGuard
from peeklock.server.certificates import CertificateError, Certificates, ensure_certificates
from peeklock.server.config import default_namespace
from peeklock.server.health import Health
from peeklock.server.http import Handler, HttpService, Messaging
from peeklock.server.listener import Listener
from peeklock.server.loopback import is_loopback
from peeklock.server.metrics import Metrics, MetricsPage
from peeklock.server.shell import AmqpProtocol, Shell
from peeklock.server.tls import Files, Tls
from peeklock.store.base import DiskSpace, Store, StoreError
from peeklock.store.disk.space import disk_space
from peeklock.store.disk.store import DiskStore
from peeklock.store.memory import MemoryStore

log = logging.getLogger(__name__)

LONGEST_WAIT: Final = 10.0
"""Seconds between reads of the clock, which may be set. The event loop's own time stops while the machine sleeps."""
SWITCH_INTERVAL: Final = 0.0001
"""Seconds; short, so that the writer thread gets the interpreter soon while the loop is busy (docs/benchmarks.md)."""

COLLECTION_THRESHOLDS: Final = (200_000, 20, 100)
"""Messages are allocated by the thousand and hold no cycles. Python's default of 700 costs a quarter of the time."""


class StartError(Exception):
    """The broker cannot start; `str()` is one sentence with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a broker."""

    namespace: NamespaceDefinition = field(default_factory=default_namespace)
    profile: Profile = DEFAULT_PROFILE
    data: Path | None = None
    """The data folder. None: everything is in memory only."""
    disk_free_low: int | None = None
    """Bytes: with less free on the disk of the data folder, sends are refused. None: the default; 0: never."""
    measure_disk: Callable[[Path], DiskSpace] = disk_space
    host: str = "127.0.0.1"
    port: int = 5672
    """0: a free port."""
    further_ports: tuple[int, ...] = ()
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_folder: Path | None = None
    """The folder of the local certificate authority. None: the data folder."""
    make_certificates: Callable[..., Certificates] = ensure_certificates
    """Called with (folder, hosts, now=...)."""
    require_tls: bool = False
    """Whether clients without TLS are refused."""
    mtls_ca: Path | None = None
    """Clients that use TLS must show a certificate signed by this authority."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names accepted in HTTP requests, in addition to the names of loopback."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may connect."""
    audit: Path | None = None
    """The file of the audit log. None: no audit log."""
    insecure_default_key: bool = False
    """Whether the well-known key is accepted on addresses that other machines can reach."""
    max_message_ids: int = MAX_MESSAGE_IDS
    """Message ids kept for duplicate detection by one entity."""
    clock: Clock = system_clock
    limits: Limits = field(default_factory=Limits)
    make_store: Callable[[CallSoon], Store] | None = None
    """Makes the store, in place of the store in the data folder or in memory."""
    administration: Callable[[Namespace], Handler] | None = None
    """Makes the handler of HTTP requests for administration."""
    messaging: Callable[[Namespace], Messaging] | None = None
    """Makes the handler of HTTP requests that send, receive or settle messages."""


class Broker:
    """A broker in this process and event loop. It is started once and stopped once."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.shells: set[Shell] = set()
        """The AMQP connections, including those over WebSocket."""
        self._admission = Admission(options.limits, options.clock)
        self._agenda = Agenda(options.clock)
        """The timers of the server. The namespace has an agenda of its own."""
        self._audit_log: AuditLog | None = None
        self.sockets: list[socket.socket] = []
        """The listening sockets, in the order of the ports."""
        self._listeners: list[Listener] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def ports(self) -> list[int]:
        """The port and the further ports, in the order of the options."""
        return [int(sock.getsockname()[1]) for sock in self.sockets]

    @property
    def audit(self) -> Audit:
        return self._audit_log or NO_AUDIT

    @property
    def connections(self) -> int:
        """The number of open connections of any protocol."""
        return self._admission.open

    @property
    def connection_string(self) -> str:
        """The connection string with the key, for clients in this process."""
        rule = self._first_rule
        return f"{self._endpoint}SharedAccessKey={rule.primary_key};UseDevelopmentEmulator=true;"

    @property
    def shown_connection_string(self) -> str:
        """The connection string for logs and terminals: it has the key only if that is the well-known key."""
        if self.has_secret_key:
            return f"{self._endpoint}UseDevelopmentEmulator=true;"
        return self.connection_string

    @property
    def has_secret_key(self) -> bool:
        return self._first_rule.primary_key != DEFAULT_KEY

    @property
    def key_name(self) -> str:
        """The name of the key in the connection string."""
        return self._first_rule.name

    @property
    def _first_rule(self) -> AuthorizationRule:
        rules = self.options.namespace.authorization_rules
        return next((rule for rule in rules if Right.MANAGE in rule.rights), rules[0])

    @property
    def _endpoint(self) -> str:
        host = self.options.host
        if host in ("", "0.0.0.0", "::"):
            host = "127.0.0.1"
        elif ":" in host:
            host = f"[{host}]"
        return f"Endpoint=sb://{host}:{self.port};SharedAccessKeyName={self.key_name};"

    def bind(self) -> None:
        """Bind the ports, and check the keys. `start` does it unless it is done. StartError if that fails."""
        self.check_keys(self.options.namespace)
        self.sockets = self._bind()

    async def start(self) -> None:
        """Start; connections are accepted when this returns. StartError when the broker cannot start."""
        definition = self.options.namespace
        if not self.sockets:
            self.bind()
        sys.setswitchinterval(SWITCH_INTERVAL)
        gc.freeze()
        gc.set_threshold(*COLLECTION_THRESHOLDS)
        keep_freed_memory()
        loop = asyncio.get_running_loop()
        store: Store | None = None
        metrics = Metrics()
        try:
            self._open_audit(metrics)
        except StartError:
            self._close_sockets()
            raise
        try:
            store = self._store = metrics.measured(self._make_store(loop))
            self.namespace = Namespace(
                definition,
                store,
                loop.call_soon,
                clock=self.options.clock,
                profile=self.options.profile,
                max_message_ids=self.options.max_message_ids,
            )
            await self._start_namespace()
            watermark = self._watermark()
            self.tls = self._make_tls()
            self.tls.start()
            limits = self.options.limits
            health = Health(self.namespace, store)
            metrics_page = MetricsPage(metrics, self.namespace, lambda: self.connections, watermark)
            administer, messaging = self.options.administration, self.options.messaging
            self._http = HttpService(
                self.namespace,
                on_made=self.shells.add,
                on_lost=self.shells.discard,
                limits=limits,
                guard=BrowserGuard(
                    self.options.host,
                    allowed_hosts=self.options.allowed_hosts,
                    allowed_origins=self.options.allowed_origins,
                    insecure_default_key=self.options.insecure_default_key,
                ),
                require_tls=self.options.require_tls,
                audit=self.audit,
                pages={"/health": health.answer, "/metrics": metrics_page.answer},
                administration=None if administer is None else administer(self.namespace),
                messaging=None if messaging is None else messaging(self.namespace),
            )
            await self._http.start()
        except BaseException:
            self._close_sockets()
            if store is not None:
                store.close()
            if self._audit_log is not None:
                self._audit_log.close()
            raise
        self.run_agenda()
        self._listen()

    def suspend(self, description: str) -> None:
        """Stop accepting and delivering, and close all connections. Memory and store stay, until `resume` or `stop`."""
        for listener in self._listeners:
            listener.detach()
        self._listeners.clear()
        error = Error(condition=Condition.CONNECTION_FORCED, description=description)
        for shell in list(self.shells):
            shell.quiesce()
            shell.close(error)
        self._http.abort_connections()

    def resume(self) -> None:
        """Accept connections again."""
        self._listen()

    def adopt(self, connection: socket.socket) -> None:
        """Serve a connection that was accepted elsewhere, and from which nothing was read."""
        self._listeners[0].adopt(connection)

    async def stop(self, *, drain: bool = True) -> None:
        """Stop accepting connections, let running operations finish, close the connections, then close the store.

        Without `drain`, running operations do not finish.
        """
        log.info("stopping", extra={"fields": {"connections": len(self.shells)}})
        limits = self.options.limits
        for listener in self._listeners:
            listener.close()
        self._close_sockets()
        self._http.end_waits()
        for shell in list(self.shells):
            shell.quiesce()
        if drain and not await _wait_until(lambda: self.namespace.journal.idle, limits.stop_seconds):
            log.warning("stopping before the store has finished its commits")
        error = Error(condition=Condition.CONNECTION_FORCED, description="The broker is stopping.")
        for shell in list(self.shells):
            shell.close(error)
        await _wait_until(lambda: not self.shells, limits.closing_seconds)
        for shell in list(self.shells):
            shell.abort()
        if self._timer is not None:
            self._timer.cancel()
        await self._http.stop()
        self._store.close()
        if self._audit_log is not None:
            self._audit_log.close()
        log.info("stopped")

    def reload(self) -> None:
        """Read the certificates again, and open the file of the audit log again. Called at SIGHUP."""
        if self._listeners:
            self.tls.request_reload()
        if self._audit_log is not None:
            self._audit_log.reopen()

    def check_keys(self, definition: NamespaceDefinition) -> None:
        """Raise StartError if the definition has the well-known key and other machines can reach the broker."""
        self._check_default_key(definition.authorization_rules)
        for queue in definition.queues:
            self._check_default_key(queue.authorization_rules)
        for topic in definition.topics:
            self._check_default_key(topic.authorization_rules)

    def run_agenda(self) -> None:
        """Run the timers that are due, and set the loop's timer for the next one."""
        agenda = self.namespace.agenda
        agenda.on_earlier = self._agenda.on_earlier = lambda: None  # the timer is set below, after all have run
        agenda.run()
        self._agenda.run()
        agenda.on_earlier = self._agenda.on_earlier = self._set_timer
        self._set_timer()

    # --- private ---

    def _listen(self) -> None:
        for sock in self.sockets:
            listener = Listener(
                sock,
                lambda: self.tls.context,
                self._amqp_protocol,
                self._http.protocol,
                admission=self._admission,
                first_bytes_seconds=self.options.limits.first_bytes_seconds,
            )
            self._listeners.append(listener)
            log.info("listening", extra={"fields": {"host": self.options.host, "port": listener.port}})

    def _close_sockets(self) -> None:
        for sock in self.sockets:
            sock.close()

    def _amqp_protocol(self, ticket: Ticket) -> AmqpProtocol:
        options = self.options
        return AmqpProtocol(
            self.namespace,
            self.shells.add,
            self.shells.discard,
            options.limits,
            ticket,
            self.audit,
            options.require_tls,
        )

    def _set_timer(self) -> None:
        """Set the loop's timer for the next entry of both agendas."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = [each for each in (self.namespace.agenda.next_due, self._agenda.next_due) if each is not None]
        if due:
            delay = max(0.001, min(LONGEST_WAIT, (min(due) - self.options.clock.now()) / 1000))
            self._timer = asyncio.get_running_loop().call_later(delay, self.run_agenda)

    @property
    def _allows_default_key(self) -> bool:
        return self.options.insecure_default_key or is_loopback(self.options.host)

    def _check_default_key(self, rules: Iterable[AuthorizationRule]) -> None:
        if not self._allows_default_key and any(DEFAULT_KEY in rule.keys for rule in rules):
            raise StartError(
                f"the well-known default key is not accepted on {self.options.host}, which other machines can reach: "
                "set other keys in the configuration file, or use --insecure-default-key"
            )

    def _bind(self) -> list[socket.socket]:
        sockets: list[socket.socket] = []
        for port in (self.options.port, *self.options.further_ports):
            try:
                family, kind, protocol, _, address = socket.getaddrinfo(
                    self.options.host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                )[0]
                sock = socket.socket(family, kind, protocol)
                sockets.append(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind(address)
                sock.listen(1)
            except (OSError, OverflowError, UnicodeError) as error:
                for opened in sockets:
                    opened.close()
                reason = getattr(error, "strerror", None) or str(error)
                raise StartError(f"cannot listen on {self.options.host} port {port}: {reason}") from error
        return sockets

    def _make_store(self, loop: asyncio.AbstractEventLoop) -> Store:
        if self.options.make_store is not None:
            return self.options.make_store(loop.call_soon_threadsafe)
        if self.options.data is None:
            return MemoryStore()
        return DiskStore(self.options.data, loop.call_soon_threadsafe)

    async def _start_namespace(self) -> None:
        started: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        try:
            self.namespace.start(started.set_result)
            error = await started
        except (StoreError, DefinitionError) as failure:
            raise StartError(str(failure)) from failure
        if error is not None:
            raise StartError(str(error)) from error
        self.namespace.administration.allows_default_key = self._allows_default_key
        for entity in self.namespace.entities:
            self._check_default_key(entity.definition.authorization_rules)

    def _open_audit(self, metrics: Metrics) -> None:
        def on_failure() -> None:
            metrics.audit_failures += 1

        if self.options.audit is not None:
            try:
                self._audit_log = AuditLog(self.options.audit, self._agenda, on_failure)
            except OSError as error:
                reason = error.strerror or str(error)
                raise StartError(f"the audit log {self.options.audit} cannot be written: {reason}") from error

    def _watermark(self) -> Watermark | None:
        """Start checking the free space of the disk. Returns None without a data folder."""
        options, folder = self.options, self.options.data
        if folder is None:
            return None
        namespace = self.namespace
        watermark = Watermark(
            namespace.journal, namespace.agenda, lambda: options.measure_disk(folder), options.disk_free_low
        )
        watermark.start()
        return watermark

    def _make_tls(self) -> Tls:
        if self.options.mtls_ca is not None and not self.options.require_tls:
            log.warning("clients that connect without TLS are not asked for a certificate; --require-tls refuses them")
        try:
            return Tls(self._tls_files, self.options.mtls_ca, self._agenda)
        except (CertificateError, OSError) as error:
            raise StartError(str(error)) from error

    def _tls_files(self, now: datetime) -> Files:
        options = self.options
        if options.tls_certificate is not None and options.tls_key is not None:
            return options.tls_certificate, options.tls_key
        folder = options.tls_folder or options.data
        assert folder is not None, "a broker without a data folder needs the option tls_folder"
        made = options.make_certificates(folder, [options.host], now=now)
        return made.certificate, made.key


async def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition holds, for at most so many seconds. Returns whether it holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(0.01)
    return True


def default_tls_folder() -> Path:
    """Return the folder of the certificates of a broker without a data folder; they are kept over restarts."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "peeklock"
