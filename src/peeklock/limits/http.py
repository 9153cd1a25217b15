"""Limits of HTTP: administration, messages over HTTP, WebSocket; and of the configuration file."""

from __future__ import annotations

from typing import Final

from peeklock.limits.units import KIB, MIB

# --- connections
MAX_BODY: Final = MIB
"""Bytes of the body of a request of administration. Beyond it: status 413."""
MAX_WEBSOCKET_MESSAGE: Final = 4 * MIB
"""Bytes of a WebSocket message. Beyond it: the connection is closed."""

# --- administration
MAX_XML_DEPTH: Final = 32
"""Levels of elements within each other in an ATOM document. Beyond it: status 400."""
MAX_XML_ELEMENTS: Final = 20_000
"""Elements of an ATOM document. Beyond it: status 400."""
MAX_PAGE: Final = 100
"""Entities or rules on a page of a list. Beyond it: the page has fewer."""
BODY_SECONDS: Final = 20.0
"""Seconds until the body of a request has arrived. Beyond it: status 408."""

# --- messages over HTTP
MAX_REST_BATCH_MESSAGES: Final = 4096
"""Messages of a batch. Beyond it: status 403."""
MAX_REST_BATCH_BYTES: Final = MIB
"""Bytes of a batch of messages, as JSON; it takes many times as much memory. Beyond it: status 403."""
MAX_EMPTY_BODY: Final = 64 * KIB
"""Bytes of the body of a request that needs none: some clients send one. Beyond it: status 403."""
MAX_CONTENT_TYPE: Final = 1024
"""Characters of the content type of a message. Beyond it: status 400."""
MAX_PROPERTY_TEXT: Final = 8 * KIB
"""Characters of a property in the answer to a receive: HTTP clients bound the length of a header. Beyond it: the answer
counts it as omitted."""
MAX_CUSTOM_TEXT: Final = 32 * KIB
"""Characters of all custom properties in the answer to a receive. Beyond it: the answer counts the others as
omitted."""
MAX_CUSTOM_HEADERS: Final = 64
"""Custom properties in the answer to a receive: HTTP clients bound their number too. Beyond it: the answer counts the
others as omitted."""
MAX_RECEIVE_MS: Final = 600_000
"""Milliseconds that a receive waits. Beyond it: the longest time is used."""
MAX_WAITING_RECEIVES: Final = 2000
"""Receives that wait. Beyond it: status 503."""
MAX_WAITING_RECEIVES_OF_RULE: Final = 500
"""Receives that wait, of one key. Beyond it: status 503."""
MAX_BODIES_BYTES: Final = 256 * MIB
"""Bytes of bodies of requests that are read or on their way to the store. Beyond it: status 503."""
MAX_RULE_BODIES_BYTES: Final = 128 * MIB
"""Bytes of bodies of requests with one key. Beyond it: status 503."""

# --- the configuration file
MAX_CONFIG_BYTES: Final = 32 * MIB
"""Bytes of the configuration file: enough for as many entities as the service allows. Beyond it: the broker does not
start."""
MAX_CONFIG_DEPTH: Final = 32
"""Levels of objects and lists within each other in the configuration file. Beyond it: the broker does not start."""
