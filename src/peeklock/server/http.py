"""The HTTP side of the port: AMQP over WebSocket, the pages of the server, administration, and messages over REST.

Each page has its own path. Other requests go to the messaging handler if they send, receive or settle messages, and to
the administration handler otherwise. Every request is checked first: TLS, `Host` and `Origin`, and the reserve.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Protocol

from aiohttp import HttpVersion11, WSCloseCode, WSMsgType, web
from aiohttp.http import HttpProcessingError

from peeklock.broker.access import Grant, key_name_of
from peeklock.broker.audit import DENIED, Audit, AuditEvent
from peeklock.broker.errors import BrokerError, InvalidToken, Unauthorized, WrongKey
from peeklock.broker.namespace import Namespace
from peeklock.entities.authorization import Right
from peeklock.limits.http import MAX_BODY, MAX_UPGRADE_HEAD, MAX_WEBSOCKET_MESSAGE
from peeklock.limits.server import Limits
from peeklock.server.admission import Ticket
from peeklock.server.browsers import BrowserGuard
from peeklock.server.first_request import FirstRequest
from peeklock.server.logs import event
from peeklock.server.peers import is_encrypted, peer_name
from peeklock.server.request_memory import head_size
from peeklock.server.shell import Shell
from peeklock.server.waits import CONNECTION, WAITS, Waits

log = logging.getLogger(__name__)

WEBSOCKET_PATH: Final = "/$servicebus/websocket"
SUBPROTOCOLS: Final = ("AMQPWSB10", "amqp")
WRITE_HIGH: Final = 256 * 1024
"""Bytes that wait to be written to a WebSocket. Above this, the shell stops sending messages."""
_MAX_REASON: Final = 200
WRITE_PART: Final = 256 * 1024
"""The largest WebSocket message that the broker sends. AMQP is a byte stream, so it can be split anywhere."""

TICKET: Final = web.RequestKey("ticket", Ticket)
"""The ticket of the request's connection."""
METHODS: Final = frozenset({"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"})
AUDIT: Final = web.RequestKey("audit", Audit)
HTTP_GRACE_MS: Final = 5 * 60_000
"""How long HTTP requests may use an expired token: the Python SDK's administration client renews its token one minute
after it has expired. AMQP clients renew in time, so AMQP has no such grace."""
TLS_REQUIRED: Final = "This broker requires TLS: use https or wss."

_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")

Refusal = tuple[HTTPStatus, str]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Messaging(Protocol):
    """The handler of HTTP requests that send, receive or settle messages."""

    def answers(self, request: web.Request) -> bool:
        """Return whether the request sends, receives or settles messages; otherwise it is for administration."""
        ...

    async def handle(self, request: web.Request) -> web.StreamResponse: ...


def verify_token(namespace: Namespace, token: str, path: str, ticket: Ticket) -> Grant:
    """Return the grant of a token for a path. BrokerError if it is invalid or logins from the address are refused."""
    if not token:
        raise Unauthorized("The request has no token: a shared access signature is required.")
    if token[:7].lower() == "bearer ":
        raise InvalidToken("Tokens of an identity provider are not accepted: use a shared access key.")
    if not token.isascii():
        raise InvalidToken("The token has characters outside ASCII.")
    ticket.check_login()
    try:
        claim = namespace.keys.verify(token, path, namespace.now(), HTTP_GRACE_MS)
    except WrongKey:
        ticket.login_failed()
        raise
    ticket.token_verified()
    return claim


def audit_denied(request: web.Request, reason: str, action: str = "", entity: str = "") -> None:
    """Record in the audit log a request that was refused because the client lacks the right."""
    audit_request(request, DENIED, reason, action, entity)


def audit_request(request: web.Request, outcome: str, reason: str = "", action: str = "", entity: str = "") -> None:
    """Record the outcome of a request in the audit log. Method and path are the default of action and entity."""
    request[AUDIT].record(
        AuditEvent(
            action=action or (request.method if request.method in METHODS else "request"),
            outcome=outcome,
            connection=peer_name(request.transport),
            client=key_name_of(request.headers.get("Authorization", "")),
            entity=entity or request.rel_url.path.strip("/"),
            reason=reason,
        )
    )


def origin_of(request: web.Request) -> str:
    """Return scheme and host of the address that the client used; the addresses in answers begin with it."""
    host = request.headers.get("Host", "")
    return f"{request.scheme}://{host if _HOST.fullmatch(host) else 'localhost'}"


class HttpService:
    """The aiohttp server without a listener of its own: it makes a protocol for each connection that is accepted."""

    def __init__(
        self,
        namespace: Namespace,
        *,
        on_made: Callable[[Shell], None],
        on_lost: Callable[[Shell], None],
        limits: Limits,
        guard: BrowserGuard,
        require_tls: bool,
        audit: Audit,
        pages: Mapping[str, Handler],
        administration: Handler | None,
        messaging: Messaging | None,
    ) -> None:
        self._namespace = namespace
        self._guard = guard
        self._require_tls = require_tls
        self._audit = audit
        self._on_made = on_made
        self._on_lost = on_lost
        self._limits = limits
        self._tickets: dict[asyncio.Protocol, Ticket] = {}
        self._connections: dict[asyncio.Protocol, FirstRequest] = {}
        self._waits = Waits()
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._attach_connection, self._check_request])
        for path, page in pages.items():
            app.router.add_get(path, _unless_administered(page, administration))
        for path in (WEBSOCKET_PATH, WEBSOCKET_PATH + "/"):
            app.router.add_get(path, self._websocket)
        entity_handler = _entity_handler(administration, messaging)
        if entity_handler is not None:
            app.router.add_route("*", "/{path:.*}", entity_handler)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=_ServerLog(log),
            handle_signals=False,
            keepalive_timeout=limits.first_bytes_seconds,
            shutdown_timeout=limits.closing_seconds,
        )

    async def start(self) -> None:
        await self._runner.setup()

    def end_waits(self) -> None:
        """Answer the requests that wait for messages; later requests do not wait."""
        self._waits.stop()

    def abort_connections(self) -> None:
        """Close all connections at once, also those with unfinished requests and WebSockets."""
        for connection in list(self._connections.values()):
            connection.abort()

    async def stop(self) -> None:
        await self._runner.cleanup()

    def protocol(self, ticket: Ticket) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        inner = server()
        self._tickets[inner] = ticket
        seconds = ticket.first_bytes_timeout(self._limits.first_bytes_seconds)
        first = FirstRequest(inner, seconds, ticket, partial(self._on_connection_lost, inner))
        self._connections[inner] = first
        return first

    def _on_connection_lost(self, inner: asyncio.Protocol) -> None:
        self._tickets.pop(inner).release()
        del self._connections[inner]
        self._waits.on_lost(inner)

    @web.middleware
    async def _attach_connection(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Attach the objects of the connection to the request."""
        connection = self._connections.get(request.protocol)
        if connection is None or request.transport is None:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE)  # it is lost, and gets no response
        connection.begin(request)
        request[TICKET] = self._tickets[request.protocol]
        request[AUDIT] = self._audit
        request[WAITS] = self._waits
        request[CONNECTION] = connection
        try:
            return await handler(request)
        finally:
            connection.end()

    @web.middleware
    async def _check_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests that are not allowed on any path, before their path is considered."""
        refusal = self._plain_refusal(request) or self._browser_refusal(request) or self._reserve_refusal(request)
        if refusal is None:
            response = await handler(request)
            if request[TICKET].is_reserved:
                response.force_close()
            return response
        status, reason = refusal
        peer = peer_name(request.transport)
        event(log, logging.WARNING, "request refused", peer=peer, status=int(status), reason=reason)
        audit_denied(request, reason)
        headers = {"Upgrade": "TLS/1.2, HTTP/1.1"} if status is HTTPStatus.UPGRADE_REQUIRED else {}
        refused = web.Response(status=status, text=f"{reason}\n", headers=headers)
        refused.force_close()
        return refused

    def _plain_refusal(self, request: web.Request) -> Refusal | None:
        if self._require_tls and not is_encrypted(request.transport):
            return HTTPStatus.UPGRADE_REQUIRED, TLS_REQUIRED
        return None

    def _reserve_refusal(self, request: web.Request) -> Refusal | None:
        """Refuse requests in the reserve without a key that has the right Manage.

        `/health` is answered: a broker with many connections is not unhealthy.
        """
        ticket = request[TICKET]
        if not ticket.awaits_key:
            return None
        try:
            token = request.headers.get("Authorization", "")
            grant = verify_token(self._namespace, token, request.rel_url.raw_path, ticket)
        except BrokerError:
            grant = None
        if grant is not None and Right.MANAGE in grant.rights:
            ticket.mark_key_shown()
            return None
        if request.path == "/health":
            return None
        reason = "Too many connections are open; this one is reserved for administration and needs a key with Manage."
        return HTTPStatus.SERVICE_UNAVAILABLE, reason

    def _browser_refusal(self, request: web.Request) -> Refusal | None:
        """Refuse requests that a web page makes through a browser, on any path. No answer ever has CORS headers."""
        hosts, origins = request.headers.getall("Host", []), request.headers.getall("Origin", [])
        if len(hosts) > 1 or len(origins) > 1 or (not hosts and request.version >= HttpVersion11):
            return HTTPStatus.BAD_REQUEST, "The request must have one Host and at most one Origin (RFC 9112)."
        refusal = self._guard.refusal(hosts[0] if hosts else None, origins[0] if origins else None)
        return None if refusal is None else (HTTPStatus.FORBIDDEN, refusal)

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(
            protocols=SUBPROTOCOLS,
            max_msg_size=MAX_WEBSOCKET_MESSAGE,
            compress=False,
            timeout=self._limits.closing_seconds,
        )
        ready = socket.can_prepare(request)
        if not ready:
            text = "This path serves AMQP over WebSocket only: request an upgrade to websocket.\n"
            return web.Response(status=426, text=text, headers={"Upgrade": "websocket"})
        if ready.protocol is None and "Sec-WebSocket-Protocol" in request.headers:
            text = f"The WebSocket subprotocol must be one of {', '.join(SUBPROTOCOLS)}.\n"
            return web.Response(status=400, text=text)
        if head_size(request) > MAX_UPGRADE_HEAD:  # the request is kept as long as the WebSocket
            text = f"The headers of a request for a WebSocket may have {MAX_UPGRADE_HEAD} bytes.\n"
            return web.Response(status=HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text=text)
        await socket.prepare(request)
        transport = WebSocketTransport(socket, request)
        name = f"{peer_name(request.transport)}(websocket)"
        shell = Shell(transport, self._namespace, name, self._on_lost, self._limits, request[TICKET], self._audit)
        transport.shell = shell
        self._on_made(shell)
        writer = asyncio.create_task(transport.write_all())
        protocol = transport.protocol
        if isinstance(protocol, FirstRequest):
            protocol.count_unfinished(shell)
        try:
            while not transport.closing:
                await transport.may_read.wait()
                message = await socket.receive()
                if message.type is WSMsgType.TEXT:
                    transport.close_code = WSCloseCode.UNSUPPORTED_DATA
                    event(log, logging.WARNING, "websocket closed", peer=name, reason="a text message was received")
                elif message.type is WSMsgType.ERROR:
                    event(log, logging.WARNING, "websocket closed", peer=name, reason=str(message.data))
                if message.type is not WSMsgType.BINARY:
                    break
                if isinstance(protocol, FirstRequest):
                    protocol.unfinished = 0
                shell.data_received(message.data)
        finally:
            shell.lost()
            transport.close()
            await writer
        return socket


class _ServerLog(logging.LoggerAdapter[logging.Logger]):
    """The logger for aiohttp. Malformed HTTP is the client's mistake, so it is logged as one line without a traceback.

    aiohttp logs such requests with `debug` or `exception`, depending on where parsing fails.
    """

    def debug(self, msg: object, *args: object, exc_info: object = None, **fields: Any) -> None:
        if isinstance(exc_info, HttpProcessingError):
            self._log_malformed(args, exc_info)
        else:
            super().debug(msg, *args, exc_info=exc_info, **fields)  # type: ignore[arg-type]

    def exception(self, msg: object, *args: object, exc_info: object = True, **fields: Any) -> None:
        if isinstance(exc_info, HttpProcessingError):
            self._log_malformed(args, exc_info)
        else:
            super().exception(msg, *args, exc_info=exc_info, **fields)  # type: ignore[arg-type]

    def _log_malformed(self, args: tuple[object, ...], error: HttpProcessingError) -> None:
        """Log the refusal. The first argument is the client's address, without the port."""
        reason = error.message.partition("\n")[0][:_MAX_REASON]
        event(log, logging.WARNING, "request refused", peer=args[0] if args else None, status=error.code, reason=reason)


def _unless_administered(page: Handler, administration: Handler | None) -> Handler:
    """Return a handler for a page and for the administration of an entity with the page's name.

    Requests for administration have the parameter `api-version`.
    """

    async def handle(request: web.Request) -> web.StreamResponse:
        if administration is not None and "api-version" in request.query:
            return await administration(request)
        return await page(request)

    return handle


def _entity_handler(administration: Handler | None, messaging: Messaging | None) -> Handler | None:
    """Return the handler of the requests that are not for a page."""
    if messaging is None:
        return administration
    messages = messaging

    async def handle(request: web.Request) -> web.StreamResponse:
        if messages.answers(request):
            return await messages.handle(request)
        if administration is None:
            raise web.HTTPNotFound
        return await administration(request)

    return handle


class WebSocketTransport:
    """A WebSocket as the byte transport of a shell."""

    def __init__(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        self._socket = socket
        self._request = request
        self._out: list[bytes] = []
        self._out_size = 0
        self._has_output = asyncio.Event()
        """Set when there is output to write, and when the transport is closing."""
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.closing = False
        self.close_code: int = WSCloseCode.OK
        self.shell: Shell | None = None

    @property
    def protocol(self) -> asyncio.BaseProtocol | None:
        """The protocol on the connection's socket."""
        transport = self._request.transport
        return transport.get_protocol() if transport is not None else None

    def write(self, data: bytes) -> None:
        self._out.append(data)
        self._out_size += len(data)
        self._has_output.set()
        if self._out_size > WRITE_HIGH and self.shell is not None:
            self.shell.pause_writing()

    def close(self) -> None:
        """Close the WebSocket after all output is written."""
        self.closing = True
        self.may_read.set()
        self._has_output.set()

    def abort(self) -> None:
        self._out.clear()
        self.close()
        transport = self._request.transport
        if transport is not None:
            transport.abort()

    def pause_reading(self) -> None:
        self.may_read.clear()

    def resume_reading(self) -> None:
        self.may_read.set()

    async def write_all(self) -> None:
        """Write output until the transport is closed, then close the WebSocket."""
        try:
            while self._out or not self.closing:
                await self._has_output.wait()
                self._has_output.clear()
                if not self._out:
                    continue
                data = b"".join(self._out)
                self._out.clear()
                for at in range(0, len(data), WRITE_PART):
                    await self._socket.send_bytes(data[at : at + WRITE_PART])
                was_full = self._out_size > WRITE_HIGH
                self._out_size -= len(data)
                if was_full and self._out_size <= WRITE_HIGH and self.shell is not None:
                    self.shell.resume_writing()
            await self._socket.close(code=self.close_code)
        except (ConnectionError, RuntimeError) as error:
            log.info("websocket lost: %s", error)
