"""What is spoken over HTTP on the sniffed connection: AMQP over WebSocket, and what others answer.

A page has a path of its own. Of the other requests those that send or receive are for messaging, the rest administer.
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

from peeklock.broker.access import Claim, key_name_of
from peeklock.broker.audit import DENIED, Audit
from peeklock.broker.errors import BrokerError, InvalidToken, Unauthorized, WrongKey
from peeklock.broker.namespace import Namespace
from peeklock.entities.authorization import Right
from peeklock.limits.http import MAX_BODY, MAX_WEBSOCKET_MESSAGE
from peeklock.limits.server import Limits
from peeklock.server.admission import Ticket
from peeklock.server.browsers import BrowserGuard
from peeklock.server.first_request import FirstRequest
from peeklock.server.listener import patience_for
from peeklock.server.logs import event
from peeklock.server.peers import is_encrypted, peer_name
from peeklock.server.shell import Shell
from peeklock.server.waits import CONNECTION, WAITS, Waits

log = logging.getLogger(__name__)

WEBSOCKET_PATH: Final = "/$servicebus/websocket"
SUBPROTOCOLS: Final = ("AMQPWSB10", "amqp")
WRITE_HIGH: Final = 256 * 1024
"""Bytes waiting to be written to a WebSocket above which nothing new is sent into it."""
_MAX_REASON: Final = 200
WRITE_PART: Final = 256 * 1024
"""A WebSocket message that we write is no larger; where it is cut means nothing."""

TICKET: Final = web.RequestKey("ticket", Ticket)
"""Of the connection that a request came on."""
METHODS: Final = frozenset({"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"})
AUDIT: Final = web.RequestKey("audit", Audit)
HTTP_GRACE_MS: Final = 5 * 60_000
"""How long HTTP requests may use a token after it has expired: the Python SDK's administration client renews its token
a minute after the end. AMQP connections renew in time, and have no such grace for a token that they show."""
TLS_REQUIRED: Final = "This broker requires TLS: use https or wss."

_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]{1,255}")

Refusal = tuple[HTTPStatus, str]
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Messaging(Protocol):
    """Messages over HTTP: sending and receiving."""

    def answers(self, request: web.Request) -> bool:
        """Whether the request sends, receives or settles; others administer."""
        ...

    async def handle(self, request: web.Request) -> web.StreamResponse: ...


def verified(namespace: Namespace, token: str, path: str, ticket: Ticket) -> Claim:
    """What a token allows at a path; BrokerError says why it allows nothing, or why it is not even looked at."""
    if not token:
        raise Unauthorized("The request has no token: a shared access signature is needed in its header.")
    if token[:7].lower() == "bearer ":
        raise InvalidToken("Tokens of an identity provider are not accepted here: use a shared access key.")
    if not token.isascii():
        raise InvalidToken("The token has characters that no token has.")
    ticket.check_login()
    try:
        return namespace.keys.verify(token, path, namespace.now(), HTTP_GRACE_MS)
    except WrongKey:
        ticket.login_failed()
        raise


def audit_denied(request: web.Request, reason: str, action: str = "", entity: str = "") -> None:
    """Tell the audit log of a request that was refused for want of rights."""
    audit_request(request, DENIED, reason, action, entity)


def audit_request(request: web.Request, outcome: str, reason: str = "", action: str = "", entity: str = "") -> None:
    """Tell the audit log what became of a request. Its method and path stand for an action and entity not given."""
    request[AUDIT].record(
        action or (request.method if request.method in METHODS else "request"),
        outcome,
        connection=peer_name(request.transport),
        client=key_name_of(request.headers.get("Authorization", "")),
        entity=entity or request.rel_url.path.strip("/"),
        reason=reason,
    )


def origin_of(request: web.Request) -> str:
    """Where the client found us: what addresses in answers begin with."""
    host = request.headers.get("Host", "")
    return f"{request.scheme}://{host if _HOST.fullmatch(host) else 'localhost'}"


class HttpService:
    """Makes the protocol for each HTTP connection."""

    def __init__(
        self,
        namespace: Namespace,
        on_made: Callable[[Shell], None],
        on_gone: Callable[[Shell], None],
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
        self._on_gone = on_gone
        self._limits = limits
        self._silent: dict[asyncio.Protocol, FirstRequest] = {}
        """Connections whose first request has not come yet."""
        self._tickets: dict[asyncio.Protocol, Ticket] = {}
        self._connections: dict[asyncio.Protocol, FirstRequest] = {}
        self._waits = Waits()
        app = web.Application(client_max_size=MAX_BODY, middlewares=[self._note_request, self._check_request])
        for path, page in pages.items():
            app.router.add_get(path, _unless_administered(page, administration))
        for path in (WEBSOCKET_PATH, WEBSOCKET_PATH + "/"):
            app.router.add_get(path, self._websocket)
        others = _others(administration, messaging)
        if others is not None:
            app.router.add_route("*", "/{path:.*}", others)
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
        """Answer requests that wait for messages, and let none wait any more."""
        self._waits.stop()

    async def stop(self) -> None:
        await self._runner.cleanup()

    def protocol(self, ticket: Ticket) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        inner = server()
        self._tickets[inner] = ticket
        patience = patience_for(ticket, self._limits.first_bytes_seconds)
        first = FirstRequest(inner, self._silent, patience, ticket, partial(self._lost, inner))
        self._connections[inner] = first
        return first

    def _lost(self, inner: asyncio.Protocol) -> None:
        self._tickets.pop(inner).release()
        del self._connections[inner]
        self._waits.lost(inner)

    @web.middleware
    async def _note_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        first = self._silent.get(request.protocol)
        if first is not None:
            first.came()
        request[TICKET] = self._tickets[request.protocol]
        request[AUDIT] = self._audit
        request[WAITS] = self._waits
        request[CONNECTION] = self._connections[request.protocol]
        return await handler(request)

    @web.middleware
    async def _check_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse what no path may be asked, before it is looked at."""
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
        """A connection in the reserve administers, or asks for health, which must not fail because others are many."""
        ticket = request[TICKET]
        if ticket.is_proven:
            return None
        try:
            token = request.headers.get("Authorization", "")
            claim = verified(self._namespace, token, request.rel_url.raw_path, ticket)
        except BrokerError:
            claim = None
        if claim is not None and Right.MANAGE in claim.rights:
            ticket.prove()
            return None
        if request.path == "/health":
            return None
        return HTTPStatus.SERVICE_UNAVAILABLE, "All connections are taken; the rest is for administration with a key."

    def _browser_refusal(self, request: web.Request) -> Refusal | None:
        """Refuse what a web page has its visitor's browser ask, on any path. Nothing is ever allowed by CORS."""
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
            text = "This address speaks AMQP over WebSocket only: ask for an upgrade.\n"
            return web.Response(status=426, text=text, headers={"Upgrade": "websocket"})
        if ready.protocol is None and "Sec-WebSocket-Protocol" in request.headers:
            return web.Response(status=400, text=f"The WebSocket subprotocol is one of {', '.join(SUBPROTOCOLS)}.\n")
        await socket.prepare(request)
        transport = WebSocketTransport(socket, request)
        name = f"{peer_name(request.transport)}(websocket)"
        shell = Shell(transport, self._namespace, name, self._on_gone, self._limits, request[TICKET], self._audit)
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
                    event(log, logging.WARNING, "websocket closed", peer=name, reason="a message of text came")
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
    """What the HTTP server logs. A request that is no HTTP is the client's mistake: one line, and no trace of ours."""

    def debug(self, msg: object, *args: object, exc_info: object = None, **fields: Any) -> None:
        if isinstance(exc_info, HttpProcessingError):
            self._tell(args, exc_info)
        else:
            super().debug(msg, *args, exc_info=exc_info, **fields)  # type: ignore[arg-type]

    def exception(self, msg: object, *args: object, exc_info: object = True, **fields: Any) -> None:
        if isinstance(exc_info, HttpProcessingError):
            self._tell(args, exc_info)
        else:
            super().exception(msg, *args, exc_info=exc_info, **fields)  # type: ignore[arg-type]

    def _tell(self, args: tuple[object, ...], error: HttpProcessingError) -> None:
        """The server gives where the request came from, without the port."""
        reason = error.message.partition("\n")[0][:_MAX_REASON]
        event(log, logging.WARNING, "request refused", peer=args[0] if args else None, status=error.code, reason=reason)


def _unless_administered(page: Handler, administration: Handler | None) -> Handler:
    """An entity may have the name of one of our pages; who administers it says a version of the interface."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if administration is not None and "api-version" in request.query:
            return await administration(request)
        return await page(request)

    return handle


def _others(administration: Handler | None, messaging: Messaging | None) -> Handler | None:
    """What answers the requests that are for no page."""
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
    """A WebSocket as the byte stream that a shell writes to."""

    def __init__(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        self._socket = socket
        self._request = request
        self._out: list[bytes] = []
        self._out_size = 0
        self._wanted = asyncio.Event()
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.closing = False
        self.close_code: int = WSCloseCode.OK
        self.shell: Shell | None = None

    @property
    def protocol(self) -> asyncio.BaseProtocol | None:
        """What the bytes of the connection go to first."""
        transport = self._request.transport
        return transport.get_protocol() if transport is not None else None

    def write(self, data: bytes) -> None:
        self._out.append(data)
        self._out_size += len(data)
        self._wanted.set()
        if self._out_size > WRITE_HIGH and self.shell is not None:
            self.shell.pause_writing()

    def close(self) -> None:
        """Closes when everything is written."""
        self.closing = True
        self.may_read.set()
        self._wanted.set()

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
        """Write what there is, as long as the connection lives."""
        try:
            while self._out or not self.closing:
                await self._wanted.wait()
                self._wanted.clear()
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
            log.info("websocket gone: %s", error)
