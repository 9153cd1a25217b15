"""Receives up to a limit from one entity, with or without sessions. The caller decides what happens to the messages."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from peeklock.amqp.errors import Condition
from peeklock.client import ClientError, LinkClosed, ReceivedMessage, ReceiveMode, Receiver
from peeklock.client.connection import SESSION_FILTER
from peeklock.spark.offsets import Claim, Limit
from peeklock.spark.options import Options
from peeklock.spark.reach import Reach

RECEIVED_AT_ONCE: Final = 1000
GATHER_S: Final = 0.005
"""How long to wait for more messages that can be settled together with the last ones."""
BYTES_AT_ONCE: Final = 4 * 1024 * 1024
"""Approximate size of the messages received at a time, estimated from earlier messages."""
SESSIONS_AT_ONCE: Final = 200
"""Sessions locked at a time; each needs a link."""

SESSION_WAIT_S: Final = 1.0
"""Time-out for the first message of a session. The session was accepted because it has messages."""

Take = Callable[[Receiver, str | None, list[ReceivedMessage]], bool]
"""Adds messages of a session (or of none) to the claim; returns whether this receiver should receive more."""


class Intake:
    """Receives from the entity of a `Reach`."""

    def __init__(self, options: Options, reach: Reach, mode: ReceiveMode) -> None:
        self._wait_s = options.max_wait_s
        self._reach = reach
        self._mode = mode
        self._has_sessions: bool | None = None
        self._message_size = 1024
        """The estimated size of a message."""

    @property
    def has_sessions(self) -> bool:
        """Whether the entity requires sessions. It then refuses a receiver without a session."""
        if self._has_sessions is None:
            try:
                self._reach.receiver(self._mode)
                self._has_sessions = False
            except LinkClosed as refusal:
                if refusal.condition != Condition.NOT_ALLOWED:
                    raise
                self._has_sessions = True
        return self._has_sessions

    def fill(self, claim: Claim, limit: Limit, wait_s: float, take: Take) -> None:
        """Receive until the claim is full. Wait `wait_s` for a first message, and then a little for more.

        Returns when the peer has confirmed what `take` did with the messages.
        """
        if self.has_sessions:
            self._fill_by_session(claim, limit, wait_s, take)
        else:
            self._fill_from(self._reach.receiver(self._mode), None, claim, limit, wait_s, take)

    def _fill_from(
        self, receiver: Receiver, session_id: str | None, claim: Claim, limit: Limit, wait_s: float, take: Take
    ) -> None:
        deadline = time.monotonic() + wait_s
        is_first = True
        wants_more = True
        while wants_more and claim.has_room(limit):
            messages = self._receive(receiver, self._room(claim, limit), max(0.0, deadline - time.monotonic()))
            messages = messages or _rest(receiver)
            if not messages:
                break
            if is_first:
                is_first = False
                deadline = time.monotonic() + (self._wait_s if session_id is None else 0.0)
            wants_more = take(receiver, session_id, messages)
            self._message_size = max(1, claim.size // claim.count) if claim.count else self._message_size
        rest = _rest(receiver)
        if rest:  # what there is no room for; the caller takes them, or gives them back
            take(receiver, session_id, rest)
        receiver.confirm()

    def _receive(self, receiver: Receiver, room: int, timeout: float) -> list[ReceivedMessage]:
        """Receive many at a time, with the next on their way, and never more than fit into the claim."""
        most = min(room, self._at_once(RECEIVED_AT_ONCE))
        receiver.credit = min(room - most, most)
        messages = receiver.receive(most, timeout)
        while messages and len(messages) < most:
            with suppress(ClientError):  # the received messages may have been removed; the next call fails too
                more = receiver.receive(most - len(messages), GATHER_S)
                if more:
                    messages += more
                    continue
            break
        return messages

    def _fill_by_session(self, claim: Claim, limit: Limit, wait_s: float, take: Take) -> None:
        held: list[Receiver] = []  # until the end, or the next free session would be the same again
        try:
            while claim.has_room(limit) and len(held) < SESSIONS_AT_ONCE:
                try:
                    receiver = self._reach.connection.session_receiver(
                        self._reach.address, credit=0, mode=self._mode, wait=0.0 if held else wait_s
                    )
                except LinkClosed as refusal:
                    if refusal.condition in (Condition.TIMEOUT, Condition.MESSAGE_WAIT_TIMEOUT):
                        return  # no session has messages
                    raise
                held.append(receiver)
                self._fill_from(receiver, _session_of(receiver), claim, limit, SESSION_WAIT_S, take)
        finally:
            for receiver in held:
                with suppress(ClientError):
                    receiver.close()

    def _at_once(self, most: int) -> int:
        return min(most, max(1, BYTES_AT_ONCE // self._message_size))

    def _room(self, claim: Claim, limit: Limit) -> int:
        """How many messages to ask for, so that few have to be released."""
        room = 2 * RECEIVED_AT_ONCE if limit.messages is None else limit.messages - claim.count
        if limit.size is not None:
            # One message to begin with: how large they are is not known.
            room = min(room, max(1, (limit.size - claim.size) // self._message_size) if claim.count else 1)
        return room


def _rest(receiver: Receiver) -> list[ReceivedMessage]:
    """Drain the link: messages that the peer already has still come, then none until credit is given."""
    receiver.credit = 0
    try:
        receiver.drain()
    except ClientError:
        if not receiver.waiting:  # received messages may have been removed
            raise
    return receiver.receive(receiver.waiting) if receiver.waiting else []


def _session_of(receiver: Receiver) -> str:
    filters = (receiver.source.filter if receiver.source is not None else None) or {}
    id = filters.get(SESSION_FILTER)
    return str(getattr(id, "value", id))
