"""The normal client: it has messages in a queue of its own, and checks that it is served as before the attacks.

It opens a new connection for every round, so that a broker that no longer accepts connections is detected.
"""

from __future__ import annotations

import ssl
import statistics
import time
from functools import partial
from typing import Final

from peeklock.client import ClientError, Message, connect
from tools.hostile.attack import AttackFailed, require
from tools.hostile.lines import TIMEOUT
from tools.hostile.victim import KEPT, LIVE

MESSAGES: Final = 100
ROUNDS: Final = 15
"""Rounds before the first attack, of which the median is the usual time."""
MAX_SLOWDOWN: Final = 20
"""The longest time of the best round after an attack, as a multiple of the usual time."""
RECOVERY_SECONDS: Final = 20.0
"""Rounds are repeated for so long until one is fast enough: other load of the machine ends, a defect does not."""


class NormalClient:
    """The normal client, with its messages and the usual time of a round."""

    def __init__(self, address: str, tls: ssl.SSLContext | None = None) -> None:
        self._connect = partial(connect, address, tls=tls, timeout=TIMEOUT)
        self._bodies = {number: f"kept {number}".encode() * 20 for number in range(MESSAGES)}
        with self._connect() as connection:
            sender = connection.sender(KEPT)
            for body in self._bodies.values():
                sender.send(Message(data=[body]))
        self.usual = statistics.median(self._round() for _ in range(ROUNDS))
        """The usual seconds of a round."""

    def check(self) -> float:
        """Return the best time of some rounds. AttackFailed if it is too long or a message is lost."""
        best = min(self._round() for _ in range(3))
        until = time.monotonic() + RECOVERY_SECONDS
        while best > self.usual * MAX_SLOWDOWN and time.monotonic() < until:
            best = min(best, self._round())
        require(
            best <= self.usual * MAX_SLOWDOWN,
            f"a client was served in {best:.3f} s, more than {MAX_SLOWDOWN} times the usual {self.usual:.3f} s",
        )
        self._count()
        return best

    def _round(self) -> float:
        """Connect, send, receive, complete and close; returns the seconds it took."""
        body = f"live {time.monotonic_ns()}".encode()
        before = time.monotonic()
        try:
            with self._connect() as connection:
                connection.sender(LIVE).send(Message(data=[body]))
                receiver = connection.receiver(LIVE, credit=1)
                (received,) = receiver.receive(1, timeout=TIMEOUT)
                receiver.accept(received, wait=True)
        except (ClientError, ValueError) as failure:
            raise AttackFailed(f"a client was not served: {failure}") from failure
        require(received.body == body, "a client received another message than the one it had sent")
        return time.monotonic() - before

    def _count(self) -> None:
        """Check that every message is stored unchanged."""
        found: list[bytes] = []
        try:
            with self._connect() as connection, connection.management(KEPT) as management:
                number = 1
                while page := management.peek(number):
                    found += [b"".join(each.data) for each in page]
                    number = _number(page[-1]) + 1
        except ClientError as failure:
            raise AttackFailed(f"a client could not peek its messages: {failure}") from failure
        require(found == list(self._bodies.values()), f"of {MESSAGES} messages {len(found)} are unchanged")


def _number(message: Message) -> int:
    annotations = {str(key): value for key, value in (message.message_annotations or {}).items()}
    return int(annotations["x-opt-sequence-number"])
