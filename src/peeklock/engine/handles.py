"""The handles of a session, and the links to which they are mapped (2.6.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peeklock.amqp.errors import Condition
from peeklock.engine.errors import EndSession
from peeklock.engine.free_numbers import FreeNumbers
from peeklock.limits.amqp import HANDLE_MAX

if TYPE_CHECKING:
    from peeklock.engine.links import Link


class Handles:
    """The links of a session by our handle and by the peer's handle."""

    def __init__(self) -> None:
        self.links: dict[int, Link] = {}
        """Links by our handle."""
        self.remote_max = HANDLE_MAX
        """The highest handle that the peer accepts."""
        self._by_remote: dict[int, Link] = {}
        self._awaited: dict[tuple[str, bool], Link] = {}
        """Links that we attached first and that the peer has not answered, by name and whether we send."""
        self._numbers = FreeNumbers()

    def take(self) -> int:
        """Take a handle for a new link. Raise EndSession if the peer allows no more links."""
        handle = self._numbers.take(self.remote_max)
        if handle is None:
            raise EndSession(Condition.RESOURCE_LIMIT_EXCEEDED, f"all {self.remote_max + 1} handles are taken")
        return handle

    def add(self, link: Link) -> None:
        self.links[link.handle] = link

    def await_attach(self, link: Link) -> None:
        """Record that we attached a link first. The peer's attach with the same name is the answer."""
        self._awaited[link.name, link.is_sender] = link

    def check_attach(self, handle: int) -> None:
        """Raise EndSession if the peer may not attach a link with its handle of this number."""
        if handle > HANDLE_MAX:
            raise EndSession(Condition.RESOURCE_LIMIT_EXCEEDED, f"handle {handle} is above handle-max {HANDLE_MAX}")
        if handle in self._by_remote:
            raise EndSession(Condition.HANDLE_IN_USE, f"handle {handle} is attached already")

    def take_awaited(self, name: str, is_sender: bool) -> Link | None:
        """Return and remove the link that the peer's attach answers; None if the peer attached first."""
        return self._awaited.pop((name, is_sender), None)

    def map(self, link: Link, handle: int) -> None:
        """Map a handle of the peer to the link."""
        self._by_remote[handle] = link

    def find(self, handle: int) -> Link:
        """Return the link with a handle of the peer. Raise EndSession if there is none."""
        link = self._by_remote.get(handle)
        if link is None:
            raise EndSession(Condition.UNATTACHED_HANDLE, f"no link is attached with handle {handle}")
        return link

    def unmap(self, link: Link) -> None:
        """Free both handles of a link that both sides have detached."""
        if self.links.pop(link.handle, None) is not None:
            self._numbers.release(link.handle)
        self._awaited.pop((link.name, link.is_sender), None)
        if link.remote is not None and self._by_remote.get(link.remote.handle) is link:
            del self._by_remote[link.remote.handle]

    def clear(self) -> None:
        """Remove all mappings after the end of the session. Its links can still be listed."""
        self._by_remote.clear()
        self._awaited.clear()
