"""Names of clients in the log: address and port."""

from __future__ import annotations

import asyncio
import socket


def peer_name(transport: asyncio.BaseTransport | None) -> str:
    return name_of(transport.get_extra_info("peername") if transport is not None else None)


def is_encrypted(transport: asyncio.BaseTransport | None) -> bool:
    return transport is not None and transport.get_extra_info("sslcontext") is not None


def socket_name(connection: socket.socket) -> str:
    try:
        return name_of(connection.getpeername())
    except OSError:
        return name_of(None)  # the client has closed it already


def address_of(name: str) -> str:
    """Return the address in a client's name: without port, and without the suffix of a WebSocket."""
    return name.partition("(")[0].rpartition(":")[0]


def name_of(address: object) -> str:
    """Return the name of a client by its socket address."""
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unknown"
