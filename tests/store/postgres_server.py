"""Real PostgreSQL servers for tests: each in a temporary folder, on a port of its own, stopped with the test process.

PostgreSQL does not run as root, so as root the server runs as another user, who owns the folder. Syncs are off unless a
test asks for them: only a crash of the machine could tell the difference.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import psycopg
from psycopg.conninfo import make_conninfo

from toolchains import missing

USER = "peeklock"
SECONDS = 60.0
"""The deadline of everything that tests wait for."""

_SETTINGS = {
    "shared_buffers": "32MB",
    "fsync": "off",
    "listen_addresses": "127.0.0.1",
    "log_min_messages": "warning",
    "max_connections": "60",
    "max_wal_senders": "5",
    "autovacuum": "off",
}


def wait_until(condition: Callable[[], object], what: str, seconds: float = SECONDS) -> None:
    """Check the condition until it holds. Fail after the deadline."""
    end = monotonic() + seconds
    while not condition():
        assert monotonic() < end, f"not within {seconds} s: {what}"
        sleep(0.01)


def program(name: str) -> str:
    """Return the path of a program of PostgreSQL, from the search path or where Debian installs it."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parts[4]), reverse=True)
    if initdb := shutil.which("initdb"):
        folders.insert(0, Path(initdb).resolve().parent)
    for folder in folders:
        if (folder / name).exists():
            return str(folder / name)
    missing(f"'{name}' of PostgreSQL is not installed on this machine")


class Server:
    """One server. `folder` has its data, its socket and its log."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "log"
        self.port = _free_port()
        self._settings = {**_SETTINGS, "port": str(self.port), "unix_socket_directories": str(folder), **settings}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return make_conninfo(host="127.0.0.1", port=self.port, user=USER, dbname="postgres")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def initialize(self) -> None:
        self.run("initdb", "-D", str(self.data), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    def copy(self, primary: Server) -> None:
        """Make this server a standby of the other."""
        self.run("pg_basebackup", "-d", primary.url, "-D", str(self.data), "-R", "-X", "stream", "-c", "fast")

    def start(self) -> None:
        options = [word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_as_owner(die_with_parent=True), program("postgres"), "-D", str(self.data), *options],
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )
        wait_until(self._answers, f"the server starts, see {self.log}")

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT ends all sessions in good order, SIGQUIT is a crash."""
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(how)
            self._process.wait(SECONDS)
            self._process = None

    def kill(self) -> None:
        """Kill all processes of the server."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)  # so that it starts no more processes
        children = self._children()
        for pid in [self._process.pid, *children]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(SECONDS)
        wait_until(lambda: not any(map(_runs, children)), "the processes end, which share memory")
        self._process = None

    def freeze(self) -> None:
        """Stop all processes of the server from running, until `thaw`."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def promote(self) -> None:
        self.run("pg_ctl", "promote", "-w", "-D", str(self.data))

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.url, autocommit=True)

    def query(self, statement: str, *parameters: object) -> list[tuple[object, ...]]:
        with self.connect() as connection:
            cursor = connection.execute(statement, parameters)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def run(self, name: str, *arguments: str) -> None:
        outcome = subprocess.run(
            [*_as_owner(), program(name), *arguments], capture_output=True, text=True, check=False, cwd=self.folder
        )
        assert outcome.returncode == 0, f"{name}: {outcome.stdout}{outcome.stderr}"

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()
        with suppress(psycopg.OperationalError):
            self.connect().close()
            return True
        return False

    def _signal_all(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the server: each has a process group of its own, and the same parent."""
        assert self._process is not None
        for pid in [self._process.pid, *self._children()]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _children(self) -> list[int]:
        assert self._process is not None
        leader = self._process.pid
        return [int(pid) for pid in Path(f"/proc/{leader}/task/{leader}/children").read_text().split()]


@contextmanager
def make_server(settings: dict[str, str] | None = None) -> Iterator[Server]:
    """Start a new server. Afterwards its folder is removed."""
    with _folder() as folder:
        server = Server(folder, settings or {})
        server.initialize()
        try:
            server.start()
            yield server
        finally:
            server.stop(signal.SIGQUIT)


@contextmanager
def make_standby(primary: Server, name: str = "standby") -> Iterator[Server]:
    """Start a streaming standby of the primary. It is synchronous if the primary's settings name it."""
    with _folder() as folder:
        standby = Server(folder, {"cluster_name": name})
        standby.copy(primary)
        try:
            standby.start()
            yield standby
        finally:
            standby.stop(signal.SIGQUIT)


@contextmanager
def _folder() -> Iterator[Path]:
    # Not in pytest's temporary folder, which other users cannot enter.
    folder = Path(tempfile.mkdtemp(prefix="peeklock-postgres-"))
    try:
        if owner := _owner():
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _owner() -> pwd.struct_passwd | None:
    """Return the user that runs the server; None for the user of the tests."""
    if os.geteuid() != 0:
        return None
    for name in "postgres", "nobody":
        with suppress(KeyError):
            return pwd.getpwnam(name)
    missing("there is no user to run PostgreSQL, which refuses to run as root")


def _as_owner(*, die_with_parent: bool = False) -> list[str]:
    setpriv = shutil.which("setpriv")
    command: list[str] = []
    if owner := _owner():
        if setpriv is None:
            missing("'setpriv' is not installed on this machine")
        command = [f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"]
    if die_with_parent and setpriv is not None:
        command.append("--pdeathsig=QUIT")
    return [setpriv, *command] if setpriv is not None and command else []


def _runs(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
