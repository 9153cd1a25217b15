"""A TCP proxy between a store and PostgreSQL, which loses answers or all bytes when a test asks for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread


class Proxy:
    def __init__(self, port: int) -> None:
        self.connections = 0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._is_muted = False
        self._flows = Event()
        self._flows.set()
        self._sockets: list[socket.socket] = []
        self._threads = [Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def mute(self) -> None:
        """Lose the answers of the server on all present and later connections, until `cut`."""
        self._is_muted = True

    def block(self) -> None:
        """Hold back all bytes in both directions, until `unblock`."""
        self._flows.clear()

    def unblock(self) -> None:
        self._flows.set()

    def cut(self) -> None:
        """Close all connections; later ones work."""
        self._is_muted = False
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._sockets.clear()

    def close(self) -> None:
        self.unblock()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except ConnectionRefusedError:
                client.close()
                continue
            except OSError:
                return
            self.connections += 1
            self._sockets += [client, server]
            for source, sink, is_answer in ((client, server, False), (server, client, True)):
                thread = Thread(target=self._pump, args=(source, sink, is_answer), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                if not (is_answer and self._is_muted):
                    sink.sendall(data)
        for each in source, sink:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
