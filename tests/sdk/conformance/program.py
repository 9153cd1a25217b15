"""The program of an SDK: a process that executes single commands with the SDK, concurrently.

Both sides send JSON lines. The program starts with one line; then

    in   {"id": 1, "call": "send", "sender": "h2", "messages": [...]}
    out  {"id": 1, "value": ...}   or   {"id": 1, "error": {"kind": "lock-lost", "text": ...}}

The program keeps what it opens or receives, and returns a handle. `clients.py` has all commands and their arguments.
The kind of an error is the same word for every SDK that has a class, code or reason for it, and otherwise the name of
the exception: a scenario that expects the word shows that an application can distinguish the error. The text is the
message that an application can read; `trace` may have the place where it was raised, and is only shown.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from conformance.sdks import Command

PATIENCE = 90.0
"""Seconds after which a call counts as unanswered: longer than the time-outs of all SDKs."""


class SdkError(Exception):
    """An exception of the SDK."""

    def __init__(self, kind: str, text: str, trace: str = "") -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text
        self.trace = trace


class ProgramFailed(Exception):
    """The program has ended or does not answer; it cannot be used any more."""


class Program:
    """The process of the program."""

    def __init__(self, command: Command) -> None:
        environment = {**os.environ, **command.environment}
        self._process = subprocess.Popen(
            command.arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._turn = threading.Lock()
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise ProgramFailed(f"the program ended with code {self._process.wait()}")
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, call: str, **details: Any) -> Future[Any]:
        """Start a command; the future has its value, or SdkError."""
        future: Future[Any] = Future()
        number = next(self._numbers)
        line = json.dumps({"id": number, "call": call, **details})
        with self._turn:
            self._waiting[number] = future
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
            except OSError as error:
                raise ProgramFailed(f"the program has ended: {error}") from error
        return future

    def call(self, call: str, **details: Any) -> Any:
        """Execute a command and return its value."""
        return result(self.start(call, **details), call)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # of what it was told last
            self._process.stdin.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        why = "the program ended"
        with self._process.stdout as lines:
            for line in lines:
                try:
                    heard = json.loads(line)
                    future = self._waiting.pop(heard["id"])
                except (ValueError, KeyError):
                    why = f"the program said what is no answer: {line.strip()[:300]}"
                    break
                if "error" in heard:
                    future.set_exception(SdkError(**heard["error"]))
                else:
                    future.set_result(heard.get("value"))
        with self._turn:
            for future in self._waiting.values():
                future.set_exception(ProgramFailed(why))


def result(future: Future[Any], what: str, patience: float = PATIENCE) -> Any:
    """Return the value, or raise after that many seconds."""
    try:
        return future.result(timeout=patience)
    except TimeoutError:
        raise ProgramFailed(f"'{what}' was not answered within {patience:.0f} seconds") from None
