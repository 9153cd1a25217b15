"""The handles of a session, and which link each of them is attached to (2.6.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from peeklock.amqp.errors import Condition
from peeklock.engine.errors import EndSession
from peeklock.engine.free_numbers import FreeNumbers
from peeklock.limits.amqp import HANDLE_MAX

if TYPE_CHECKING:
    from peeklock.engine.links import Link


class Handles:
    """Links by our handle and by the peer's."""

    def __init__(self) -> None:
        self.links: dict[int, Link] = {}
        """By our handle."""
        self.remote_max = HANDLE_MAX
        """The highest handle that the peer accepts."""
        self._by_remote: dict[int, Link] = {}
        self._awaited: dict[tuple[str, bool], Link] = {}
        """Links that we attached first and the peer has not answered, by name and whether we send."""
        self._numbers = FreeNumbers()

    def take(self) -> int:
        """Take a handle for a new link; EndSession when the peer allows no more links."""
        handle = self._numbers.take(self.remote_max)
        if handle is None:
            raise EndSession(Condition.RESOURCE_LIMIT_EXCEEDED, f"all {self.remote_max + 1} handles are taken")
        return handle

    def add(self, link: Link) -> None:
        self.links[link.handle] = link

    def await_attach(self, link: Link) -> None:
        """The link was attached from our side: the peer's attach of the same name is the answer."""
        self._awaited[link.name, link.is_sender] = link

    def check_attach(self, handle: int) -> None:
        """EndSession if the peer may not attach a link with this handle of its own."""
        if handle > HANDLE_MAX:
            raise EndSession(Condition.RESOURCE_LIMIT_EXCEEDED, f"handle {handle} is above handle-max {HANDLE_MAX}")
        if handle in self._by_remote:
            raise EndSession(Condition.HANDLE_IN_USE, f"handle {handle} is attached already")

    def take_awaited(self, name: str, is_sender: bool) -> Link | None:
        """The link that the peer's attach answers; None if the peer attached first."""
        return self._awaited.pop((name, is_sender), None)

    def map(self, link: Link, handle: int) -> None:
        """Map the peer's handle to the link."""
        self._by_remote[handle] = link

    def find(self, handle: int) -> Link:
        """The link with the peer's handle."""
        link = self._by_remote.get(handle)
        if link is None:
            raise EndSession(Condition.UNATTACHED_HANDLE, f"no link is attached with handle {handle}")
        return link

    def unmap(self, link: Link) -> None:
        """Free both handles of a link that is detached on both sides."""
        if self.links.pop(link.handle, None) is not None:
            self._numbers.give_back(link.handle)
        self._awaited.pop((link.name, link.is_sender), None)
        if link.remote is not None and self._by_remote.get(link.remote.handle) is link:
            del self._by_remote[link.remote.handle]

    def clear(self) -> None:
        """The session is over. Its links can still be listed."""
        self._by_remote.clear()
        self._awaited.clear()
