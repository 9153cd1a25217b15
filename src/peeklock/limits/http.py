"""Limits of HTTP: administration, messages over HTTP, WebSocket; and of the configuration file."""

from __future__ import annotations

from typing import Final

from peeklock.limits.units import KIB, MIB

# --- connections
MAX_BODY: Final = MIB
"""Bytes of the body of an administration request. Beyond it: status 413."""
MAX_WEBSOCKET_MESSAGE: Final = 4 * MIB
"""Bytes of a WebSocket message. Beyond it: the connection is closed."""
MAX_UPGRADE_HEAD: Final = 16 * KIB
"""Bytes of the head of a request for a WebSocket. Beyond it: status 431."""

# --- administration
MAX_XML_DEPTH: Final = 32
"""Levels of nested elements in an ATOM document. Beyond it: status 400."""
MAX_XML_ELEMENTS: Final = 20_000
"""Elements of an ATOM document. Beyond it: status 400."""
MAX_PAGE: Final = 100
"""Entities or rules on a page of a list. Beyond it: the page is cut to the limit."""
BODY_SECONDS: Final = 20.0
"""Seconds until the body of a request has arrived. Beyond it: status 408."""

# --- messages over HTTP
MAX_REST_BATCH_MESSAGES: Final = 4096
"""Messages of a batch. Beyond it: status 403."""
MAX_REST_BATCH_BYTES: Final = MIB
"""Bytes of a batch of messages, as JSON; it needs many times as much memory. Beyond it: status 403."""
MAX_EMPTY_BODY: Final = 64 * KIB
"""Bytes of the body of a request that needs no body: some clients send one. Beyond it: status 403."""
MAX_CONTENT_TYPE: Final = 1024
"""Characters of the content type of a message. Beyond it: status 400."""
MAX_PROPERTY_TEXT: Final = 8 * KIB
"""Characters of a property in the response to a receive: HTTP clients limit the length of a header. Beyond it: the
property is omitted, and counted in a header."""
MAX_CUSTOM_TEXT: Final = 32 * KIB
"""Characters of all custom properties in the response to a receive. Beyond it: further properties are omitted, and
counted in a header."""
MAX_CUSTOM_HEADERS: Final = 64
"""Custom properties in the response to a receive: HTTP clients limit the number of headers. Beyond it: further
properties are omitted, and counted in a header."""
TRANSFER_SECONDS: Final = 20.0
"""Seconds for each MiB of a request body to arrive, or of a response to be sent. Beyond it: status 408, or the
connection is closed."""
MAX_RECEIVE_MS: Final = 600_000
"""Milliseconds that a receive waits. Beyond it: the time-out is reduced to the limit."""
MAX_WAITING_RECEIVES: Final = 2000
"""Receives that wait. Beyond it: status 503."""
MAX_WAITING_RECEIVES_OF_RULE: Final = 500
"""Receives that wait, of clients with one key. Beyond it: status 503."""
MAX_BODIES_BYTES: Final = 256 * MIB
"""Bytes of bodies of requests that are being read or stored. Beyond it: status 503."""
MAX_RULE_BODIES_BYTES: Final = 128 * MIB
"""Bytes of bodies of requests that are being read or stored, with one key. Beyond it: status 503."""

# --- the configuration file
MAX_CONFIG_BYTES: Final = 32 * MIB
"""Bytes of the configuration file: enough for as many entities as the service allows. Beyond it: the broker does not
start."""
MAX_CONFIG_DEPTH: Final = 32
"""Levels of nested objects and lists in the configuration file. Beyond it: the broker does not start."""
