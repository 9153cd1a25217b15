"""Limits of entities, messages, rules, transactions and claims."""

from __future__ import annotations

from typing import Final

from peeklock.limits.units import KIB, MIB

# --- names and settings
MAX_ENTITY_NAME: Final = 260
"""Characters of the name of a queue or topic. Beyond it: the request or the configuration file is refused."""
MAX_SHORT_NAME: Final = 50
"""Characters of the name of a subscription, a rule, an authorization rule or a namespace. Beyond it: the request or the
configuration file is refused."""
MAX_CLIENT_SCOPED_PART: Final = 128
"""Characters of the name or of the client id of a JMS subscription: JMS requires that many. Beyond it: the attach is
refused."""
MAX_TEXT: Final = 1024
"""Characters of the user metadata, or of the text of a filter, an action or a selector. Beyond it: the request or the
configuration file is refused."""
MAX_AUTHORIZATION_RULES: Final = 12
"""Authorization rules of an entity or of the namespace. Beyond it: the request or the configuration file is refused."""

# --- messages
MAX_ID_LENGTH: Final = 128
"""Characters of a message id, a session id or a partition key. Beyond it: the message is rejected with
`com.microsoft:argument-error`."""
MAX_DELIVERY_ANNOTATIONS: Final = 64 * KIB
"""Bytes of the delivery annotations of a message. Beyond it: the message is rejected with
`amqp:link:message-size-exceeded`."""
MAX_HOPS: Final = 4
"""Times that a message is forwarded. Beyond it: the message is moved to the transfer dead-letter queue."""
MAX_MESSAGE_IDS: Final = 2_000_000
"""Message ids that an entity remembers for duplicate detection, about 300 MB. An id is never forgotten before the
window is over, because that would accept a duplicate. Beyond it: messages with new ids are refused. Set by
`--max-message-ids`."""

# --- memory and waiting clients
MAX_HELD_BYTES: Final = 128 * MIB
"""Bytes of messages that one connection has locked, of messages that were deleted for it and that it has not read, and
of replies that wait for its credit. Beyond it: the connection gets no more messages until it settles or reads some."""
MAX_RULE_HELD_BYTES: Final = 192 * MIB
"""Bytes of locked messages, unread deleted messages and waiting replies of all connections with one key. Beyond it: the
connection with the most bytes gets no more messages."""
MAX_ALL_HELD_BYTES: Final = 256 * MIB
"""Bytes of locked messages, unread deleted messages and waiting replies of all connections. Beyond it: the connection
with the most bytes gets no more messages."""
MAX_SESSION_WAITERS: Final = 5000
"""Receivers that wait for the next session of a queue. Beyond it: the attach is refused with
`amqp:resource-limit-exceeded`."""
MAX_SELECTIONS: Final = 1000
"""Receivers of a queue that have a selector. Beyond it: the attach is refused with `amqp:resource-limit-exceeded`."""
MAX_TEMPORARY_OF_CONNECTION: Final = 200
"""Temporary entities of a connection. Beyond it: the attach is refused with `amqp:resource-limit-exceeded`."""
MAX_TEMPORARY_OF_RULE: Final = 1000
"""Temporary entities of all connections with one key. Beyond it: the attach is refused with
`amqp:resource-limit-exceeded`."""
MAX_TEMPORARY: Final = 2000
"""Temporary entities of a namespace. Beyond it: the attach is refused with `amqp:resource-limit-exceeded`."""

# --- tokens
MAX_TOKEN_LENGTH: Final = 16 * KIB
"""Characters of a token. Beyond it: the token is refused."""
MAX_AUDIENCE_LENGTH: Final = 2048
"""Characters of the address for which a token is sent. Beyond it: the token is refused."""
MAX_TOKENS: Final = 10_000
"""Addresses for which a connection has sent tokens. Beyond it: the request is refused with
`amqp:resource-limit-exceeded`."""

# --- rules
MAX_RULE_DEPTH: Final = 64
"""Levels of nested parentheses, NOT, signs and calls. Beyond it: the rule is refused."""
MAX_STATEMENTS: Final = 32
"""Statements of an action. Beyond it: the rule is refused."""
MAX_PATTERN: Final = 1024
"""Characters of a pattern of LIKE. Beyond it: the rule is refused; if the pattern is in the message, the rule fails for
the message."""
MAX_PATTERN_WORK: Final = 1 << 20
"""Characters of a string times the characters of the part of the pattern, between two `%`, that contains `_`. Beyond
it: the rule fails for the message."""
MAX_TEXT_MADE: Final = 1 << 16
"""Characters of a string that an expression builds with `+`. Beyond it: the rule fails for the message."""

# --- transactions
TRANSACTION_TIME_LIMIT_MS: Final = 2 * 60 * 1000
"""Milliseconds that a transaction is open. Beyond it: the transaction is rolled back."""
MAX_TRANSACTION_MESSAGES: Final = 100
"""Messages of a transaction. Beyond it: the request is refused with `amqp:resource-limit-exceeded`."""
MAX_OPEN_TRANSACTIONS: Final = 1000
"""Open transactions of a connection. Beyond it: the request is refused with `amqp:resource-limit-exceeded`."""
MAX_TRANSACTION_BYTES: Final = 64 * MIB
"""Bytes of messages of the open transactions of a connection. Beyond it: the request is refused with
`amqp:resource-limit-exceeded`."""
MAX_RULE_TRANSACTION_BYTES: Final = 96 * MIB
"""Bytes of messages of the open transactions of all connections with one key. Beyond it: work of the connection with
the most bytes is refused."""
MAX_ALL_TRANSACTION_BYTES: Final = 128 * MIB
"""Bytes of messages of all open transactions. Beyond it: work of the connection with the most bytes is refused."""

# --- claims
MAX_CLAIMS: Final = 1000
"""Claims of an entity, including the requests that wait for one; also the names of its claims. Beyond it: the request
is refused with `amqp:resource-limit-exceeded`."""
MAX_CLAIM_RANGES: Final = 8192
"""Ranges of sequence numbers in one claim or request. Beyond it: the claim is complete; a request with more is
refused."""
MAX_ALL_CLAIM_RANGES: Final = 1 << 18
"""Ranges of sequence numbers in all claims of an entity. Beyond it: the request is refused with
`amqp:resource-limit-exceeded`."""
MAX_CLAIM_NAME: Final = 128
"""Characters of the name of a claim. Beyond it: the request is refused with `com.microsoft:argument-error`."""
MAX_CLAIMED_MESSAGES: Final = 1_000_000
"""Messages of a claim. Beyond it: the request is refused with `com.microsoft:argument-error`."""
MAX_CLAIMED_BYTES: Final = 1 << 40
"""Bytes of messages of a claim. Beyond it: the request is refused with `com.microsoft:argument-error`."""
MAX_CLAIM_WAIT_MS: Final = 60_000
"""Milliseconds that a claim waits for messages. Beyond it: the request is refused with
`com.microsoft:argument-error`."""
MAX_LISTED_CLAIMS: Final = 100
"""Claims in one reply. Beyond it: the reply is cut to the limit."""
MAX_CLAIM_REQUEST_BYTES: Final = 8 * KIB
"""Bytes of a request for a claim, which stays in memory while it waits. Beyond it: the request is refused."""
