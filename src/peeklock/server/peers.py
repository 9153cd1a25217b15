"""What a client is called in the log: the address it comes from."""

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
        return name_of(None)  # gone again already


def address_of(name: str) -> str:
    """The address in a client's name, without its port."""
    return name.partition("(")[0].rpartition(":")[0]


def name_of(address: object) -> str:
    """By a socket's address."""
    return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "unknown"
