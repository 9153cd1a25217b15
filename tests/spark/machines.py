"""Simulated machines for tests: each has its own network, hosts file and name, and can be cut off or killed.

They are namespaces of Linux's kernel (network, mount, host name), joined by a bridge; files and processes are those of
this machine. Needs root. Nothing of it outlives the processes that hold the namespaces.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from toolchains import missing, toolchain

NETWORK = "10.77.0"
_CLONE_NEWNET = 0x40000000
_HOLD = 'exec sleep "$0"'
_DAY_SECONDS = "86400"


class Namespaces:
    """An idle process that holds its own Linux namespaces."""

    def __init__(self, *kinds: str) -> None:
        unshare, self._nsenter = toolchain("unshare"), toolchain("nsenter")
        toolchain("ip")
        self._kinds = [f"--{kind}" for kind in kinds]
        self.process = subprocess.Popen(
            [unshare, *self._kinds, "sh", "-c", f"echo ready; {_HOLD}", _DAY_SECONDS],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline() != "ready\n":
            self.end()
            missing("namespaces of the kernel cannot be made: machines are simulated as root only")

    def command(self, *command: str) -> list[str]:
        """Return the command that runs a command in the namespaces."""
        return [self._nsenter, "--target", str(self.process.pid), *self._kinds, "--", *command]

    def run(self, *command: str) -> None:
        subprocess.run(self.command(*command), check=True, capture_output=True, timeout=30)

    def members(self) -> list[int]:
        """Return all processes in this network, except the process that holds it."""
        network = os.stat(f"/proc/{self.process.pid}/ns/net").st_ino
        assert network != os.stat("/proc/self/ns/net").st_ino  # or else they would be all of this machine's
        found = []
        for each in Path("/proc").glob("[0-9]*"):
            with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if int(each.name) != self.process.pid and (each / "ns" / "net").stat().st_ino == network:
                    found.append(int(each.name))
        return found

    def kill_all(self) -> None:
        """Kill all of them, and processes that they start meanwhile."""
        until = time.monotonic() + 30
        while members := self.members():
            for each in members:
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            assert time.monotonic() < until
            time.sleep(0.05)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Machine(Namespaces):
    """One machine on the network."""

    def __init__(self, name: str, number: int, switch: Namespaces, folder: Path) -> None:
        super().__init__("net", "mount", "uts")
        self.name = name
        self.address = f"{NETWORK}.{number}"
        self.folder = folder
        self._switch = switch
        self._port = f"port{number}"
        self.run("hostname", name)
        self.run("ip", "link", "set", "lo", "up")
        link = ("ip", "link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns")
        switch.run(*link, str(self.process.pid))
        switch.run("ip", "link", "set", self._port, "master", "bridge", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")

    def know(self, hosts: Mapping[str, str]) -> None:
        """Add names to the hosts file of this machine only."""
        file = self.folder / "hosts"
        file.write_text("127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in hosts.items()))
        self.run("mount", "--bind", str(file), "/etc/hosts")

    def plug(self, *, into: bool) -> None:
        """Connect or disconnect the network; open connections get no notice."""
        self._switch.run("ip", "link", "set", self._port, "up" if into else "down")

    def start(self, command: Sequence[str], environment: Mapping[str, str], **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(*command), env=dict(environment), text=True, **options)

    @contextmanager
    def network(self) -> Iterator[None]:
        """Create this thread's sockets in the network of the machine."""
        libc = ctypes.CDLL(None, use_errno=True)
        with (
            Path("/proc/thread-self/ns/net").open() as own,
            Path(f"/proc/{self.process.pid}/ns/net").open() as theirs,
        ):
            assert libc.setns(theirs.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            try:
                yield
            finally:
                assert libc.setns(own.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())


@contextmanager
def machines(folder: Path, *names: str) -> Iterator[dict[str, Machine]]:
    """Machines that resolve each other's names."""
    switch = Namespaces("net")
    found: dict[str, Machine] = {}
    try:
        switch.run("ip", "link", "add", "bridge", "type", "bridge")
        switch.run("ip", "link", "set", "bridge", "up")
        for number, name in enumerate(names, 1):
            (folder / name).mkdir()
            found[name] = Machine(name, number, switch, folder / name)
        for each in found.values():
            each.know({name: machine.address for name, machine in found.items()})
        yield found
    finally:
        for each in found.values():
            each.kill_all()
            each.end()
        switch.end()
