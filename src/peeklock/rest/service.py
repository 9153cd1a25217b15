"""The service for sending, receiving and settling over HTTP.

The response to a send is written after its commit, as over AMQP. A locked message is released if the client disconnects
before the response is written.
"""

from __future__ import annotations

import asyncio
import re
from functools import partial
from http import HTTPStatus
from typing import Final
from uuid import UUID

from aiohttp import HttpVersion11, web

from peeklock.broker.access import Grant
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
from peeklock.limits.http import MAX_EMPTY_BODY, MAX_RECEIVE_MS, MAX_REST_BATCH_BYTES, TRANSFER_SECONDS
from peeklock.rest.addresses import MESSAGES, Action, MessageRequest, parse_request
from peeklock.rest.reading import BATCH_TYPE, read_batch, read_one
from peeklock.rest.receiving import Receive, Received
from peeklock.rest.usage import Body, NamespaceUsage
from peeklock.rest.writing import lock_token, write_message
from peeklock.server.http import TICKET, Messaging, origin_of, verify_token
from peeklock.server.refusals import Refused, refusal
from peeklock.server.waits import WAITS, TooManyRequests, durable

DEFAULT_TIMEOUT_MS: Final = 60_000
TRANSFER_BYTES: Final = 1024 * 1024
"""The size of each part of a request body or response that may take `TRANSFER_SECONDS`."""

_STATUSES: Final[dict[type[Exception], HTTPStatus]] = {
    MessageLockLost: HTTPStatus.NOT_FOUND,
    StorageFull: HTTPStatus.FORBIDDEN,
}
_SETTLEMENTS: Final = {
    Action.COMPLETE: Settlement(Verdict.COMPLETE),
    Action.UNLOCK: Settlement(Verdict.ABANDON),
}
_TIMEOUT = re.compile(r"[0-9]{1,9}")


def serve_messages(namespace: Namespace) -> Messaging:
    """Return the handler of requests that send, receive and settle."""
    return RestService(namespace)


class RestService:
    """Handles the requests for messages of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._usage = NamespaceUsage(namespace.held_memory)

    def answers(self, request: web.Request) -> bool:
        """Return whether this is a request for messages, and not for administration.

        The path may also be the path of an entity. Then a request with an api-version is for administration.
        """
        parsed = parse_request(request.method, request.rel_url.raw_path)
        if parsed is None:
            return False
        if parsed.action in (Action.SEND, Action.PEEK_LOCK, Action.RENEW_LOCK):
            return True  # administration does not use POST
        if parsed.action is Action.UNLOCK and request.can_read_body and request.content_length != 0:
            return False  # a PUT with a body creates or updates an entity
        whole = request.path.strip("/")
        return not self._exists(whole) or ("api-version" not in request.query and self._exists(parsed.entity))

    def _exists(self, path: str) -> bool:
        try:
            self._namespace.entity(path)
        except BrokerError:
            return False
        return True

    async def handle(self, request: web.Request) -> web.StreamResponse:
        parsed = parse_request(request.method, request.rel_url.raw_path)
        assert parsed is not None
        try:
            return await self._answer(request, parsed)
        except ConnectionError:
            raise  # the client has disconnected, so there is no response
        except Exception as failure:
            refused = refusal(
                failure,
                request,
                statuses=_STATUSES,
                sub_codes={},
                action=parsed.action,
                entity=parsed.entity,
                is_change=False,
                path=parsed.redacted_path,
            )
            if isinstance(failure, TooManyRequests):
                refused.force_close()
            return refused

    async def _answer(self, request: web.Request, parsed: MessageRequest) -> web.StreamResponse:
        token = request.headers.get("Authorization", "")
        grant = verify_token(self._namespace, token, request.rel_url.raw_path, request[TICKET])
        if not grant.allows(parsed.right, parsed.owner):
            raise Unauthorized(f"Unauthorized access to '{parsed.entity}': '{parsed.right}' claim is required.")
        match parsed.action:
            case Action.SEND:
                return await self._send(request, parsed, grant)
            case Action.PEEK_LOCK | Action.RECEIVE_AND_DELETE:
                return await self._receive(request, parsed, grant)
            case _:
                return await self._settle(request, parsed, grant)

    # --- sending ---

    async def _send(self, request: web.Request, parsed: MessageRequest, grant: Grant) -> web.Response:
        entity = self._namespace.entity(parsed.entity)
        entity.check_sending()
        limit, wants_session = entity.max_message_bytes, entity.reads_session_ids
        with self._usage.count_body(grant.rule) as body:
            if request.content_type.lower() == BATCH_TYPE:
                text = await _read_body(request, min(limit, MAX_REST_BATCH_BYTES), body)
                messages = read_batch(text, limit, wants_session)
            else:
                text = await _read_body(request, limit, body)
                messages = [read_one(request.raw_headers, text, limit, wants_session)]
            journal = self._namespace.journal
            if journal.unsaved_bytes > MAX_UNSAVED_BYTES:
                raise ServerBusy("The broker accepts no messages until its store has written earlier ones; try again.")
            size = sum(len(message.bare) for message in messages) * entity.copies
            body.take(size)
            journal.charge(size)
            try:
                await durable(partial(entity.send, messages))
            finally:
                journal.discharge(size)
        return web.Response(status=HTTPStatus.CREATED)

    # --- receiving ---

    async def _receive(self, request: web.Request, parsed: MessageRequest, grant: Grant) -> web.StreamResponse:
        queue = self._queue(parsed)
        queue.check_receiving()
        timeout_ms = _timeout(request)
        with self._usage.count_body(grant.rule) as body:
            await _read_body(request, MAX_EMPTY_BODY, body)
        usage = self._usage.of(grant.rule)
        usage.check_memory()
        deletes = parsed.action is Action.RECEIVE_AND_DELETE
        receive = Receive(self._namespace, queue, grant, usage, deletes=deletes, timeout_ms=timeout_ms)
        with request[WAITS].registered(request, receive.end):
            received = await receive.message()
        if received is None:
            return web.Response(status=HTTPStatus.NO_CONTENT)
        try:
            return await self._deliver(request, parsed, received, queue.holds_copies)
        except BaseException:
            receive.release(received)
            raise
        finally:
            receive.on_response_written(received)

    async def _deliver(
        self, request: web.Request, parsed: MessageRequest, received: Received, is_copy: bool
    ) -> web.StreamResponse:
        """Write the response with the message. Raise if the client cannot have received it."""
        message, lock = received
        written = write_message(message, lock, is_copy)
        if lock is not None:
            place = f"{origin_of(request)}/{parsed.raw_entity}/{MESSAGES}/{message.sequence_number}/{lock_token(lock)}"
            written.headers.append(("Location", place))
        response = web.Response(
            status=HTTPStatus.OK if lock is None else HTTPStatus.CREATED, headers=written.headers, body=written.body
        )
        if request.version >= HttpVersion11:
            response.enable_chunked_encoding()  # old clients treat Content-Length as a property of the message
        await _write(request, response, len(written.body))
        return response

    # --- settling ---

    async def _settle(self, request: web.Request, parsed: MessageRequest, grant: Grant) -> web.Response:
        queue = self._queue(parsed)
        with self._usage.count_body(grant.rule) as body:
            await _read_body(request, MAX_EMPTY_BODY, body)
        lock = _lock(queue, parsed)
        if parsed.action is Action.RENEW_LOCK:
            queue.renew([lock])
        else:
            settlement = _SETTLEMENTS[parsed.action]
            await durable(lambda done: queue.settlements.settle(settlement, lock, done))
        return web.Response()

    def _queue(self, parsed: MessageRequest) -> Queue:
        queue = self._namespace.queue(parsed.entity)
        if not is_without_sessions(queue):
            raise OperationNotAllowed(
                f"The entity '{queue.path}' requires sessions, which cannot be received over HTTP: use AMQP."
            )
        return queue


def _lock(queue: Queue, parsed: MessageRequest) -> Lock:
    """Return the lock that the request names. Raise if it is unknown or belongs to another message."""
    try:
        token = UUID(parsed.lock_token)
    except ValueError:
        raise InvalidProperty("The lock token at the end of the address must be a UUID.") from None
    (lock,) = queue.locks.find([token.bytes_le])
    if parsed.message != str(lock.message.sequence_number) and parsed.message != message_id_of(lock.message.payload):
        raise MessageNotFound(
            f"The lock token belongs to another message: neither its id nor its sequence number is "
            f"'{parsed.message[:200]}'."
        )
    return lock


def _timeout(request: web.Request) -> int:
    text = request.query.get("timeout")
    if text is None:
        return DEFAULT_TIMEOUT_MS
    if not _TIMEOUT.fullmatch(text):
        raise InvalidProperty("timeout must be a whole number of seconds.")
    return min(int(text) * 1000, MAX_RECEIVE_MS)


async def _read_body(request: web.Request, limit: int, body: Body) -> bytes:
    too_large = MessageSizeExceeded(f"The body of the request is larger than {limit} bytes.")
    if request.content_length is not None and request.content_length > limit:
        raise too_large
    parts: list[bytes] = []
    size = 0
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(TRANSFER_SECONDS) as deadline:
            async for part in request.content.iter_any():
                begun = size // TRANSFER_BYTES
                size += len(part)
                if size > limit:
                    raise too_large
                body.take(len(part))
                parts.append(part)
                if size // TRANSFER_BYTES > begun:
                    deadline.reschedule(loop.time() + TRANSFER_SECONDS)
    except TimeoutError:
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, "The body of the request did not arrive in time.") from None
    return b"".join(parts)


async def _write(request: web.Request, response: web.Response, size: int) -> None:
    """Write a response and wait until it is in the kernel's send buffer. Raise ConnectionError if that fails."""
    transport = request.transport
    if transport is None or transport.is_closing():
        raise ConnectionResetError("The client has disconnected.")
    transport.set_write_buffer_limits(high=0)
    try:
        async with asyncio.timeout(TRANSFER_SECONDS * (1 + size // TRANSFER_BYTES)):
            await response.prepare(request)
            await response.write_eof()
    except TimeoutError:
        transport.abort()
        raise ConnectionResetError("The client did not read the response in time.") from None
    finally:
        transport.set_write_buffer_limits()
