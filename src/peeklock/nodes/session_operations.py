"""Operations on sessions: their locks, states and ids."""

from __future__ import annotations

from typing import Final

from peeklock.amqp.service_bus import END_OF_TIME
from peeklock.amqp.types import Array, Int, Timestamp
from peeklock.broker.errors import (
    BrokerError,
    MessageSizeExceeded,
    OperationNotAllowed,
    SessionLockLost,
)
from peeklock.broker.session import Session
from peeklock.broker.session_queue import SessionQueue, is_with_sessions
from peeklock.entities.authorization import Right
from peeklock.limits.amqp import MAX_LISTED_SESSIONS
from peeklock.nodes.fields import MAX_SKIP, Field, Kind, check_page
from peeklock.nodes.operation import Call, Operation
from peeklock.nodes.session_receiving import SessionReceivingNode


def _queue(call: Call) -> SessionQueue:
    queue = call.queue
    if not is_with_sessions(queue):
        raise OperationNotAllowed(f"The entity '{queue.path}' has no sessions.")
    return queue


def session_id_of(call: Call) -> str | None:
    """Return the session id in the request or, if there is none, the id of the session that its link holds.

    One SDK names only the link when it peeks and when it receives deferred messages.
    """
    named: str | None = call.arguments["session-id"]
    if named is not None or call.link_name is None:
        return named
    holders = (node for node in call.peer.nodes if isinstance(node, SessionReceivingNode))
    sessions = (node.session_of(call.queue, call.link_name) for node in holders)
    return next((session.id for session in sessions if session is not None), None)


def held_session(call: Call) -> tuple[SessionQueue, Session]:
    """Return the session of the request. Raise SessionLockLost unless the caller's link or connection holds it."""
    queue = _queue(call)
    id = session_id_of(call)
    assert id is not None
    session = queue.sessions.held(id)
    check_holder(call, session)
    return queue, session


def check_holder(call: Call, session: Session) -> None:
    """Raise SessionLockLost unless the caller holds the session."""
    holder = session.holder
    if not isinstance(holder, SessionReceivingNode) or not holder.is_of(call.peer, call.link_name):
        raise SessionLockLost(f"The session '{session.id}' is held by another receiver.")


def check_not_held_by_another(call: Call, queue: SessionQueue, id: str) -> None:
    """Raise SessionLockLost if another receiver holds the session. The session need not have a holder."""
    holder = queue.sessions.holder_of(id)
    if holder is not None and not (
        isinstance(holder, SessionReceivingNode) and holder.is_of(call.peer, call.link_name)
    ):
        raise SessionLockLost(f"The session '{id}' is held by another receiver.")


def renew_session_lock(call: Call) -> None:
    queue, session = held_session(call)
    call.answer({"expiration": Timestamp(queue.sessions.renew(session))})


def set_session_state(call: Call) -> None:
    queue, session = held_session(call)
    # The Go SDK sends empty bytes to clear the state. The service then returns null for it.
    state = call.arguments["session-state"] or None
    limit = call.peer.namespace.profile.max_message_bytes
    if state is not None and len(state) > limit:
        raise MessageSizeExceeded(f"The session state is larger than {limit} bytes.")
    queue.states.set(session.id, state, call.done)


def get_session_state(call: Call) -> None:
    queue, session = held_session(call)

    def read(state: bytes | BrokerError | None) -> None:
        if isinstance(state, BrokerError):
            call.fail(state)
        else:
            call.answer({"session-state": state})

    queue.states.get(session.id, read)


def get_message_sessions(call: Call) -> None:
    queue = _queue(call)
    arguments = call.arguments
    skip, top = check_page(arguments, MAX_LISTED_SESSIONS)
    updated_after = arguments["last-updated-time"]

    def read(ids: list[str] | BrokerError) -> None:
        if isinstance(ids, BrokerError):
            call.fail(ids)
        elif not ids:
            call.answer({}, 204)
        else:
            call.answer({"skip": Int(min(skip + len(ids), MAX_SKIP)), "sessions-ids": Array(ids, str)})

    # The last millisecond of the year 9999, and any later time, stands for all sessions.
    everything = updated_after >= END_OF_TIME
    queue.states.list_sessions(None if everything else updated_after, skip, top, read)


_SESSION_ID = Field("session-id", Kind.STRING, or_utf8=True)

OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation(
        name="com.microsoft:renew-session-lock",
        summary="Lock the session for another lock duration.",
        right=Right.LISTEN,
        request=(_SESSION_ID,),
        response=(Field("expiration", Kind.TIMESTAMP),),
        run=renew_session_lock,
    ),
    Operation(
        name="com.microsoft:set-session-state",
        summary="Set the state of the session. Null or empty bytes clear it.",
        right=Right.LISTEN,
        request=(
            _SESSION_ID,
            Field("session-state", Kind.BINARY, required=False, note="null or empty bytes clear it"),
        ),
        response=(),
        run=set_session_state,
    ),
    Operation(
        name="com.microsoft:get-session-state",
        summary="Get the state of the session.",
        right=Right.LISTEN,
        request=(_SESSION_ID,),
        response=(Field("session-state", Kind.BINARY, note="null when there is none"),),
        run=get_session_state,
    ),
    Operation(
        name="com.microsoft:get-message-sessions",
        summary="List the ids of sessions. 204 when there are none.",
        right=Right.LISTEN,
        request=(
            Field("last-updated-time", Kind.TIMESTAMP, note="state set after it; from the year 10000 on: all"),
            Field("skip", Kind.INT),
            Field("top", Kind.INT),
            Field("last-session-id", Kind.STRING, required=False, or_utf8=True, note="accepted, no effect"),
        ),
        response=(
            Field("skip", Kind.INT, note="the `skip` of the next page"),
            Field("sessions-ids", Kind.STRINGS),
        ),
        run=get_message_sessions,
    ),
)
