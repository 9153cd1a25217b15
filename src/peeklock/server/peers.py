"""What a client is called in the log: the address it comes from."""

from __future__ import annotations

import asyncio
import socket


def peer_name(transport: asyncio.BaseTransport | None) -> str:
    return name_of(transport.get_extra_info("peername") if transport is not None else None)


def socket_name(connection: socket.socket) -> str:
    try:
        return name_of(connection.getpeername())
    except OSError:
        return name_of(None)  # gone again already


def name_of(address: object) -> str:
    """By a socket's address."""
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unknown"
