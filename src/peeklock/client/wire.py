"""A socket that blocks in `wait` only, with or without TLS. It knows nothing of AMQP."""

from __future__ import annotations

import selectors
import socket
import ssl
from typing import Final

from peeklock.amqp.errors import Condition
from peeklock.client.errors import ConnectionLost, Timeout

_READ_SIZE: Final = 256 * 1024
_MAX_READ: Final = 4 * _READ_SIZE


class Wire:
    """One TCP connection."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, timeout: float) -> None:
        self._unwritten = memoryview(b"")
        where = f"{host}:{port}"
        try:
            plain = socket.create_connection((host, port), timeout)
        except TimeoutError:
            raise Timeout(f"no connection to {where} within {timeout:g} seconds") from None
        except OSError as error:
            raise ConnectionLost(Condition.CONNECTION_FORCED, f"no connection to {where}: {error}") from None
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=host)
        except TimeoutError:
            plain.close()
            raise Timeout(f"no TLS session with {where} within {timeout:g} seconds") from None
        except OSError as error:
            plain.close()
            raise ConnectionLost(Condition.CONNECTION_FORCED, f"no TLS session with {where}: {error}") from None
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._watched = selectors.EVENT_READ

    @property
    def full(self) -> bool:
        """Whether bytes could not yet be written."""
        return len(self._unwritten) > 0

    def write(self, parts: list[bytes]) -> None:
        """Write as much as the socket accepts, in one call, and keep the rest."""
        if parts:
            data = b"".join(parts)
            self._unwritten = memoryview(bytes(self._unwritten) + data if self.full else data)
        while self.full:
            try:
                sent = self._socket.send(self._unwritten)
            except (BlockingIOError, InterruptedError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                break
            except OSError as error:
                raise _lost(error) from None
            self._unwritten = self._unwritten[sent:]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.full else 0)
        if events != self._watched:
            self._selector.modify(self._socket, events)
            self._watched = events

    def wait(self, seconds: float) -> bytes:
        """Wait until the socket is readable or writable, and return the bytes that were read."""
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            seconds = 0
        readable = False
        for _, events in self._selector.select(seconds):
            if events & selectors.EVENT_WRITE:
                self.write([])
            readable = bool(events & selectors.EVENT_READ)
        return self._read() if readable or isinstance(self._socket, ssl.SSLSocket) else b""

    def close(self) -> None:
        self._selector.close()
        self._socket.close()

    def _read(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while size < _MAX_READ:
            try:
                data = self._socket.recv(_READ_SIZE)
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError as error:
                if parts:
                    break
                raise _lost(error) from None
            if not data:
                if parts:
                    break
                raise ConnectionLost(Condition.CONNECTION_FORCED, "the peer closed the socket without an AMQP close")
            parts.append(data)
            size += len(data)
            if len(data) < _READ_SIZE and not isinstance(self._socket, ssl.SSLSocket):
                break  # a plain socket has no further bytes
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _lost(error: OSError) -> ConnectionLost:
    return ConnectionLost(Condition.CONNECTION_FORCED, f"the connection broke: {error}")
