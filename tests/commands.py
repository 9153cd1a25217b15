"""The program as a user runs it: a process of its own, its output, its exit code."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from peeklock.client import Connection, connect
from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from serving import SOURCE, ServedBroker

SECONDS = 30


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PEEKLOCK_")}
    return {**kept, "PYTHONPATH": str(SOURCE), **more}


class Commands:
    """`peeklock` with the connection string of a broker in its environment."""

    def __init__(self, broker: ServedBroker) -> None:
        self.broker = broker
        self.connection_string = broker.connection_string

    def run(self, *arguments: str, stdin: str | bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self.command(*arguments),
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            env=self.environment(**more),
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "peeklock", *arguments]

    def environment(self, **more: str) -> dict[str, str]:
        return environment(**{"PEEKLOCK_CONNECTION_STRING": self.connection_string, **more})

    def ok(self, *arguments: str, stdin: str | bytes = b"") -> str:
        """What it prints when it does as it was told."""
        ended = self.run(*arguments, stdin=stdin)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.decode()

    def json(self, *arguments: str, stdin: str | bytes = b"") -> Any:
        """The one document that it prints."""
        (line,) = self.json_lines(*arguments, stdin=stdin)
        return line

    def json_lines(self, *arguments: str, stdin: str | bytes = b"") -> list[Any]:
        return [json.loads(line) for line in self.ok(*arguments, "--json", stdin=stdin).splitlines()]

    def refused(self, *arguments: str, stdin: str | bytes = b"", **more: str) -> tuple[int, str]:
        """The exit code and the one sentence of a command that does not do it."""
        ended = self.run(*arguments, stdin=stdin, **more)
        assert ended.stdout == b""
        (line,) = ended.stderr.decode().splitlines()
        assert line.startswith("peeklock: ")
        return ended.returncode, line.removeprefix("peeklock: ")

    # --- the world that they work on

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        with connect(self.connection_string, timeout=10) as connection:
            yield connection

    @contextmanager
    def administration(self) -> Iterator[AdministrationClient]:
        with AdministrationClient.from_connection_string(self.connection_string) as client:
            yield client

    def queue(self, **settings: bool | int | str) -> str:
        """A new queue."""
        with self.administration() as client:
            return client.create(Kind.QUEUE, f"queue-{uuid4().hex[:8]}", settings).name

    def topic(self, *subscriptions: str) -> str:
        """A new topic."""
        with self.administration() as client:
            topic = client.create(Kind.TOPIC, f"topic-{uuid4().hex[:8]}").name
            for name in subscriptions:
                client.create(Kind.SUBSCRIPTION, name, topic=topic)
        return topic

    def bodies(self, address: str) -> list[str]:
        """What can be peeked, and stays."""
        with self.connection() as connection, connection.management(address) as management:
            return [message.data[0].decode() for message in management.peek(1, 1000)]


def on_a_terminal(command: list[str], env: dict[str, str], typed: str = "") -> tuple[int, str]:
    """Run a command with a terminal on all three sides; its exit code and all that the terminal shows."""
    leader, follower = pty.openpty()
    with subprocess.Popen(command, stdin=follower, stdout=follower, stderr=follower, env=env) as process:
        os.close(follower)
        shown = b""
        try:
            os.write(leader, typed.encode())
            readable = select.poll()  # `select` refuses descriptors from 1024 on, which a process of many tests has
            readable.register(leader, select.POLLIN)
            while readable.poll(SECONDS * 1000):
                data = os.read(leader, 65536)
                if not data:
                    break
                shown += data
        except OSError:
            pass  # how Linux says that the other side has gone
        finally:
            os.close(leader)
    return process.returncode, shown.decode()
