"""Standard ports for brokers, several times on one machine.

Some SDKs dial fixed ports: 5671 for TLS, 443 for WebSocket and administration, 5672 for an emulator. To leave the SDKs
as they are, each lane gets these ports for itself: in a network namespace of its own, or, where none may be made, on a
loopback address of its own.
"""

from __future__ import annotations

import errno
import fcntl
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

PORT = 5672
FURTHER_PORTS = (5671, 443, 5300)

_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


class NoGround(Exception):
    """There are no standard ports to be had; `str()` says why."""


@dataclass(frozen=True)
class Ground:
    how: str
    """In words."""
    prefix: tuple[str, ...]
    """What a lane's command begins with."""
    address: Callable[[int], str]
    """Of the lane with that number."""


def find() -> Ground:
    """How lanes get standard ports on this machine; NoGround if they do not."""
    refusals: list[str] = []
    unshare = shutil.which("unshare")
    for prefix in ([unshare, "-rn"], [unshare, "-n"]) if unshare else ():
        tried = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return Ground("a network namespace for each lane", tuple(prefix), lambda lane: "127.0.0.1")
        refusals.append(f"'unshare {prefix[1]}' says: {tried.stderr.strip()}")
    if not unshare:
        refusals.append("there is no program 'unshare'")
    try:
        for port in (PORT, *FURTHER_PORTS):
            for lane in (0, 1):
                with socket.socket() as tried_socket:
                    tried_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    tried_socket.bind((_address(lane), port))
    except OSError as error:
        refusals.append(f"port {port} of {_address(lane)} cannot be had: {error.strerror}")
        if error.errno == errno.EACCES:
            refusals[-1] += " (ports below 1024 need the right to bind them)"
        raise NoGround(
            "The SDKs dial standard ports, and this machine gives neither a network namespace nor those ports: "
            + "; ".join(refusals)
            + "."
        ) from None
    return Ground("a loopback address for each lane", (), _address)


def _address(lane: int) -> str:
    return f"127.0.1.{lane + 1}"


def raise_loopback() -> None:
    """In a namespace of one's own the loopback is there, and down."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
