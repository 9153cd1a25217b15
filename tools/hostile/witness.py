"""The normal client: it has messages in a queue that nobody else touches, and wants to be served as ever.

It connects anew for every round, so that a broker that serves old connections only is found out.
"""

from __future__ import annotations

import ssl
import statistics
import time
from functools import partial
from typing import Final

from peeklock.client import ClientError, Message, connect
from tools.hostile.attack import AttackFailed, require
from tools.hostile.lines import PATIENCE
from tools.hostile.victim import KEPT, LIVE

MESSAGES: Final = 100
ROUNDS: Final = 15
"""By which the usual time is known."""
MANIFOLD: Final = 20
"""How many times the usual time the best round may take after an attack."""
RECOVERY_SECONDS: Final = 20.0
"""Rounds are made until one is as fast as that, or for so long: other work of the machine passes, a broken broker does
not."""


class Witness:
    """Knows what it has, and how long things usually take."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        self._connect = partial(connect, address, tls=tls, timeout=PATIENCE)
        self._bodies = {number: f"kept {number}".encode() * 20 for number in range(MESSAGES)}
        with self._connect() as connection:
            sender = connection.sender(KEPT)
            for body in self._bodies.values():
                sender.send(Message(data=[body]))
        self.usual = statistics.median(self._round() for _ in range(ROUNDS))
        """Seconds of a round."""

    def look(self) -> float:
        """How long a round takes now, at best; AttackFailed if that is too long or something is lost."""
        best = min(self._round() for _ in range(3))
        until = time.monotonic() + RECOVERY_SECONDS
        while best > self.usual * MANIFOLD and time.monotonic() < until:
            best = min(best, self._round())
        require(
            best <= self.usual * MANIFOLD,
            f"a client was served in {best:.3f} s, which is more than {MANIFOLD} times the usual {self.usual:.3f} s",
        )
        self._count()
        return best

    def _round(self) -> float:
        """Connect, send, receive, complete, leave: how long that takes."""
        body = f"live {time.monotonic_ns()}".encode()
        before = time.monotonic()
        try:
            with self._connect() as connection:
                connection.sender(LIVE).send(Message(data=[body]))
                receiver = connection.receiver(LIVE, credit=1)
                (received,) = receiver.receive(1, timeout=PATIENCE)
                receiver.accept(received, wait=True)
        except (ClientError, ValueError) as failure:
            raise AttackFailed(f"a client was not served: {failure}") from failure
        require(received.body == body, "a client got another message than the one it had sent")
        return time.monotonic() - before

    def _count(self) -> None:
        """Every message is there, as it was."""
        found: list[bytes] = []
        try:
            with self._connect() as connection, connection.management(KEPT) as management:
                number = 1
                while page := management.peek(number):
                    found += [b"".join(each.data) for each in page]
                    number = _number(page[-1]) + 1
        except ClientError as failure:
            raise AttackFailed(f"a client could not look at its messages: {failure}") from failure
        require(found == list(self._bodies.values()), f"of {MESSAGES} messages {len(found)} are left as they were")


def _number(message: Message) -> int:
    annotations = {str(key): value for key, value in (message.message_annotations or {}).items()}
    return int(annotations["x-opt-sequence-number"])
