"""Limits of AMQP connections, links, messages and management requests."""

from __future__ import annotations

from typing import Final

from peeklock.limits.units import KIB, MIB

# --- connections and links
MAX_FRAME_SIZE: Final = 256 * KIB
"""Bytes of a frame that a client sends; announced as `max-frame-size`. Beyond it: the connection is closed."""
CHANNEL_MAX: Final = 4999
"""The highest channel of a connection, so that it has at most 5,000 sessions; announced as `channel-max`. Beyond it:
the connection is closed."""
IDLE_TIME_OUT_MS: Final = 120_000
"""Milliseconds without a byte from the client; announced as `idle-time-out`. Beyond it: the connection is closed after
twice this time with `amqp:resource-limit-exceeded`."""
HANDLE_MAX: Final = 4095
"""The highest handle in a session; announced as `handle-max`. Beyond it: the session is ended with
`amqp:resource-limit-exceeded`."""
MAX_LINKS: Final = 5000
"""Links of a connection. Beyond it: further links are detached with `amqp:resource-limit-exceeded`."""
MAX_UNAUTHENTICATED_LINKS: Final = 32
"""Links of an unauthenticated connection: enough for `$cbs`, and for attaches that will be refused. Beyond it: further
links are detached with `amqp:resource-limit-exceeded`."""
MAX_UNSETTLED: Final = 65536
"""Deliveries on a link that the client has not settled. Beyond it: the broker sends no more messages on the link,
whatever its credit."""
MAX_INCOMING_UNSETTLED: Final = 65536
"""Deliveries in a session that the broker has not settled. Beyond it: the session is ended with
`amqp:resource-limit-exceeded`."""

# Not Final, so that tests of the compiled package can replace it.
MAX_PARTIAL_BYTES = 128 * MIB
"""Bytes of incomplete messages on all links of a connection. Beyond it: the link that exceeds it is detached with
`amqp:resource-limit-exceeded`."""
MAX_RULE_PARTIAL_BYTES: Final = 192 * MIB
"""Bytes of incomplete messages of all connections with one key. Beyond it: a link of the connection with the most bytes
is detached with `amqp:resource-limit-exceeded`."""
MAX_ALL_PARTIAL_BYTES: Final = 256 * MIB
"""Bytes of incomplete messages of all connections. Beyond it: a link of the connection with the most bytes is detached
with `amqp:resource-limit-exceeded`."""

# --- values
MAX_VALUE_DEPTH: Final = 64
"""Levels of nested lists, maps, arrays and described values. Beyond it: `amqp:decode-error`."""
MAX_VALUE_ELEMENTS: Final = 65536
"""Elements of a list, map or array. Beyond it: `amqp:decode-error`."""
MAX_TOTAL_ELEMENTS: Final = 262144
"""Elements of all values that are decoded together. Beyond it: `amqp:decode-error`."""

# --- sending
MAX_BATCH_BYTES: Final = MIB
"""Bytes of a batch of messages; announced as `com.microsoft:max-message-batch-size`. Beyond it: the SDKs do not create
a larger batch."""
MAX_BATCH_MESSAGES: Final = 65536
"""Messages of a batch. Beyond it: the message is rejected with `amqp:link:message-size-exceeded`."""
MAX_UNSAVED_BYTES: Final = 512 * MIB
"""Bytes of unsaved messages of all connections, including closed ones; the broker stops reading from senders long
before this limit. Beyond it: the message is rejected with `com.microsoft:server-busy`."""

# --- requests
MAX_MANAGEMENT_BYTES: Final = 16 * MIB
"""Bytes of a request to `$management`: one request schedules many messages, or settles many locks. Beyond it: the
request is rejected with `amqp:link:message-size-exceeded`."""
MAX_CBS_BYTES: Final = 64 * KIB
"""Bytes of a request to `$cbs`, which unauthenticated clients can send. Beyond it: the request is rejected with
`amqp:link:message-size-exceeded`."""
MAX_WAITING_REPLIES: Final = 1000
"""Replies that wait for credit on one link. Beyond it: further requests are refused."""
MAX_WAITING_REPLY_BYTES: Final = 32 * MIB
"""Bytes of replies that wait for credit on one link. Beyond it: further requests are refused."""
MAX_FIELD_ITEMS: Final = 65536
"""Items of a list in a request, such as lock tokens. Beyond it: the request is refused with
`com.microsoft:argument-error`."""
MAX_PEEKED_MESSAGES: Final = 4096
"""Messages that one request peeks or deletes; the profile may allow fewer. Beyond it: the reply is cut to the limit."""
MAX_PEEKED_BYTES: Final = 4 * MIB
"""Bytes of messages in the reply to a peek; a single larger message is allowed. Beyond it: the reply is cut to the
limit."""
MAX_NUMBERED_BYTES: Final = 16 * MIB
"""Bytes of messages that one request names by sequence numbers; a single larger message is allowed. Beyond it: the
request is refused with `amqp:resource-limit-exceeded`."""
MAX_ADDED_BYTES: Final = 16 * MIB
"""Bytes of properties that one settlement adds, in all its messages together. Beyond it: the request is refused with
`amqp:resource-limit-exceeded`."""
MAX_REASON_LENGTH: Final = 4096
"""Characters of the reason or of the description of a dead letter. Beyond it: the request is refused with
`com.microsoft:argument-error`."""
MAX_LISTED_RULES: Final = 10_000
"""Rules in one reply. Beyond it: the reply is cut to the limit."""
MAX_LISTED_SESSIONS: Final = 10_000
"""Sessions in one reply. Beyond it: the reply is cut to the limit."""
MAX_TIME_OUT_MS: Final = 24 * 3600 * 1000
"""Milliseconds of the time-out of a request. Beyond it: the time-out is reduced to the limit."""
MAX_SESSION_WAIT_MS: Final = 24 * 3600 * 1000
"""Milliseconds that a receiver waits for the next session. Beyond it: the time-out is reduced to the limit."""
MAX_COORDINATOR_BYTES: Final = 4 * KIB
"""Bytes of a message to the transaction coordinator. Beyond it: the message is rejected with
`amqp:link:message-size-exceeded`."""
