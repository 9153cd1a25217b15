"""The channels of a connection, and the sessions to which they are mapped (2.5.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peeklock.amqp.errors import Condition
from peeklock.engine.errors import CloseConnection
from peeklock.engine.free_numbers import FreeNumbers

if TYPE_CHECKING:
    from peeklock.engine.session import Session


class Channels:
    """The sessions of a connection by our channel and by the peer's channel."""

    def __init__(self) -> None:
        self.sessions: dict[int, Session] = {}
        """Sessions by our channel."""
        self.by_remote: dict[int, Session] = {}
        """Sessions by the peer's channel. The dictionary is never replaced, because the connection has a reference."""
        self._ended: set[int] = set()
        """Channels of the peer whose session has ended."""
        self._numbers = FreeNumbers()

    def take(self, highest: int) -> int:
        """Take a channel for a new session. Raise CloseConnection if all up to `highest` are taken."""
        channel = self._numbers.take(highest)
        if channel is None:
            raise CloseConnection(Condition.RESOURCE_LIMIT_EXCEEDED, f"all {highest + 1} channels are taken")
        return channel

    def add(self, session: Session) -> None:
        self.sessions[session.channel] = session

    def check_begin(self, channel: int, highest: int) -> None:
        """Raise CloseConnection if the peer may not begin a session on its channel with this number."""
        if channel in self.by_remote:
            raise CloseConnection(Condition.NOT_ALLOWED, f"channel {channel} has a session already")
        if channel > highest:
            raise CloseConnection(Condition.NOT_ALLOWED, f"channel {channel} is above channel-max {highest}")
        self._ended.discard(channel)

    def awaiting(self, channel: int) -> Session:
        """Return the session on our channel that awaits the peer's begin. Raise CloseConnection if there is none."""
        session = self.sessions.get(channel)
        if session is None or session.remote_channel is not None:
            raise CloseConnection(Condition.NOT_ALLOWED, f"no session on channel {channel} awaits a begin")
        return session

    def map(self, session: Session, channel: int) -> None:
        """Map a channel of the peer to the session."""
        self.by_remote[channel] = session
        session.remote_channel = channel

    def find(self, channel: int) -> Session:
        """Return the session on a channel of the peer. Raise CloseConnection if there is none."""
        session = self.by_remote.get(channel)
        if session is None:
            raise CloseConnection(Condition.NOT_ALLOWED, f"no session is mapped to channel {channel}")
        return session

    def has_ended(self, channel: int) -> bool:
        """Return whether a channel of the peer has no session now but had one before.

        Frames on such a channel are ignored and not an error: one SDK detaches its links after the end.
        """
        return channel in self._ended

    def unmap(self, session: Session) -> None:
        """Free both channels of a session that both sides have ended."""
        if self.sessions.pop(session.channel, None) is not None:
            self._numbers.release(session.channel)
        if session.remote_channel is not None:
            self.by_remote.pop(session.remote_channel, None)
            self._ended.add(session.remote_channel)

    def clear(self) -> None:
        self.sessions.clear()
        self.by_remote.clear()
