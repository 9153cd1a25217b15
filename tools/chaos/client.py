"""A client that records every operation and its outcome in the history. `workers` uses it.

It has one connection at a time and connects again when that breaks. An operation that fails is recorded before the
exception is raised.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar
from uuid import UUID

from peeklock.amqp.errors import AmqpError
from peeklock.amqp.outcomes import Accepted, Error, Modified, Rejected
from peeklock.amqp.transactions import Coordinator, Declare, TransactionalState
from peeklock.amqp.transactions import Discharge as EndTransaction
from peeklock.client import (
    Array,
    ClientError,
    Connection,
    Management,
    Message,
    Properties,
    ReceivedMessage,
    ReceiveMode,
    Receiver,
    RequestRefused,
    Sender,
    SendRejected,
    SettlementFailed,
    Symbol,
    Timestamp,
    UInt,
    connect,
)
from peeklock.client.batches import BATCH_FORMAT
from peeklock.client.connection import SESSION_FILTER
from tools.chaos import bodies
from tools.chaos.history import (
    BrokerFailure,
    Cancellation,
    Delivery,
    Discharge,
    Disposition,
    History,
    Hold,
    LostCredit,
    Outcome,
    Record,
    Renewal,
    Send,
    SessionCall,
    Settlement,
    Way,
    now,
)

T = TypeVar("T")
R = TypeVar("R", bound=Record)
TIMEOUT: Final = 8.0
"""Seconds; longer than any single fault lasts."""
SCHEDULED_TIME: Final = Symbol("x-opt-scheduled-enqueue-time")
_REFUSALS: Final = (SendRejected, SettlementFailed, RequestRefused)
_STATES: Final[dict[Disposition, Any]] = {
    Disposition.COMPLETE: Accepted(),
    Disposition.ABANDON: Modified(delivery_failed=True),
    Disposition.DEFER: Modified(undeliverable_here=True),
    Disposition.DEAD_LETTER: Rejected(error=Error(condition="com.microsoft:dead-letter", description="chaos")),
}
_STATUSES: Final = {
    Disposition.COMPLETE: "completed",
    Disposition.ABANDON: "abandoned",
    Disposition.DEFER: "defered",
    Disposition.DEAD_LETTER: "suspended",
}


@dataclass(frozen=True, slots=True)
class Taken:
    """A received message with what is needed to settle it: its receiver, or its lock token if it was fetched."""

    delivery: Delivery
    receiver: Receiver | None = None
    message: ReceivedMessage | None = None
    token: UUID | None = None


@dataclass(frozen=True, slots=True)
class HeldSession:
    """An accepted session with its receiver."""

    hold: Hold
    receiver: Receiver


class Client:
    """A recording client, for use by one thread."""

    def __init__(self, name: str, address: str, history: History) -> None:
        self.name = name
        self._address = address
        self.history = history
        self._ids = count(1)
        self._connection: Connection | None = None
        self._senders: dict[str, Sender] = {}
        self._receivers: dict[str, tuple[Receiver, float]] = {}
        """Receivers by entity, with the time of their attach."""
        self._management: dict[str, Management] = {}
        self._coordinator: Sender | None = None

    # --- its connection ---

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._address, timeout=TIMEOUT)
        return self._connection

    def drop(self) -> None:
        """Close the connection. The next operation opens a new one."""
        connection, self._connection = self._connection, None
        self._senders.clear()
        self._receivers.clear()
        self._management.clear()
        self._coordinator = None
        if connection is not None:
            connection.timeout = 0.2  # a suspended broker does not answer the close
            with suppress(ClientError):
                connection.close()

    def new_id(self) -> str:
        return f"{self.name}.{next(self._ids)}"

    # --- sending ---

    def send(
        self,
        entity: str,
        amount: int = 1,
        *,
        session: str | None = None,
        key: str | None = None,
        due: int | None = None,
        transaction: str | None = None,
        transaction_id: bytes | None = None,
    ) -> Send:
        """Send new messages in one transfer, several as a batch; returns the record."""
        ids = tuple(self.new_id() for _ in range(amount))
        messages = [_message(id, session, key, due) for id in ids]
        sender = self._senders.get(entity)
        if sender is None:
            sender = self._senders[entity] = self.connection.sender(entity)
        state = None if transaction_id is None else TransactionalState(transaction_id)
        post = partial(sender.send, state=state)
        if amount == 1:
            act: Callable[[], Any] = partial(post, messages[0])
        else:
            envelope = Message(data=[message.encode() for message in messages])
            act = partial(post, envelope, message_format=BATCH_FORMAT)
        record = partial(Send, entity=entity, ids=ids, session=session, key=key, due=due, transaction=transaction)
        return self.recorded(act, lambda _, **span: record(**span))

    def schedule(self, entity: str, amount: int, due: int) -> Send:
        ids = tuple(self.new_id() for _ in range(amount))
        messages = [_message(id, None, None, None) for id in ids]
        management = self.management(entity)

        def record(numbers: list[int] | None, **span: Any) -> Send:
            return Send(entity=entity, ids=ids, due=due, numbers=tuple(numbers or ()), **span)

        return self.recorded(lambda: management.schedule(messages, due), record)

    def cancel(self, send: Send) -> None:
        """Cancel scheduled messages. 404 means that they have already been enqueued."""
        management = self.management(send.entity)

        def record(_: Any, **span: Any) -> Cancellation:
            return Cancellation(entity=send.entity, ids=send.ids, **span)

        self.recorded(lambda: management.cancel_scheduled(send.numbers), record)

    # --- receiving ---

    def receive(self, entity: str, amount: int, seconds: float, *, way: Way = Way.LOCK, credit: int = 0) -> list[Taken]:
        """Receive messages without a session, at most `amount` and for at most so many seconds."""
        if entity not in self._receivers:
            mode = ReceiveMode.RECEIVE_AND_DELETE if way is Way.DELETE else ReceiveMode.PEEK_LOCK
            begun = now()
            self._receivers[entity] = self.connection.receiver(entity, credit=credit, mode=mode), begun
        receiver, attached = self._receivers[entity]
        # With prefetch, the client may have received the messages any time since the attach.
        return self._receive(receiver, entity, amount, seconds, way, now() if credit == 0 else attached)

    def _receive(
        self,
        receiver: Receiver,
        entity: str,
        amount: int,
        seconds: float,
        way: Way,
        start: float,
        hold: Hold | None = None,
    ) -> list[Taken]:
        begun = time.monotonic()
        try:
            received = receiver.receive(amount, seconds)
        except ClientError:
            if way is Way.DELETE:
                self.history.add(LostCredit(entity=entity, count=amount, start=start, end=now()))
            raise
        end = now()
        taken: list[Taken] = []
        for message in received:
            try:
                delivery = self.delivery(message.message, entity, way, start, end, hold)
            except AmqpError as error:
                self.record_garbage(entity, error)
            else:
                taken.append(Taken(delivery, receiver, message))
        if time.monotonic() - begun > seconds + TIMEOUT:
            # The drain was not answered in time. Messages may still arrive, and would get wrong times.
            if way is Way.DELETE:
                self.history.add(LostCredit(entity=entity, count=amount, start=start, end=now()))
            self.drop()
        return taken

    def fetch(self, entity: str, numbers: Sequence[int], held: HeldSession | None = None) -> list[Taken]:
        """Receive deferred messages by their numbers; none if one of them does not exist."""
        body: dict[str, Any] = {"sequence-numbers": Array(numbers, int), "receiver-settle-mode": UInt(1)}
        if held is not None:
            body["session-id"] = held.hold.session
        start = now()
        try:
            found = self.management(entity).request("receive-by-sequence-number", body)
        except RequestRefused:
            return []
        end = now()
        taken = []
        for each in found["messages"]:
            hold = None if held is None else held.hold
            try:
                delivery = self.delivery(Message.decode(each["message"]), entity, Way.FETCH, start, end, hold)
            except AmqpError as error:
                self.record_garbage(entity, error)
            else:
                taken.append(Taken(delivery, token=each["lock-token"]))
        return taken

    def record_garbage(self, entity: str, error: AmqpError) -> None:
        self.history.add(BrokerFailure(start=now(), end=now(), text=f"{entity} delivered an invalid message: {error}"))

    def delivery(
        self, message: Message, entity: str, way: Way, start: float, end: float, hold: Hold | None
    ) -> Delivery:
        annotations = message.message_annotations or {}
        properties = message.properties or Properties()
        until = annotations.get("x-opt-locked-until")
        delivery = Delivery(
            name=f"{self.name}#{next(self._ids)}",
            entity=entity,
            id=bodies.id_of(message),
            number=int(annotations["x-opt-sequence-number"]),
            count=message.header.delivery_count if message.header is not None else 0,
            enqueued=int(annotations["x-opt-enqueued-time"]),
            way=way,
            until=None if until is None else int(until),
            session=properties.group_id,
            hold=None if hold is None else hold.name,
            changed=bodies.changes(message),
            start=start,
            end=end,
        )
        self.history.add(delivery)
        return delivery

    # --- settling ---

    def settle(
        self,
        taken: Taken,
        disposition: Disposition,
        transaction: str | None = None,
        transaction_id: bytes | None = None,
    ) -> Settlement:
        """Settle a message on its link, or by its lock token if it was fetched."""
        delivery = taken.delivery

        def record(_: Any, **span: Any) -> Settlement:
            return Settlement(delivery=delivery.name, disposition=disposition, transaction=transaction, **span)

        if taken.receiver is None or taken.message is None:
            assert taken.token is not None
            body: dict[str, Any] = {
                "disposition-status": _STATUSES[disposition],
                "lock-tokens": Array([taken.token], UUID),
            }
            if delivery.session is not None:
                body["session-id"] = delivery.session
            management = self.management(delivery.entity)
            return self.recorded(lambda: management.request("update-disposition", body), record)
        state = _STATES[disposition]
        if transaction_id is not None:
            state = TransactionalState(transaction_id, state)
        return self.recorded(partial(taken.receiver.settle, taken.message, state.encode(), wait=True), record)

    def renew(self, taken: Taken) -> None:
        delivery = taken.delivery
        token = taken.token or (taken.message.lock_token if taken.message is not None else None)
        management = self.management(delivery.entity)

        def record(answer: Any, **span: Any) -> Renewal:
            until = None if answer is None else int(answer["expirations"][0])
            return Renewal(delivery=delivery.name, until=until, **span)

        self.recorded(lambda: management.request("renew-lock", {"lock-tokens": Array([token], UUID)}), record)

    # --- sessions ---

    def accept(self, entity: str, session: str | None, seconds: float) -> HeldSession:
        """Accept the named session, or the next one. LinkClosed when none is available."""
        connection = self.connection
        start = now()
        receiver = connection.session_receiver(entity, session, credit=0, wait=seconds)
        source = receiver.source
        assert source is not None
        accepted = (source.filter or {})[SESSION_FILTER]
        hold = Hold(name=f"{self.name}@{next(self._ids)}", entity=entity, session=accepted, start=start, end=now())
        self.history.add(hold)
        return HeldSession(hold, receiver)

    def receive_of(self, held: HeldSession, amount: int, seconds: float) -> list[Taken]:
        return self._receive(held.receiver, held.hold.entity, amount, seconds, Way.LOCK, now(), held.hold)

    def call_session(self, held: HeldSession, action: str, value: str | None = None) -> SessionCall:
        """Get or set the state of the session, or renew its lock: `get`, `set` or `renew`."""
        body: dict[str, Any] = {"session-id": held.hold.session}
        if action == "set":
            body["session-state"] = None if value is None else value.encode()
        operation = {"get": "get-session-state", "set": "set-session-state", "renew": "renew-session-lock"}[action]
        management = self.management(held.hold.entity)

        def record(answer: Any, **span: Any) -> SessionCall:
            state = value
            if action == "get" and answer is not None:
                state = None if answer["session-state"] is None else bytes(answer["session-state"]).decode()
            return SessionCall(hold=held.hold.name, action=action, value=state, **span)

        return self.recorded(lambda: management.request(operation, body), record)

    def management(self, entity: str) -> Management:
        if entity not in self._management:
            self._management[entity] = self.connection.management(entity)
        return self._management[entity]

    # --- transactions ---

    def declare(self) -> bytes:
        if self._coordinator is None:
            self._coordinator = self.connection.sender(Coordinator(capabilities=["amqp:local-transactions"]))
        declared: bytes = self._coordinator.send(Message(value=Declare())).txn_id
        return declared

    def discharge(self, transaction: str, transaction_id: bytes, *, commit: bool) -> Discharge:
        coordinator = self._coordinator
        assert coordinator is not None

        def record(_: Any, **span: Any) -> Discharge:
            return Discharge(transaction=transaction, commit=commit, **span)

        end = Message(value=EndTransaction(transaction_id, fail=not commit))
        return self.recorded(lambda: coordinator.send(end), record)

    # --- recording ---

    def recorded(self, act: Callable[[], T], record: Callable[..., R]) -> R:
        """Run an operation and record its outcome. A refusal is an outcome; other failures are recorded and raised."""
        start = now()
        try:
            answer = act()
        except _REFUSALS as refused:
            result = record(None, start=start, end=now(), outcome=Outcome.NO, error=str(refused))
            self.history.add(result)
            return result
        except ClientError as failure:
            result = record(None, start=start, end=now(), outcome=Outcome.UNKNOWN, error=str(failure))
            self.history.add(result)
            raise
        result = record(answer, start=start, end=now(), outcome=Outcome.OK)
        self.history.add(result)
        return result


def _message(id: str, session: str | None, key: str | None, due: int | None) -> Message:
    message = bodies.message(id, session, key)
    if due is not None:
        message = replace(message, message_annotations={SCHEDULED_TIME: Timestamp(due)})
    return message
