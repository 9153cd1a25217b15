"""The channels of a connection, and which session each of them is mapped to (2.5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peeklock.amqp.errors import Condition
from peeklock.engine.errors import CloseConnection
from peeklock.engine.free_numbers import FreeNumbers

if TYPE_CHECKING:
    from peeklock.engine.session import Session


class Channels:
    """Sessions by our channel and by the peer's."""

    def __init__(self) -> None:
        self.sessions: dict[int, Session] = {}
        """By our channel."""
        self.by_remote: dict[int, Session] = {}
        """By the peer's channel. Never replaced: the connection keeps it while it reads frames."""
        self._ended: set[int] = set()
        """The peer's channels whose session is over."""
        self._numbers = FreeNumbers()

    def take(self, highest: int) -> int:
        """Take a channel for a new session; CloseConnection if all up to `highest` are taken."""
        channel = self._numbers.take(highest)
        if channel is None:
            raise CloseConnection(Condition.RESOURCE_LIMIT_EXCEEDED, f"all {highest + 1} channels are taken")
        return channel

    def add(self, session: Session) -> None:
        self.sessions[session.channel] = session

    def check_begin(self, channel: int, highest: int) -> None:
        """CloseConnection if the peer may not begin a session on this channel of its own."""
        if channel in self.by_remote:
            raise CloseConnection(Condition.NOT_ALLOWED, f"channel {channel} has a session already")
        if channel > highest:
            raise CloseConnection(Condition.NOT_ALLOWED, f"channel {channel} is above channel-max {highest}")
        self._ended.discard(channel)

    def awaiting(self, channel: int) -> Session:
        """The session that was begun on this channel of ours and that the peer's begin answers."""
        session = self.sessions.get(channel)
        if session is None or session.remote_channel is not None:
            raise CloseConnection(Condition.NOT_ALLOWED, f"no session on channel {channel} awaits a begin")
        return session

    def map(self, session: Session, channel: int) -> None:
        """Map the peer's channel to the session."""
        self.by_remote[channel] = session
        session.remote_channel = channel

    def find(self, channel: int) -> Session:
        """The session on the peer's channel."""
        session = self.by_remote.get(channel)
        if session is None:
            raise CloseConnection(Condition.NOT_ALLOWED, f"no session is mapped to channel {channel}")
        return session

    def has_ended(self, channel: int) -> bool:
        """Whether the last session on the peer's channel is over.

        Frames for it are ignored and not an error: one SDK detaches its links after the end.
        """
        return channel in self._ended

    def unmap(self, session: Session) -> None:
        """Free both channels of a session that is over on both sides."""
        if self.sessions.pop(session.channel, None) is not None:
            self._numbers.give_back(session.channel)
        if session.remote_channel is not None:
            self.by_remote.pop(session.remote_channel, None)
            self._ended.add(session.remote_channel)

    def clear(self) -> None:
        self.sessions.clear()
        self.by_remote.clear()
