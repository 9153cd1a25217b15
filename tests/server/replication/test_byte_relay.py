"""The relay: bytes in both directions, held connections, limits, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
import uvloop

from peeklock.broker.agenda import ManualClock
from peeklock.limits.server import Limits
from peeklock.server.admission import Admission
from peeklock.server.replication.relay import BUFFER_BYTES, Relay

SECONDS = 20.0
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Bench:
    """A relay, and a server as the active node."""

    def __init__(self, limits: Limits, hold_seconds: float) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.admission = Admission(limits, ManualClock())
        self.relay = Relay([self.listening], self.admission, hold_seconds)
        self.relay.open()
        self._servers: list[asyncio.Server] = []
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, handle: Serve, epoch: int = 1) -> tuple[str, int]:
        """Start an active node, and tell the relay about it."""
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        self._servers.append(server)
        target: tuple[str, int] = server.sockets[0].getsockname()
        self.relay.set_target(epoch, target)
        return target

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.listening.getsockname())
        self._writers.append(writer)
        return reader, writer

    async def wait_until_empty(self) -> None:
        await until(lambda: not (self.relay.held or self.relay.relayed or self.admission.open))

    async def close(self) -> None:
        for writer in self._writers:
            writer.close()
        self.relay.close()
        await self.wait_until_empty()
        for server in self._servers:
            server.close()
        self.listening.close()


async def until(condition: Callable[[], object]) -> None:
    end = asyncio.get_running_loop().time() + SECONDS
    while not condition():
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.005)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


def run(test: Callable[[Bench], Coroutine[Any, Any, None]], hold_seconds: float = 60.0, **limits: Any) -> None:
    async def main() -> None:
        bench = Bench(Limits(**limits), hold_seconds)
        try:
            async with asyncio.timeout(SECONDS):
                await test(bench)
        finally:
            await bench.close()

    uvloop.run(main())


def test_bytes_pass_unchanged_in_both_directions() -> None:
    async def test(bench: Bench) -> None:
        await bench.serve(echo)
        sent = bytes(range(256)) * 4096
        reader, writer = await bench.connect()
        writer.write(sent)
        writer.write_eof()
        assert await reader.read(-1) == sent
        writer.close()
        await bench.wait_until_empty()

    run(test)


def test_a_node_that_speaks_first_is_heard() -> None:
    async def test(bench: Bench) -> None:
        async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"hello")
            writer.close()

        await bench.serve(greet)
        reader, _ = await bench.connect()
        assert await reader.read(-1) == b"hello"
        await bench.wait_until_empty()

    run(test)


def test_a_connection_is_held_until_a_node_is_active() -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(b"early")
        await until(lambda: bench.relay.held)
        await bench.serve(echo)
        assert await reader.readexactly(5) == b"early"
        assert (bench.relay.held, bench.relay.relayed) == (0, 1)

    run(test)


def test_a_connection_is_held_while_the_active_node_refuses_connections() -> None:
    async def test(bench: Bench) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            dead = free.getsockname()
        bench.relay.set_target(1, dead)
        reader, writer = await bench.connect()
        writer.write(b"early")
        await until(lambda: bench.relay.held)
        await bench.serve(echo, epoch=2)
        assert await reader.readexactly(5) == b"early"

    run(test)


def test_a_held_connection_is_closed_when_its_time_is_over() -> None:
    async def test(bench: Bench) -> None:
        reader, _ = await bench.connect()
        assert await reader.read() == b""
        await bench.wait_until_empty()

    run(test, hold_seconds=0.05)


def test_a_held_connection_that_its_client_closes_is_forgotten() -> None:
    async def test(bench: Bench) -> None:
        _, writer = await bench.connect()
        await until(lambda: bench.relay.held)
        writer.close()
        await bench.wait_until_empty()

    run(test)


def test_held_connections_are_handed_over_unread() -> None:
    async def test(bench: Bench) -> None:
        _, writer = await bench.connect()
        writer.write(b"early")
        await until(lambda: bench.relay.held)
        (connection,) = bench.relay.hand_over()
        assert (await asyncio.get_running_loop().sock_recv(connection, 5)) == b"early"
        connection.close()
        await bench.wait_until_empty()

    run(test)


def test_relayed_connections_are_cut_when_the_epoch_changes_and_only_then() -> None:
    async def test(bench: Bench) -> None:
        target = await bench.serve(echo)
        reader, writer = await bench.connect()
        writer.write(b"1")
        assert await reader.readexactly(1) == b"1"
        bench.relay.set_target(1, target)
        writer.write(b"2")
        assert await reader.readexactly(1) == b"2"
        bench.relay.set_target(2, target)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        await bench.wait_until_empty()

    run(test)


def test_a_side_that_reads_nothing_stops_the_other_one_and_memory_is_bounded() -> None:
    async def test(bench: Bench) -> None:
        release = asyncio.Event()
        received = 0

        async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal received
            await release.wait()
            while data := await reader.read(1 << 20):
                received += len(data)
            writer.close()

        await bench.serve(stall)
        _, writer = await bench.connect()
        total = 64 << 20
        writer.write(bytes(total))
        writer.write_eof()
        await until(lambda: bench.relay.relayed)
        (pair,) = bench.relay._pairs
        upstream = pair.upstream._transport
        assert upstream is not None
        await until(lambda: upstream.get_write_buffer_size() > BUFFER_BYTES)
        client = pair.client._transport
        assert client is not None
        assert not client.is_reading()
        assert upstream.get_write_buffer_size() < 4 * BUFFER_BYTES
        release.set()
        await until(lambda: received == total)
        await bench.wait_until_empty()

    run(test)


def test_connections_beyond_the_limit_are_closed_also_those_of_the_reserve() -> None:
    async def test(bench: Bench) -> None:
        await bench.serve(echo)
        kept = [await bench.connect() for _ in range(3)]
        await until(lambda: bench.relay.relayed == 3)
        reader, _ = await bench.connect()
        assert await reader.read() == b""
        for _, writer in kept:
            writer.close()
        await bench.wait_until_empty()
        reader, writer = await bench.connect()
        writer.write(b"again")
        assert await reader.readexactly(5) == b"again"

    run(test, max_connections=3)


def test_a_client_that_is_reset_ends_the_connection_to_the_active_node() -> None:
    async def test(bench: Bench) -> None:
        ended = asyncio.Event()

        async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                await reader.read()
            ended.set()
            writer.close()

        await bench.serve(wait)
        _, writer = await bench.connect()
        await until(lambda: bench.relay.relayed)
        writer.transport.abort()
        await ended.wait()
        await bench.wait_until_empty()

    run(test)
