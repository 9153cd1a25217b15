"""Sending, receiving and settling over HTTP: who asks, for what, and what they are answered.

A send is answered after its commit, as over AMQP. A received message is given back when the client is gone before the
answer is written.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from http import HTTPStatus
from typing import Final
from uuid import UUID

from aiohttp import HttpVersion11, web

from peeklock.broker.access import Claim
from peeklock.broker.bare_message import message_id_of
from peeklock.broker.errors import (
    BrokerError,
    InvalidProperty,
    MessageLockLost,
    MessageNotFound,
    MessageSizeExceeded,
    OperationNotAllowed,
    ServerBusy,
    StorageFull,
    Unauthorized,
)
from peeklock.broker.locks import Lock
from peeklock.broker.namespace import Namespace
from peeklock.broker.queue import Queue
from peeklock.broker.session_queue import is_without_sessions
from peeklock.broker.verdicts import Settlement, Verdict
from peeklock.limits.amqp import MAX_UNSAVED_BYTES
from peeklock.limits.http import MAX_EMPTY_BODY, MAX_RECEIVE_MS, MAX_REST_BATCH_BYTES
from peeklock.rest.addresses import MESSAGES, Action, Asked, parse_request
from peeklock.rest.holders import Body, Holders
from peeklock.rest.reading import BATCH_TYPE, read_batch, read_one
from peeklock.rest.receiving import Receive, Received
from peeklock.rest.writing import lock_token, write_message
from peeklock.server.http import TICKET, Messaging, origin_of, verify_token
from peeklock.server.refusals import Refused, refusal
from peeklock.server.waits import WAITS, TooManyRequests, durable

DEFAULT_TIMEOUT_MS: Final = 60_000
PATIENCE_SECONDS: Final = 20.0
"""For a body to come or an answer to be taken, and as much again for each `PATIENCE_BYTES`."""
PATIENCE_BYTES: Final = 1024 * 1024

_STATUSES: Final[dict[type[Exception], HTTPStatus]] = {
    MessageLockLost: HTTPStatus.NOT_FOUND,
    StorageFull: HTTPStatus.FORBIDDEN,
}
_TIMEOUT = re.compile(r"[0-9]{1,9}")


def serve_messages(namespace: Namespace) -> Messaging:
    """Answers requests that send, receive and settle."""
    return RestService(namespace)


class RestService:
    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._holders = Holders(namespace.held_memory)

    def answers(self, request: web.Request) -> bool:
        """Whether it is for messages. Where an entity has such a name, requests with a version administer it."""
        asked = parse_request(request.method, request.rel_url.raw_path)
        if asked is None:
            return False
        if asked.action in (Action.SEND, Action.PEEK_LOCK, Action.RENEW_LOCK):
            return True  # nothing is administered by POST
        if asked.action is Action.UNLOCK and request.can_read_body and request.content_length != 0:
            return False  # an entity is created or updated
        whole = request.path.strip("/")
        return not self._has(whole) or ("api-version" not in request.query and self._has(asked.entity))

    def _has(self, path: str) -> bool:
        try:
            self._namespace.entity(path)
        except BrokerError:
            return False
        return True

    async def handle(self, request: web.Request) -> web.StreamResponse:
        asked = parse_request(request.method, request.rel_url.raw_path)
        assert asked is not None
        try:
            return await self._answer(request, asked)
        except ConnectionError:
            raise  # nobody is there to be told
        except Exception as failure:
            refused = refusal(
                failure,
                request,
                statuses=_STATUSES,
                sub_codes={},
                action=asked.action,
                entity=asked.entity,
                is_change=False,
                path=asked.shown,
            )
            if isinstance(failure, TooManyRequests):
                refused.force_close()
            return refused

    async def _answer(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        token = request.headers.get("Authorization", "")
        claim = verify_token(self._namespace, token, request.rel_url.raw_path, request[TICKET])
        if not claim.allows(asked.right, asked.owner):
            raise Unauthorized(f"Unauthorized access to '{asked.entity}': '{asked.right}' claim is required.")
        match asked.action:
            case Action.SEND:
                return await self._send(request, asked, claim)
            case Action.PEEK_LOCK | Action.RECEIVE_AND_DELETE:
                return await self._receive(request, asked, claim)
            case _:
                return await self._settle(request, asked, claim)

    # --- sending ---

    async def _send(self, request: web.Request, asked: Asked, claim: Claim) -> web.Response:
        entity = self._namespace.entity(asked.entity)
        entity.check_sending()
        limit, wants_session = entity.max_message_bytes, entity.reads_session_ids
        with self._holders.body(claim.rule) as body:
            if request.content_type.lower() == BATCH_TYPE:
                text = await _read_body(request, min(limit, MAX_REST_BATCH_BYTES), body)
                messages = read_batch(text, limit, wants_session)
            else:
                text = await _read_body(request, limit, body)
                messages = [read_one(request.raw_headers, text, limit, wants_session)]
            journal = self._namespace.journal
            if journal.unsaved_bytes > MAX_UNSAVED_BYTES:
                raise ServerBusy("The broker waits for its store and takes no more messages for now.")
            size = sum(len(message.bare) for message in messages) * entity.copies
            body.take(size)
            journal.charge(size)
            try:
                await durable(partial(entity.send, messages))
            finally:
                journal.discharge(size)
        return web.Response(status=HTTPStatus.CREATED)

    # --- receiving ---

    async def _receive(self, request: web.Request, asked: Asked, claim: Claim) -> web.StreamResponse:
        queue = self._queue(asked)
        queue.check_receiving()
        timeout_ms = _timeout(request)
        with self._holders.body(claim.rule) as body:
            await _read_body(request, MAX_EMPTY_BODY, body)
        holder = self._holders.of(claim.rule)
        holder.check_room()
        deletes = asked.action is Action.RECEIVE_AND_DELETE
        receive = Receive(self._namespace, queue, claim, holder, deletes=deletes, timeout_ms=timeout_ms)
        with request[WAITS].registered(request, receive.end):
            received = await receive.message()
        if received is None:
            return web.Response(status=HTTPStatus.NO_CONTENT)
        try:
            return await self._deliver(request, asked, received, queue.holds_copies)
        except BaseException:
            receive.release(received)
            raise
        finally:
            receive.answered(received)

    async def _deliver(
        self, request: web.Request, asked: Asked, received: Received, is_copy: bool
    ) -> web.StreamResponse:
        """Write the answer. Raises when the client cannot have got it."""
        message, lock = received
        written = write_message(message, lock, is_copy)
        if lock is not None:
            place = f"{origin_of(request)}/{asked.place}/{MESSAGES}/{message.sequence_number}/{lock_token(lock)}"
            written.headers.append(("Location", place))
        response = web.Response(
            status=HTTPStatus.OK if lock is None else HTTPStatus.CREATED, headers=written.headers, body=written.body
        )
        if request.version >= HttpVersion11:
            response.enable_chunked_encoding()  # old clients take a length for a property of the message
        await _write(request, response, len(written.body))
        return response

    # --- settling ---

    async def _settle(self, request: web.Request, asked: Asked, claim: Claim) -> web.Response:
        queue = self._queue(asked)
        with self._holders.body(claim.rule) as body:
            await _read_body(request, MAX_EMPTY_BODY, body)
        lock = _lock(queue, asked)
        if asked.action is Action.RENEW_LOCK:
            queue.renew([lock])
        else:
            verdict = Verdict.COMPLETE if asked.action is Action.COMPLETE else Verdict.ABANDON
            settlement = Settlement(verdict)
            await durable(lambda done: queue.settlements.settle(settlement, lock, done))
        return web.Response()

    def _queue(self, asked: Asked) -> Queue:
        queue = self._namespace.queue(asked.entity)
        if not is_without_sessions(queue):
            raise OperationNotAllowed(
                f"The entity '{queue.path}' requires sessions, which cannot be received over HTTP: use AMQP."
            )
        return queue


def _lock(queue: Queue, asked: Asked) -> Lock:
    """The lock that a request names, with the message that it is for."""
    try:
        token = UUID(asked.lock_token)
    except ValueError:
        raise InvalidProperty("The lock token at the end of the address must be a UUID.") from None
    (lock,) = queue.locks.find([token.bytes_le])
    if asked.message != str(lock.message.sequence_number) and asked.message != message_id_of(lock.message.payload):
        raise MessageNotFound(f"The message with this lock token has another id than '{asked.message[:200]}'.")
    return lock


def _timeout(request: web.Request) -> int:
    text = request.query.get("timeout")
    if text is None:
        return DEFAULT_TIMEOUT_MS
    if not _TIMEOUT.fullmatch(text):
        raise InvalidProperty("timeout must be a whole number of seconds.")
    return min(int(text) * 1000, MAX_RECEIVE_MS)


async def _read_body(request: web.Request, limit: int, body: Body) -> bytes:
    too_large = MessageSizeExceeded(f"The body of the request is larger than {limit} bytes, the limit here.")
    if request.content_length is not None and request.content_length > limit:
        raise too_large
    parts: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS) as patience:
            async for part in request.content.iter_any():
                begun = size // PATIENCE_BYTES
                size += len(part)
                if size > limit:
                    raise too_large
                body.take(len(part))
                parts.append(part)
                if size // PATIENCE_BYTES > begun:
                    patience.reschedule(loop.time() + PATIENCE_SECONDS)
    except TimeoutError:
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, "The body of the request did not come in time.") from None
    return b"".join(parts)


async def _write(request: web.Request, response: web.Response, size: int) -> None:
    """Write an answer and wait until the system has taken all of it. ConnectionError when the client does not."""
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("The client has gone.")
    transport.set_write_buffer_limits(high=0)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS * (1 + size // PATIENCE_BYTES)):
            await response.prepare(request)
            await response.write_eof()
    except TimeoutError:
        transport.abort()
        raise ConnectionResetError("The client does not take the answer.") from None
    finally:
        transport.set_write_buffer_limits()
