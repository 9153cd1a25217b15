"""A TCP proxy in front of the broker that cuts connections after a number of AMQP frames, and bytes of the next frame.

Of AMQP it parses only the frame headers. It runs in a thread with its own event loop, to which calls are passed.
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
"""Seconds after which a connection is cut even if too few frames have passed."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where and how a connection is cut."""

    which: float
    """From 0 to 1: the position among the open connections, in the order in which they were opened."""
    from_broker: bool
    """The direction whose frames are counted."""
    frames: int
    into: int
    """Bytes of the next frame that are still forwarded."""
    reset: bool
    """Whether to end with RST, which loses bytes in flight, instead of FIN."""


class _Frames:
    """Finds the frames in a byte stream."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0
        """Bytes of the current frame that have not been forwarded."""

    def split(self, data: bytes) -> list[tuple[bytes, bool]]:
        """Split the bytes at frame boundaries; returns each piece with whether a frame begins with it."""
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
    """A client's connection, and the proxy's connection to the broker for it."""

    def __init__(self, client: asyncio.StreamWriter, broker: asyncio.StreamWriter) -> None:
        self._ends = (client, broker)
        self._cut: Cut | None = None
        self._frames = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def has_cut(self) -> bool:
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
    """The proxy. It listens on a free port of loopback from its construction until `stop`."""

    def __init__(self, broker_port: Callable[[], int]) -> None:
        self.port = 0
        self._broker_port = broker_port
        self._connections: list[_Connection] = []
        self._waiting: list[Cut] = []
        """Cuts for the next connections."""
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        self._started.wait()

    def cut(self, cut: Cut) -> None:
        """Cut one of the open connections, or the next one if none is open."""
        self._call(lambda: self._arm(cut))

    def cancel_cuts(self) -> None:
        """Cancel the cuts of connections that are not open yet."""
        self._call(self._waiting.clear)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _call(self, function: Callable[[], None]) -> None:
        async def run() -> None:
            function()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def _arm(self, cut: Cut) -> None:
        free = [connection for connection in self._connections if not connection.has_cut]
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
            pass  # the run has ended
        finally:
            self._connections.remove(connection)
