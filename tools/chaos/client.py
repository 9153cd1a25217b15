"""A client that notes what it does and is told: one connection at a time, made anew whenever it breaks.

Every operation is recorded with its outcome before a failure is raised. Who works with it is in `workers`.
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
    Cancellation,
    Delivery,
    Discharge,
    Gesture,
    History,
    Hold,
    LostCredit,
    Mishap,
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
"""Seconds; longer than any fault lasts, if not all of them together."""
SCHEDULED_TIME: Final = Symbol("x-opt-scheduled-enqueue-time")
_REFUSALS: Final = (SendRejected, SettlementFailed, RequestRefused)
_STATES: Final[dict[Gesture, Any]] = {
    Gesture.COMPLETE: Accepted(),
    Gesture.ABANDON: Modified(delivery_failed=True),
    Gesture.DEFER: Modified(undeliverable_here=True),
    Gesture.DEAD_LETTER: Rejected(error=Error(condition="com.microsoft:dead-letter", description="chaos")),
}
_STATUSES: Final = {
    Gesture.COMPLETE: "completed",
    Gesture.ABANDON: "abandoned",
    Gesture.DEFER: "defered",
    Gesture.DEAD_LETTER: "suspended",
}


@dataclass(frozen=True, slots=True)
class Taken:
    """A message that came, and what it takes to settle it."""

    delivery: Delivery
    receiver: Receiver | None = None
    message: ReceivedMessage | None = None
    token: UUID | None = None


@dataclass(frozen=True, slots=True)
class HeldSession:
    """A session that is held."""

    hold: Hold
    receiver: Receiver


class Client:
    """Not for several threads."""

    def __init__(self, name: str, address: str, history: History) -> None:
        self.name = name
        self._address = address
        self.history = history
        self._ids = count(1)
        self._connection: Connection | None = None
        self._senders: dict[str, Sender] = {}
        self._receivers: dict[str, tuple[Receiver, float]] = {}
        """With when they were attached."""
        self._management: dict[str, Management] = {}
        self._coordinator: Sender | None = None

    # --- its connection ---

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._address, timeout=TIMEOUT)
        return self._connection

    def drop(self) -> None:
        """Leave the connection; whatever comes next makes another."""
        connection, self._connection = self._connection, None
        self._senders.clear()
        self._receivers.clear()
        self._management.clear()
        self._coordinator = None
        if connection is not None:
            connection.timeout = 0.2  # it may be a stopped broker that does not answer the close
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
        """Send new messages in one piece; returns the record."""
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
        return self.noted(act, lambda _, **span: record(**span))

    def schedule(self, entity: str, amount: int, due: int) -> Send:
        ids = tuple(self.new_id() for _ in range(amount))
        messages = [_message(id, None, None, None) for id in ids]
        management = self.management(entity)

        def record(numbers: list[int] | None, **span: Any) -> Send:
            return Send(entity=entity, ids=ids, due=due, numbers=tuple(numbers or ()), **span)

        return self.noted(lambda: management.schedule(messages, due), record)

    def cancel(self, send: Send) -> None:
        """Take back what was scheduled. 404: it has come meanwhile."""
        management = self.management(send.entity)

        def record(_: Any, **span: Any) -> Cancellation:
            return Cancellation(entity=send.entity, ids=send.ids, **span)

        self.noted(lambda: management.cancel_scheduled(send.numbers), record)

    # --- receiving ---

    def receive(self, entity: str, amount: int, seconds: float, *, way: Way = Way.LOCK, credit: int = 0) -> list[Taken]:
        """Messages without a session, if any come in time."""
        if entity not in self._receivers:
            mode = ReceiveMode.RECEIVE_AND_DELETE if way is Way.DELETE else ReceiveMode.PEEK_LOCK
            begun = now()
            self._receivers[entity] = self.connection.receiver(entity, credit=credit, mode=mode), begun
        receiver, attached = self._receivers[entity]
        # Who prefetches may be given what came any time before.
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
                self.note_garbage(entity, error)
            else:
                taken.append(Taken(delivery, receiver, message))
        if time.monotonic() - begun > seconds + TIMEOUT:
            # The drain was not answered in time: more may come any time, and must not be taken for later.
            if way is Way.DELETE:
                self.history.add(LostCredit(entity=entity, count=amount, start=start, end=now()))
            self.drop()
        return taken

    def fetch(self, entity: str, numbers: Sequence[int], held: HeldSession | None = None) -> list[Taken]:
        """Deferred messages by their numbers; none when one of them is not there."""
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
                self.note_garbage(entity, error)
            else:
                taken.append(Taken(delivery, token=each["lock-token"]))
        return taken

    def note_garbage(self, entity: str, error: AmqpError) -> None:
        self.history.add(Mishap(start=now(), end=now(), text=f"{entity} gave out what is no message: {error}"))

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
        self, taken: Taken, gesture: Gesture, transaction: str | None = None, transaction_id: bytes | None = None
    ) -> Settlement:
        """Settle a message on its link, or by its token if it was fetched."""
        delivery = taken.delivery

        def record(_: Any, **span: Any) -> Settlement:
            return Settlement(delivery=delivery.name, gesture=gesture, transaction=transaction, **span)

        if taken.receiver is None or taken.message is None:
            assert taken.token is not None
            body: dict[str, Any] = {"disposition-status": _STATUSES[gesture], "lock-tokens": Array([taken.token], UUID)}
            if delivery.session is not None:
                body["session-id"] = delivery.session
            management = self.management(delivery.entity)
            return self.noted(lambda: management.request("update-disposition", body), record)
        state = _STATES[gesture]
        if transaction_id is not None:
            state = TransactionalState(transaction_id, state)
        return self.noted(partial(taken.receiver.settle, taken.message, state.encode(), wait=True), record)

    def renew(self, taken: Taken) -> None:
        delivery = taken.delivery
        token = taken.token or (taken.message.lock_token if taken.message is not None else None)
        management = self.management(delivery.entity)

        def record(answer: Any, **span: Any) -> Renewal:
            until = None if answer is None else int(answer["expirations"][0])
            return Renewal(delivery=delivery.name, until=until, **span)

        self.noted(lambda: management.request("renew-lock", {"lock-tokens": Array([token], UUID)}), record)

    # --- sessions ---

    def accept(self, entity: str, session: str | None, seconds: float) -> HeldSession:
        """Hold a session: the named one, or the next. LinkClosed when there is none to be had."""
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
        """`get`, `set` or `renew`."""
        body: dict[str, Any] = {"session-id": held.hold.session}
        if action == "set":
            body["session-state"] = None if value is None else value.encode()
        operation = {"get": "get-session-state", "set": "set-session-state", "renew": "renew-session-lock"}[action]
        management = self.management(held.hold.entity)

        def record(answer: Any, **span: Any) -> SessionCall:
            told = value
            if action == "get" and answer is not None:
                told = None if answer["session-state"] is None else bytes(answer["session-state"]).decode()
            return SessionCall(hold=held.hold.name, action=action, value=told, **span)

        return self.noted(lambda: management.request(operation, body), record)

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
        return self.noted(lambda: coordinator.send(end), record)

    # --- inside ---

    def noted(self, act: Callable[[], T], record: Callable[..., R]) -> R:
        """Do it and record how it went; a refusal is an outcome, anything else is raised."""
        start = now()
        try:
            answer = act()
        except _REFUSALS as refused:
            noted = record(None, start=start, end=now(), outcome=Outcome.NO, error=str(refused))
            self.history.add(noted)
            return noted
        except ClientError as failure:
            noted = record(None, start=start, end=now(), outcome=Outcome.UNKNOWN, error=str(failure))
            self.history.add(noted)
            raise
        noted = record(answer, start=start, end=now(), outcome=Outcome.OK)
        self.history.add(noted)
        return noted


def _message(id: str, session: str | None, key: str | None, due: int | None) -> Message:
    message = bodies.message(id, session, key)
    if due is not None:
        message = replace(message, message_annotations={SCHEDULED_TIME: Timestamp(due)})
    return message
