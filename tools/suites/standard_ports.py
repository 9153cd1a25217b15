"""Give several brokers on one machine the standard ports.

Some SDKs dial fixed ports: 5671 for TLS, 443 for WebSocket and administration, 5672 for an emulator. So that the SDKs
need no change, each lane gets these ports in a separate network namespace, or, if namespaces are not permitted, on a
separate loopback address.
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


class PortsUnavailable(Exception):
    """Lanes cannot have the standard ports on this machine; `str()` is the reason."""


@dataclass(frozen=True)
class PortIsolation:
    how: str
    """A description for the report."""
    prefix: tuple[str, ...]
    """The start of a lane's command."""
    address: Callable[[int], str]
    """The address of the lane with that number."""


def find() -> PortIsolation:
    """Find out how lanes can have the standard ports on this machine. Raises PortsUnavailable."""
    refusals: list[str] = []
    unshare = shutil.which("unshare")
    for prefix in ([unshare, "-rn"], [unshare, "-n"]) if unshare else ():
        tried = subprocess.run([*prefix, "true"], capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return PortIsolation("a network namespace for each lane", tuple(prefix), lambda lane: "127.0.0.1")
        refusals.append(f"'unshare {prefix[1]}' failed: {tried.stderr.strip()}")
    if not unshare:
        refusals.append("there is no program 'unshare'")
    try:
        for port in (PORT, *FURTHER_PORTS):
            for lane in (0, 1):
                with socket.socket() as tried_socket:
                    tried_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    tried_socket.bind((_address(lane), port))
    except OSError as error:
        refusals.append(f"port {port} of {_address(lane)} cannot be bound: {error.strerror}")
        if error.errno == errno.EACCES:
            refusals[-1] += " (ports below 1024 require the right to bind them)"
        raise PortsUnavailable(
            "The SDKs dial standard ports, and this machine permits neither a network namespace nor those ports: "
            + "; ".join(refusals)
            + "."
        ) from None
    return PortIsolation("a loopback address for each lane", (), _address)


def _address(lane: int) -> str:
    return f"127.0.1.{lane + 1}"


def raise_loopback() -> None:
    """Enable the loopback interface, which is down in a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
