"""Operations on messages: renewing locks, peeking, scheduling, receiving deferred ones, settling, batch deletion."""

from __future__ import annotations

import struct
from dataclasses import replace
from functools import partial
from typing import Any, Final
from uuid import UUID

from peeklock.amqp.codec import encode_value
from peeklock.amqp.types import Array, Encoded, Int, Timestamp
from peeklock.broker.envelope import with_session_id
from peeklock.broker.errors import (
    BrokerError,
    InvalidProperty,
    MessageSizeExceeded,
    OperationNotAllowed,
    SessionLockLost,
)
from peeklock.broker.heads import head
from peeklock.broker.incoming import Incoming, read_incoming
from peeklock.broker.locks import Lock
from peeklock.broker.session_queue import is_with_sessions
from peeklock.entities.authorization import Right
from peeklock.limits.amqp import MAX_PEEKED_MESSAGES
from peeklock.nodes.fields import Field, Kind, check_keys
from peeklock.nodes.operation import Call, Operation
from peeklock.nodes.read_slot import Leave
from peeklock.nodes.session_operations import (
    check_holder,
    check_not_held_by_another,
    held_session,
    session_id_of,
)
from peeklock.nodes.settling import STATUSES, settlement_of_status
from peeklock.store.base import StoredMessage

RECEIVE_AND_DELETE, PEEK_LOCK = 0, 1


def renew_lock(call: Call) -> None:
    tokens = call.arguments["lock-tokens"]
    locked_until = call.queue.renew(_locks(call))
    call.answer({"expirations": Array([Timestamp(locked_until)] * len(tokens), Timestamp)})


def _locks(call: Call) -> list[Lock]:
    """Return the locks that the request names. For messages of a session, the caller must hold the session."""
    locks = call.queue.locks.find(token.bytes_le for token in call.arguments["lock-tokens"])
    for session in {lock.session for lock in locks if lock.session is not None}:
        check_holder(call, session)
    return locks


def peek_message(call: Call) -> None:
    arguments = call.arguments
    count = arguments["message-count"]
    if count < 1:
        raise InvalidProperty("'message-count' must be at least 1.")

    def peeked(leave: Leave, messages: list[StoredMessage] | BrokerError) -> None:
        if isinstance(messages, BrokerError):
            call.fail(messages)
        elif not messages:
            call.answer({}, 204)
        else:
            call.answer({"messages": _encoded(messages, queue.holds_copies)})
        leave()

    def start(leave: Leave) -> None:
        call.check_room()
        queue.peek(first, min(count, MAX_PEEKED_MESSAGES), session_id, partial(peeked, leave))

    session_id = session_id_of(call)
    queue, first = call.queue, arguments["from-sequence-number"]
    call.peer.reads.enter(start, call.fail)


def receive_by_sequence_number(call: Call) -> None:
    arguments = call.arguments
    mode = arguments["receiver-settle-mode"]
    if mode not in (RECEIVE_AND_DELETE, PEEK_LOCK):
        raise InvalidProperty("'receiver-settle-mode' must be 0 (receive and delete) or 1 (peek-lock).")
    queue = call.queue
    queue.check_receiving()
    session_id = session_id_of(call)
    if queue.has_sessions and session_id is None:
        raise InvalidProperty("The request has no 'session-id', which an entity with sessions requires.")

    def fetched(leave: Leave, messages: list[tuple[StoredMessage, Lock | None]] | BrokerError) -> None:
        if isinstance(messages, BrokerError):
            call.fail(messages)
        elif mode == RECEIVE_AND_DELETE:
            call.answer({"messages": _encoded([message for message, _ in messages], queue.holds_copies)})
        else:
            for _, lock in messages:
                if lock is not None:
                    lock.charge(call.peer.held)
            is_copy = queue.holds_copies
            locked = [_locked(message, lock, is_copy) for message, lock in messages if lock is not None]
            call.answer({"messages": locked})
        leave()

    def check() -> None:
        call.peer.held.check()
        call.check_room()
        if queue.has_sessions:
            held_session(call)

    check()
    numbers = [int(number) for number in arguments["sequence-numbers"]]

    def fetch(leave: Leave) -> None:
        deletes = mode == RECEIVE_AND_DELETE
        queue.deferred.receive(numbers, session_id, deletes, partial(fetched, leave), check)

    call.peer.reads.enter(fetch, call.fail)


def _locked(message: StoredMessage, lock: Lock, is_copy: bool) -> dict[str, Any]:
    encoded = head(message, lock.locked_until, lock.token, with_state=True, is_copy=is_copy) + message.content
    return {"lock-token": UUID(bytes=lock.token), "message": encoded}


_LIST, _MAP = 0xD0, 0xD1
_TO_LENGTH = encode_value("message") + b"\xb0"
_pack_opening = struct.Struct(">BII").pack
_pack_entry = struct.Struct(f">BII{len(_TO_LENGTH)}sI").pack


def _encoded(messages: list[StoredMessage], are_copies: bool) -> Encoded:
    """Encode a list of maps with one message each. The codec would take three times as long for many messages."""
    parts: list[bytes] = []
    size = 4
    for message in messages:
        front = head(message, None, with_state=True, is_copy=are_copies)
        length = len(front) + message.size
        entry = _pack_entry(_MAP, 8 + len(_TO_LENGTH) + length, 2, _TO_LENGTH, length)
        parts += (entry, front, message.payload)
        if message.body is not None:
            parts.append(message.body.data)
        size += len(entry) + length
    return Encoded(b"".join((_pack_opening(_LIST, size, len(messages)), *parts)))


def update_disposition(call: Call) -> None:
    """Settle the messages of all locks or, if one lock is lost, none of them."""
    arguments = call.arguments
    status = arguments["disposition-status"]
    properties = arguments["properties-to-modify"]
    queue = call.queue
    reason, description = arguments["deadletter-reason"], arguments["deadletter-description"]
    settlement = settlement_of_status(status, properties, reason, description)
    session_id = arguments["session-id"]
    if queue.has_sessions and session_id is not None:
        held_session(call)  # first, so that the error for a lost session is SessionLockLost and not MessageLockLost
    locks = _locks(call)
    if session_id is not None and any(lock.session is not None and lock.session.id != session_id for lock in locks):
        raise SessionLockLost(f"Not all of these locks belong to the session '{session_id}'.")
    if call.transaction is not None:
        call.transaction.settle(queue.settlements, locks, settlement, call.scope)
        call.answer({})
    elif locks:
        queue.settlements.settle_all(settlement, locks, call.done)
    else:
        call.done(None)


def schedule_message(call: Call) -> None:
    entity = call.entity
    messages = [_scheduled(call, item) for item in call.arguments["messages"]]
    if call.transaction is not None:
        numbers = call.transaction.schedule(entity, messages, call.scope)
        call.answer({"sequence-numbers": Array(numbers, int)})
        return
    journal = call.peer.namespace.journal
    journal.check_growth()
    admitted = entity.admit(messages)
    numbers = entity.number(admitted)

    def scheduled(error: BrokerError | None) -> None:
        if error is None:
            call.answer({"sequence-numbers": Array(numbers, int)})
        else:
            call.fail(error)

    entity.stage_sends(journal.sends, admitted, scheduled)


def _scheduled(call: Call, item: dict[Any, Any]) -> Incoming:
    values = check_keys(_SCHEDULED_ITEM, item)
    encoded = values["message"]
    limit = call.entity.max_message_bytes
    if len(encoded) > limit:
        raise MessageSizeExceeded(f"The message is larger than {limit} bytes, the limit of the entity.")
    incoming = read_incoming(encoded, call.entity.reads_session_ids)
    if incoming.session_id is None and values["session-id"] is not None and call.entity.reads_session_ids:
        bare = with_session_id(incoming.bare, values["session-id"])
        incoming.bare, incoming.session_id = bare, values["session-id"]
    return incoming


def cancel_scheduled_message(call: Call) -> None:
    numbers = [int(number) for number in call.arguments["sequence-numbers"]]
    call.entity.scheduled.cancel(numbers, call.done)


def batch_delete_messages(call: Call) -> None:
    arguments, queue = call.arguments, call.queue
    if queue.has_sessions and arguments["session-id"] is None:
        raise OperationNotAllowed("Messages of an entity with sessions are deleted by session: give 'session-id'.")
    count = arguments["message-count"]
    most = call.peer.namespace.profile.max_deleted_messages
    if not 1 <= count <= most:
        raise InvalidProperty(f"'message-count' must be between 1 and {most}.")

    def deleted(outcome: int | BrokerError) -> None:
        if isinstance(outcome, BrokerError):
            call.fail(outcome)
        elif not outcome:
            call.answer({}, 204)
        else:
            call.answer({"message-count": Int(outcome)})

    if is_with_sessions(queue):
        check_not_held_by_another(call, queue, arguments["session-id"])
    queue.deletion.delete_before(arguments["enqueued-time-utc"], count, arguments["session-id"], deleted)


_SESSION_ID = Field("session-id", Kind.STRING, required=False, or_utf8=True)
_ENCODED = "encoded, with its annotations"
_SCHEDULED_ITEM = (
    Field("message", Kind.BINARY, note="encoded, with the annotation x-opt-scheduled-enqueue-time"),
    Field("message-id", Kind.STRING, required=False, also=(Kind.ULONG, Kind.UUID, Kind.BINARY)),
    _SESSION_ID,
    Field("partition-key", Kind.STRING, required=False, or_utf8=True),
    Field("via-partition-key", Kind.STRING, required=False, or_utf8=True),
)

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="com.microsoft:renew-lock",
        summary="Lock messages for another lock duration.",
        right=Right.LISTEN,
        request=(Field("lock-tokens", Kind.UUIDS),),
        response=(Field("expirations", Kind.TIMESTAMPS, note="in the order of the tokens"),),
        run=renew_lock,
    ),
    Operation(
        name="com.microsoft:peek-message",
        summary="Read messages in any state without locking them. 204 when there are none.",
        right=Right.LISTEN,
        request=(
            Field("from-sequence-number", Kind.LONG),
            Field("message-count", Kind.INT),
            replace(_SESSION_ID, note="only messages of that session"),
            Field(
                "omit-message-body", Kind.BOOLEAN, required=False, note="accepted, no effect: bodies are always sent"
            ),
        ),
        response=(Field("messages", Kind.MAPS, keys=(Field("message", Kind.BINARY, note=_ENCODED),)),),
        run=peek_message,
    ),
    Operation(
        name="com.microsoft:receive-by-sequence-number",
        summary="Receive deferred messages: all of the given numbers, or none.",
        right=Right.LISTEN,
        request=(
            Field("sequence-numbers", Kind.LONGS),
            Field("receiver-settle-mode", Kind.UBYTE, note="0: receive and delete, 1: peek-lock"),
            _SESSION_ID,
        ),
        response=(
            Field(
                "messages",
                Kind.MAPS,
                note="in the order of the numbers",
                keys=(
                    Field("lock-token", Kind.UUID, required=False, note="with receiver-settle-mode 1"),
                    Field("message", Kind.BINARY, note=_ENCODED),
                ),
            ),
        ),
        run=receive_by_sequence_number,
    ),
    Operation(
        name="com.microsoft:update-disposition",
        summary="Settle messages by their lock tokens: all of them, or none when one lock is lost.",
        right=Right.LISTEN,
        request=(
            Field("disposition-status", Kind.STRING, note=f"{', '.join(STATUSES[:-1])} or {STATUSES[-1]}"),
            Field("lock-tokens", Kind.UUIDS),
            Field("deadletter-reason", Kind.STRING, required=False),
            Field("deadletter-description", Kind.STRING, required=False),
            Field("properties-to-modify", Kind.MAP, required=False),
            _SESSION_ID,
        ),
        response=(),
        run=update_disposition,
        transactional=True,
    ),
    Operation(
        name="com.microsoft:schedule-message",
        summary="Send messages that are enqueued later.",
        right=Right.SEND,
        request=(Field("messages", Kind.MAPS, keys=_SCHEDULED_ITEM),),
        response=(Field("sequence-numbers", Kind.LONGS, note="in the order of the messages"),),
        run=schedule_message,
        transactional=True,
    ),
    Operation(
        name="com.microsoft:cancel-scheduled-message",
        summary="Cancel scheduled messages before they are enqueued.",
        right=Right.SEND,
        request=(Field("sequence-numbers", Kind.LONGS),),
        response=(),
        run=cancel_scheduled_message,
        audited=True,
    ),
    Operation(
        name="com.microsoft:batch-delete-messages",
        summary="Delete active, unlocked messages from the head. 204 when there are none.",
        right=Right.LISTEN,
        request=(
            Field("message-count", Kind.INT, note="at most 500, or 4000 in the premium profile"),
            Field("enqueued-time-utc", Kind.TIMESTAMP, note="only messages enqueued before"),
            _SESSION_ID,
        ),
        response=(Field("message-count", Kind.INT, note="how many were deleted"),),
        run=batch_delete_messages,
        audited=True,
    ),
)
