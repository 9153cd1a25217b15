"""What is spoken over HTTP on the sniffed connection: health, and AMQP over WebSocket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from aiohttp import WSMsgType, web

from peeklock.broker.namespace import Namespace
from peeklock.server.shell import Shell

log = logging.getLogger(__name__)

WEBSOCKET_PATH: Final = "/$servicebus/websocket"
SUBPROTOCOLS: Final = ("AMQPWSB10", "amqp")
MAX_WEBSOCKET_MESSAGE: Final = 4 * 1024 * 1024
WRITE_HIGH: Final = 256 * 1024
"""Bytes waiting to be written to a WebSocket above which nothing new is sent into it."""


class HttpService:
    """Makes the protocol for each HTTP connection."""

    def __init__(
        self,
        namespace: Namespace,
        on_made: Callable[[Shell], None],
        on_gone: Callable[[Shell], None],
    ) -> None:
        self._namespace = namespace
        self._on_made = on_made
        self._on_gone = on_gone
        app = web.Application(client_max_size=1024 * 1024)
        app.router.add_get("/health", self._health)
        for path in (WEBSOCKET_PATH, WEBSOCKET_PATH + "/"):
            app.router.add_get(path, self._websocket)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False)

    async def start(self) -> None:
        await self._runner.setup()

    async def stop(self) -> None:
        await self._runner.cleanup()

    def protocol(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        return server()

    async def _health(self, request: web.Request) -> web.Response:
        failure = self._namespace.journal.failure
        if failure is not None:
            return web.json_response({"status": "unhealthy", "message": str(failure)}, status=503)
        return web.json_response({"status": "healthy", "message": "Service is healthy."})

    async def _websocket(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=SUBPROTOCOLS, max_msg_size=MAX_WEBSOCKET_MESSAGE, compress=False)
        if not socket.can_prepare(request):
            return web.Response(status=426, text="This address speaks AMQP over WebSocket only.\n")
        await socket.prepare(request)
        transport = WebSocketTransport(socket)
        name = f"{request.remote}(websocket)"
        shell = Shell(transport, self._namespace, name, self._on_gone)
        transport.shell = shell
        self._on_made(shell)
        writer = asyncio.create_task(transport.write_all())
        try:
            while not transport.closing:
                await transport.may_read.wait()
                message = await socket.receive()
                if message.type is not WSMsgType.BINARY:
                    break
                shell.data_received(message.data)
        finally:
            shell.lost()
            transport.close()
            await writer
        return socket


class WebSocketTransport:
    """A WebSocket as the byte stream that a shell writes to."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._out: list[bytes] = []
        self._out_size = 0
        self._wanted = asyncio.Event()
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.closing = False
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

    def pause_reading(self) -> None:
        self.may_read.clear()

    def resume_reading(self) -> None:
        self.may_read.set()

    async def write_all(self) -> None:
        try:
            while self._out or not self.closing:
                await self._wanted.wait()
                self._wanted.clear()
                if not self._out:
                    continue
                data = b"".join(self._out)
                self._out.clear()
                await self._socket.send_bytes(data)
                was_full = self._out_size > WRITE_HIGH
                self._out_size -= len(data)
                if was_full and self._out_size <= WRITE_HIGH and self.shell is not None:
                    self.shell.resume_writing()
            await self._socket.close()
        except (ConnectionError, RuntimeError) as error:
            log.info("websocket gone: %s", error)
