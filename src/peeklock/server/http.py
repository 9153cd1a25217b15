"""What is spoken over HTTP on the sniffed connection: AMQP over WebSocket, and what others answer.

A page has a path of its own; who administers the namespace gets every other request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import WSCloseCode, WSMsgType, web

from peeklock.broker.namespace import Namespace
from peeklock.server.limits import Limits
from peeklock.server.shell import Shell, peer_name

log = logging.getLogger(__name__)

WEBSOCKET_PATH: Final = "/$servicebus/websocket"
SUBPROTOCOLS: Final = ("AMQPWSB10", "amqp")
MAX_BODY: Final = 1024 * 1024
MAX_WEBSOCKET_MESSAGE: Final = 4 * 1024 * 1024
WRITE_HIGH: Final = 256 * 1024
"""Bytes waiting to be written to a WebSocket above which nothing new is sent into it."""
WRITE_PART: Final = 256 * 1024
"""A WebSocket message that we write is no larger; where it is cut means nothing."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class HttpService:
    """Makes the protocol for each HTTP connection."""

    def __init__(
        self,
        namespace: Namespace,
        on_made: Callable[[Shell], None],
        on_gone: Callable[[Shell], None],
        limits: Limits,
        pages: Mapping[str, Handler],
        administration: Handler | None,
    ) -> None:
        self._namespace = namespace
        self._on_made = on_made
        self._on_gone = on_gone
        self._limits = limits
        self._websockets = 0
        app = web.Application(client_max_size=MAX_BODY)
        for path, page in pages.items():
            app.router.add_get(path, _unless_administered(page, administration))
        for path in (WEBSOCKET_PATH, WEBSOCKET_PATH + "/"):
            app.router.add_get(path, self._websocket)
        if administration is not None:
            app.router.add_route("*", "/{path:.*}", administration)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=limits.first_bytes_seconds,
            shutdown_timeout=limits.closing_seconds,
        )

    @property
    def connections(self) -> int:
        """How many HTTP connections are open, those not counted that became WebSockets and have a shell."""
        server = self._runner.server
        return len(server.connections) - self._websockets if server is not None else 0

    async def start(self) -> None:
        await self._runner.setup()

    async def stop(self) -> None:
        await self._runner.cleanup()

    def protocol(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        return server()

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
        shell = Shell(transport, self._namespace, name, self._on_gone, self._limits)
        transport.shell = shell
        self._on_made(shell)
        self._websockets += 1
        writer = asyncio.create_task(transport.write_all())
        try:
            while not transport.closing:
                await transport.may_read.wait()
                message = await socket.receive()
                if message.type is WSMsgType.TEXT:
                    transport.close_code = WSCloseCode.UNSUPPORTED_DATA
                if message.type is not WSMsgType.BINARY:
                    break
                shell.data_received(message.data)
        finally:
            self._websockets -= 1
            shell.lost()
            transport.close()
            await writer
        return socket


def _unless_administered(page: Handler, administration: Handler | None) -> Handler:
    """An entity may have the name of one of our pages; who administers it says a version of the interface."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if administration is not None and "api-version" in request.query:
            return await administration(request)
        return await page(request)

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
