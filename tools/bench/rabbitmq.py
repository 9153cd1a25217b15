"""A private RabbitMQ node for comparison: with its own folder and ports, on loopback, deleted afterwards.

Uses the scripts of an installed RabbitMQ (3.8 or newer) and nothing of an installed service: not its data, its
configuration, its cookie or its Erlang port mapper.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from peeklock.client import ClientError, connect
from tools.bench.brokers import QUEUE, Target
from tools.bench.interrupts import interrupts
from tools.bench.processes import Child, StartFailed, end, free_port, resident_bytes

_START_SECONDS: Final = 90.0
_USER: Final = "bench"
QUEUE_TYPES: Final = ("classic", "quorum")
# Distributions put a wrapper on the path that insists on a user of its own; the script behind it does not.
_FOLDERS: Final = (Path("/usr/lib/rabbitmq/bin"), Path("/usr/local/sbin"), Path("/opt/homebrew/sbin"))


def find_rabbitmq() -> Path | None:
    """Return the folder with RabbitMQ's scripts; None if it is not installed."""
    on_path = shutil.which("rabbitmq-server")
    folders = [*_FOLDERS, *([Path(on_path).resolve().parent] if on_path else [])]
    return next((folder for folder in folders if (folder / "rabbitmq-server").exists()), None)


def start_rabbitmq(scripts: Path, folder: Path, started: ExitStack) -> list[Target]:
    """Start a node; returns its two durable queues, a classic and a quorum queue."""
    if not (scripts / "rabbitmq-server").exists():
        raise StartFailed(f"there is no rabbitmq-server in {scripts}")
    node = Node(scripts, folder, {f"{QUEUE}-{kind}": kind for kind in QUEUE_TYPES}, started)
    node.start()
    idle = resident_bytes(node.pid)
    return [
        Target(
            name=f"{node.name} {kind}",
            url=node.url,
            address=f"{node.prefix}{QUEUE}-{kind}",
            pid=node.pid,
            idle_bytes=idle,
        )
        for kind in QUEUE_TYPES
    ]


class Node:
    """A node that can be stopped and started again on the same data."""

    def __init__(
        self,
        scripts: Path,
        folder: Path,
        queues: Mapping[str, str],
        started: ExitStack,
        erlang: Path | None = None,
    ) -> None:
        """`queues`: names and types. `erlang`: the folder of Erlang's programs, if not the system's."""
        self._scripts = scripts
        self._folder = folder
        self._queues = dict(queues)
        self._erlang = erlang
        self._pid_file = folder / "pid"
        self._children = ExitStack()
        self.port = free_port()
        self.user, self.password = _USER, secrets.token_hex(16)
        self.version: tuple[int, ...] = (0,)
        self.pid: int | None = None
        started.callback(self.stop)

    @property
    def url(self) -> str:
        return f"amqp://{self.user}:{self.password}@127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        """Set by the first start."""
        return f"RabbitMQ {'.'.join(map(str, self.version))}"

    @property
    def prefix(self) -> str:
        """The prefix of the address of a queue."""
        return "/queues/" if self.version[0] >= 4 else "/amq/queue/"

    def start(self) -> float:
        """Start the broker and wait until it accepts connections; returns the seconds it took."""
        environment = self._environment()
        # A private port mapper in the foreground: one started by the scripts would outlive them.
        mapper = shutil.which("epmd", path=f"{self._scripts}:{self._path()}")
        if mapper is None:
            raise StartFailed("epmd, which comes with Erlang, is not on the path")
        self._start([mapper], environment)
        if self.version == (0,):
            self.version = self._ask_version(environment)
        self._write_configuration()
        self._pid_file.unlink(missing_ok=True)
        before = time.monotonic()
        child = self._start([str(self._scripts / "rabbitmq-server")], environment)
        while not self._answers():
            if not child.running or time.monotonic() > before + _START_SECONDS:
                raise StartFailed(f"RabbitMQ did not start: {child.tail()}")
            time.sleep(0.05)
        self.pid = int(self._pid_file.read_text())
        return time.monotonic() - before

    def stop(self) -> None:
        self._children.close()
        if self._pid_file.exists():
            end(int(self._pid_file.read_text()))
            self._pid_file.unlink()  # the system may reuse the process id

    def _start(self, command: list[str], environment: dict[str, str]) -> Child:
        with interrupts.held():
            return self._children.enter_context(Child(command, log=self._folder / "start.log", environment=environment))

    def _answers(self) -> bool:
        if not self._pid_file.exists():
            return False
        try:
            connect(self.url, timeout=5).close()
        except ClientError:
            return False
        return True

    def _ask_version(self, environment: dict[str, str]) -> tuple[int, ...]:
        command = [str(self._scripts / "rabbitmqctl"), "version"]
        answer = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_START_SECONDS, check=False
        )
        found = re.search(r"^(\d+)\.(\d+)\.(\d+)", answer.stdout, re.MULTILINE)
        if found is None:
            raise StartFailed(f"{command[0]} version answered: {answer.stdout}{answer.stderr}")
        return tuple(int(part) for part in found.groups())

    def _environment(self) -> dict[str, str]:
        folder = str(self._folder)
        return {
            "PATH": self._path(),
            "HOME": folder,  # the folder of the Erlang cookie
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "peeklock-bench@localhost",
            "RABBITMQ_BASE": folder,
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_PID_FILE": str(self._pid_file),
            "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/rabbitmq-env.conf",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{folder}/advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/enabled_plugins",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }

    def _path(self) -> str:
        mappers = sorted(Path("/usr/lib/erlang").glob("erts-*/bin"))
        folders = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
        first = [str(self._erlang)] if self._erlang is not None else []
        return ":".join([*first, *folders, *map(str, mappers)])

    def _write_configuration(self) -> None:
        definitions = self._folder / "definitions.json"
        definitions.write_text(json.dumps(_definitions(self.password, self._queues)))
        lines = [
            f"listeners.tcp.1 = 127.0.0.1:{self.port}",
            f"load_definitions = {definitions}",
            "log.file.level = warning",
            "log.console = false",
        ]
        (self._folder / "rabbitmq.conf").write_text("".join(f"{line}\n" for line in lines))
        (self._folder / "rabbitmq-env.conf").write_text("")
        plugins = "rabbitmq_amqp1_0" if self.version[0] < 4 else ""  # AMQP 1.0 is built in from 4.0
        (self._folder / "enabled_plugins").write_text(f"[{plugins}].\n")


def _definitions(password: str, queues: Mapping[str, str]) -> dict[str, object]:
    salt = secrets.token_bytes(4)
    hashed = base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
    everything = {"configure": ".*", "write": ".*", "read": ".*"}
    return {
        "users": [
            {
                "name": _USER,
                "password_hash": hashed,
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": "administrator",
            }
        ],
        "vhosts": [{"name": "/"}],
        "permissions": [{"user": _USER, "vhost": "/", **everything}],
        "queues": [
            {
                "name": name,
                "vhost": "/",
                "durable": True,
                "auto_delete": False,
                "arguments": {"x-queue-type": kind},
            }
            for name, kind in queues.items()
        ],
    }
