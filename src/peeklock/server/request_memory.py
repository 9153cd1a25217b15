"""The memory of the requests on one HTTP connection whose token has not been verified.

A request has no verified token until its handler has checked one; pages such as `/health` need none. Until then its
head, its body as far as it is buffered, and its unread response count, and so do the requests that were sent behind it.
aiohttp does the buffering and reports no sizes, so they are computed from the bytes received. Where that is not exact,
the result is too high rather than too low.
"""

from __future__ import annotations

from typing import Final

from aiohttp import StreamReader, web

from peeklock.limits.units import KIB

_HEAD_COPIES: Final = 2
"""aiohttp keeps headers as bytes and as text."""
_BUFFERED_BODY: Final = 512 * KIB
"""The most bytes of a body that aiohttp buffers before it stops reading."""
_PARSED_FACTOR: Final = 80
"""The memory of a parsed head with many short headers, for each of its bytes."""
_PARSED_MOST: Final = 32 * 50 * KIB
"""The most memory of parsed heads beyond their bytes: aiohttp parses 32 requests ahead, with 128 headers each."""
_INEXACT: Final = KIB
"""Bytes that the sizes of a request can be too low by: sizes of chunks, and spaces around the values of headers."""


class RequestMemory:
    """Counts the bytes of the requests on one connection. Its protocol and the middleware report what happens."""

    def __init__(self) -> None:
        self._ahead = 0
        """Bytes received, without the heads of requests that have begun and the bodies of those that have ended."""
        self._is_begun = False
        """A request was handed to a handler, and the next one has not begun to arrive."""
        self._body: StreamReader | None = None
        """The body of that request, if it has one. The request itself is not referenced, so that it is freed early."""
        self._head = 0
        self._is_verified = False
        self._is_handled = False
        self._unread = 0

    @property
    def is_verified_body(self) -> bool:
        """Whether the bytes that are received now belong to the body of a request with a verified token."""
        return self._is_begun and self._is_verified and not self._is_complete

    @property
    def held(self) -> int:
        """The bytes of memory that requests without a verified token hold."""
        behind = max(0, self._ahead - self._body_received())
        if not self._is_begun:
            return _HEAD_COPIES * behind
        if self._is_over:
            return _HEAD_COPIES * behind if behind > _INEXACT else 0
        held = _HEAD_COPIES * behind + min(_PARSED_FACTOR * behind, _PARSED_MOST)
        if not self._is_verified:
            body = 0 if self._body is None else self._body.total_bytes  # expanded, if the body is compressed
            held += _HEAD_COPIES * self._head + min(body, _BUFFERED_BODY) + self._unread
        return held

    def receive(self, size: int) -> None:
        """Count bytes before aiohttp gets them."""
        if self._is_over:
            self._ahead = max(0, self._ahead - self._body_received())
            if self._ahead <= _INEXACT:
                self._ahead = 0
            self._is_begun, self._body = False, None
        if not self.is_verified_body:
            self._ahead += size

    def begin(self, request: web.BaseRequest) -> None:
        """Note that a request is handed to its handler; the one before it has ended."""
        self._head = head_size(request)
        self._ahead = max(0, self._ahead - self._body_received() - self._head)
        self._is_begun = True
        self._body = request.content if request.body_exists else None
        self._is_verified = self._is_handled = False

    def mark_verified(self) -> None:
        """Note that the token of the current request is valid; its body is counted for the token's rule."""
        self._is_verified = True
        self._ahead = 0

    def end(self) -> None:
        """Note that the handler of the current request has returned. Its response may not be written yet."""
        self._is_handled = True

    def on_lost(self) -> None:
        """End the body of a handled request: aiohttp would wait for the rest for ten seconds, and keep the request."""
        if self._body is not None and self._is_handled and not self._is_complete:
            self._body.feed_eof()

    def set_unread(self, size: int) -> None:
        """Set the bytes of the response that wait to be sent, because the client does not read them."""
        self._unread = size

    @property
    def _is_complete(self) -> bool:
        """Whether the body of the current request has been received."""
        return self._body is None or self._body.is_eof()

    @property
    def _is_over(self) -> bool:
        """Whether the current request holds nothing any more."""
        return self._is_begun and self._is_handled and not self._unread and self._is_complete

    def _body_received(self) -> int:
        """Return the bytes of the current request's body that are counted in `_ahead`."""
        return 0 if self._body is None or self._is_verified else self._body.total_raw_bytes


def head_size(request: web.BaseRequest) -> int:
    """Return the bytes of a request's head, as clients write it: with one space before each value."""
    line = len(request.method) + len(request.raw_path) + len("  HTTP/1.1\r\n")
    return line + sum(len(name) + len(value) + 4 for name, value in request.raw_headers) + 2
