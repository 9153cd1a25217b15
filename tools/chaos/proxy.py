"""A TCP proxy before the broker that cuts connections: after so many AMQP frames, and so many bytes into the next.

Knows of AMQP only where frames end. One thread with an event loop of its own; what others ask of it they ask there.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

_READ: Final = 64 * 1024
_HEADER: Final = b"AMQP"
_PATIENCE: Final = 1.5
"""Seconds after which a connection on which nothing passes is cut anyway."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How a connection ends."""

    which: float
    """From 0 to 1: of the connections there are, in the order of their making."""
    from_broker: bool
    """The direction whose frames are counted."""
    frames: int
    into: int
    """Bytes of the frame after those that still pass."""
    reset: bool
    """By RST, so that what is on its way is lost, rather than by FIN."""


class _Frames:
    """Where frames end in a stream of bytes."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        """Bytes of the frame that have not passed."""

    def split(self, data: bytes) -> list[tuple[bytes, bool]]:
        """The bytes in pieces, each with whether a frame begins with it."""
        pieces: list[tuple[bytes, bool]] = []
        data = self._head + data
        self._head = b""
        while data:
            begins = not self._left
            if begins:
                if len(data) < 8:
                    self._head = data
                    break
                self._left = 8 if data.startswith(_HEADER) else max(8, struct.unpack_from(">I", data)[0])
            piece, data = data[: self._left], data[self._left :]
            self._left -= len(piece)
            pieces.append((piece, begins))
        return pieces


class _Connection:
    """One client's connection and ours to the broker for it."""

    def __init__(self, client: asyncio.StreamWriter, broker: asyncio.StreamWriter) -> None:
        self._ends = (client, broker)
        self._cut: Cut | None = None
        self._frames = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_doomed(self) -> bool:
        return self._cut is not None

    def arm(self, cut: Cut) -> None:
        self._cut = cut
        self._timer = asyncio.get_running_loop().call_later(_PATIENCE, self._end, cut.reset)

    async def pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, from_broker: bool) -> None:
        frames = _Frames()
        with suppress(OSError):
            while data := await reader.read(_READ):
                for piece, begins in frames.split(data):
                    cut = self._cut
                    if cut is not None and cut.from_broker is from_broker and begins:
                        self._frames += 1
                        if self._frames > cut.frames:
                            writer.write(piece[: cut.into])
                            self._end(cut.reset)
                            return
                    writer.write(piece)
                await writer.drain()
        self._end(False)

    def _end(self, reset: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for writer in self._ends:
            if reset:
                sock: socket.socket | None = writer.get_extra_info("socket")
                if sock is not None:
                    with suppress(OSError):
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()
            else:
                writer.close()


class Proxy:
    """Listens on a free port of the loopback address, from when it is made until `stop`."""

    def __init__(self, broker_port: Callable[[], int]) -> None:
        self.port = 0
        self._broker_port = broker_port
        self._connections: list[_Connection] = []
        self._waiting: list[Cut] = []
        """For connections that are not made yet."""
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        self._started.wait()

    def cut(self, cut: Cut) -> None:
        """Have one of the connections cut, or the next one if there is none."""
        self._call(lambda: self._arm(cut))

    def relent(self) -> None:
        """No connection that is made from now on is cut."""
        self._call(self._waiting.clear)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _call(self, function: Callable[[], None]) -> None:
        async def run() -> None:
            function()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _arm(self, cut: Cut) -> None:
        free = [connection for connection in self._connections if not connection.is_doomed]
        if free:
            free[int(cut.which * len(free))].arm(cut)
        else:
            self._waiting.append(cut)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_broker, to_broker = await asyncio.open_connection("127.0.0.1", self._broker_port())
        except OSError:
            writer.close()
            return
        connection = _Connection(writer, to_broker)
        self._connections.append(connection)
        if self._waiting:
            connection.arm(self._waiting.pop(0))
        try:
            await asyncio.gather(
                connection.pump(reader, to_broker, from_broker=False),
                connection.pump(from_broker, writer, from_broker=True),
            )
        except asyncio.CancelledError:
            pass  # the run is over
        finally:
            self._connections.remove(connection)
