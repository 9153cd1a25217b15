"""Sends the messages of one task: in full batches, several at a time, with retries when the service fails.

Messages of a session are enqueued in the given order, also after failures. Messages without a session are enqueued in
order if the service accepts each at the first attempt. A batch has messages of one session or partition key only, since
a partitioned entity accepts no other batches. The caller makes the messages and handles refused ones.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from peeklock.amqp.errors import Condition
from peeklock.amqp.outcomes import Rejected
from peeklock.client import Batch, ClientError, Connection, LinkClosed, Sender, SendRejected, batch_limit
from peeklock.client.sender import Sent
from peeklock.spark.parcels import Parcel, Run, runs_of

log = logging.getLogger(__name__)

MAX_IN_FLIGHT: Final = 500
"""The most transfers without an outcome."""
MAX_IN_FLIGHT_BYTES: Final = 8 * 1024 * 1024

TRANSIENT: Final = frozenset(
    {
        Condition.SERVER_BUSY,
        Condition.TIMEOUT,
        Condition.INTERNAL_ERROR,
        Condition.OPERATION_CANCELLED,
        Condition.RESOURCE_LIMIT_EXCEEDED,
        Condition.RESOURCE_LOCKED,
        Condition.DETACH_FORCED,
        Condition.CONNECTION_FORCED,
        Condition.CONTAINER_CLOSE,
        Condition.PARTITION_NOT_OWNED,
    }
)
"""Outcomes and link errors after which the same request may succeed."""
ABOUT_THE_MESSAGE: Final = frozenset(
    {
        Condition.MESSAGE_SIZE_EXCEEDED,
        Condition.DECODE_ERROR,
        Condition.INVALID_FIELD,
        Condition.NOT_ALLOWED,
        Condition.NOT_IMPLEMENTED,
        Condition.ARGUMENT_ERROR,
        Condition.ARGUMENT_OUT_OF_RANGE,
        Condition.NO_MATCHING_SUBSCRIPTION,
    }
)
"""Outcomes that depend on the message. Any other concerns the entity."""
_NO_TARGET: Final = frozenset({Condition.NOT_FOUND, Condition.NOT_ALLOWED, Condition.NOT_IMPLEMENTED})
"""Attach errors that mean that the entity does not exist or accepts no messages."""

Refused = Callable[[Parcel, str], None]
"""Called with a message that the service rejects, and the reason; an exception ends the sending."""


class SendingFailed(Exception):
    """The service did not accept the messages within the allowed retries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """The number of retries in a row without an accepted message, and the delays before them."""

    retries: int = 8
    first_delay: float = 0.1
    max_delay: float = 5.0

    def delay(self, failures: int) -> float:
        """Return the seconds to wait before the next attempt, after this many failures in a row."""
        return float(min(self.first_delay * 2.0 ** (failures - 1), self.max_delay))


@dataclass(slots=True, eq=False)
class _Flight:
    """A batch without an outcome: the messages of a run from `start` up to, without, `stop`."""

    run: Run
    start: int
    stop: int
    batch: Batch
    sent: Sent | None = field(default=None)

    @property
    def entity(self) -> str:
        return self.run.entity

    @property
    def session(self) -> tuple[str, str] | None:
        return None if self.run.session_id is None else (self.run.entity, self.run.session_id)

    def __len__(self) -> int:
        return self.stop - self.start

    def parcels(self) -> Iterator[Parcel]:
        return map(self.run.parcel, range(self.start, self.stop))


class Outbox:
    """Sends the messages of one task, and counts `accepted` messages and `retries`. A context manager."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        refused: Refused,
        *,
        entity: str | None = None,
        patience: Patience | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`entity` must exist. Messages to other entities that do not exist are refused."""
        self._connect = connect
        self._refused = refused
        self._entity = entity
        self._patience = patience or Patience()
        self._sleep = sleep
        self._connection: Connection | None = None
        self._senders: dict[str, Sender] = {}
        self._flights: deque[_Flight] = deque()
        """Batches without an outcome, in the order they were made; kept between calls."""
        self._sessions: dict[tuple[str, str], int] = {}
        """The number of those batches by session."""
        self._bytes = 0
        self._behind = False
        """Whether some batches must be sent again before any other batch."""
        self._failures = 0
        """Consecutive failures."""
        self.accepted = 0
        self.retries = 0

    def __enter__(self) -> Outbox:
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()

    def send(self, parcels: Iterable[Parcel]) -> None:
        """Send all and wait for all outcomes."""
        self.post(runs_of(parcels))
        self.finish()

    def post(self, runs: Iterable[Run]) -> None:
        """Send runs without waiting for outcomes: the service processes them while the next are encoded."""
        self._wake()
        turns = deque(map(self._fill, runs))
        while turns:  # one batch of each run in turn: a session's next batch waits for the outcome of the last
            filling = turns.popleft()
            flight = next(filling, None)
            if flight is not None:
                self._launch(flight)
                turns.append(filling)
        # Wait until all is written to the socket: the caller may then take long before its next call.
        self._land(lambda: not self._behind and (self._connection is None or not self._connection.writing))

    def finish(self) -> None:
        """Wait for all outcomes."""
        self._land(lambda: not self._flights)

    # --- filling batches ---

    def _fill(self, run: Run) -> Iterator[_Flight]:
        try:
            sender = self._reach(run.entity)
        except _NotThere as missing:
            for at in range(len(run)):
                self._refused(run.parcel(at), str(missing))
            return
        largest, most = sender.max_message_size, batch_limit(sender)
        at = 0
        while at < len(run):
            stop = run.batch_end(at, most)
            length = run.size(at)
            if largest and length > largest:
                self._refused(
                    run.parcel(at), f"the message has {length} bytes; '{run.entity}' accepts at most {largest}"
                )
            else:
                yield _Flight(run, at, stop, run.batch(at, stop))
            at = stop

    def _reach(self, entity: str) -> Sender:
        """Return a link to the entity, with retries if the service fails."""
        while True:
            try:
                return self._sender(entity)
            except ClientError as error:
                self._recover(error)

    # --- batches in flight ---

    def _launch(self, flight: _Flight) -> None:
        size = len(flight.batch.payload)
        if len(self._flights) >= MAX_IN_FLIGHT or (self._flights and self._bytes + size > MAX_IN_FLIGHT_BYTES):
            # Wait until half of them have outcomes, so that writes are few and large.
            few, little = MAX_IN_FLIGHT // 2, MAX_IN_FLIGHT_BYTES // 2
            self._land(
                lambda: not self._flights or (len(self._flights) <= few and self._bytes + size <= max(little, size))
            )
        session = flight.session
        if session in self._sessions:
            # One batch at a time: if the service refused one and accepted the next, the order would be lost.
            self._land(lambda: session not in self._sessions)
        self._add(flight, len(self._flights))
        try:
            if self._behind:
                self._post_again()
            else:
                self._post(flight)
        except ClientError as error:
            self._collect()
            self._recover(error)

    def _post(self, flight: _Flight) -> None:
        try:
            sender = self._sender(flight.entity)
        except _NotThere as missing:
            self._drop(flight)
            for parcel in flight.parcels():
                self._refused(parcel, str(missing))
            return
        flight.sent = sender.post(flight.batch.payload, message_format=flight.batch.message_format)

    def _land(self, done: Callable[[], bool]) -> None:
        """Wait for outcomes, and send failed batches again, until `done`."""
        while not done():
            try:
                self._post_again()
                posted = [flight.sent for flight in self._flights if flight.sent is not None]
                if not posted:
                    continue
                middle = posted[len(posted) // 2]
                assert self._connection is not None
                self._connection.wait(lambda: middle.done or self._is_cut(), None, "the outcome of a batch")  # noqa: B023
                self._collect()
                for sender in self._senders.values():
                    sender.check()
            except ClientError as error:
                self._collect()
                self._recover(error)

    def _is_cut(self) -> bool:
        return any(sender.closed for sender in self._senders.values())

    def _post_again(self) -> None:
        """Send failed batches again, in order; one batch of a session at a time."""
        busy: set[tuple[str, str]] = set()
        behind = False
        for flight in list(self._flights):
            session = flight.session
            if flight.sent is None:
                if session in busy:
                    behind = True
                else:
                    self._post(flight)
            if session is not None:
                busy.add(session)
        self._behind = behind

    def _collect(self) -> None:
        """Process the outcomes that have arrived."""
        again: SendRejected | None = None
        for flight in list(self._flights):
            sent = flight.sent
            if sent is None or not sent.done:
                continue
            if sent.refused is None:
                self._drop(flight)
                self.accepted += len(flight)
                self._failures = 0
            elif not isinstance(sent.outcome, Rejected) or sent.refused.condition not in ABOUT_THE_MESSAGE:
                flight.sent = None
                self._behind = True
                again = sent.refused
            elif len(flight) == 1:
                self._drop(flight)
                self._refused(flight.run.parcel(flight.start), f"the service refused the message: {sent.refused}")
            else:
                self._split(flight)
        if again is not None:
            self._pause(again)

    def _split(self, flight: _Flight) -> None:
        """Send each message of a refused batch alone, as the service refuses a batch as a whole."""
        at = self._flights.index(flight)
        self._behind = True
        self._drop(flight)
        run = flight.run
        for offset, row in enumerate(range(flight.start, flight.stop)):
            self._add(_Flight(run, row, row + 1, run.batch(row, row + 1)), at + offset)

    def _add(self, flight: _Flight, at: int) -> None:
        self._flights.insert(at, flight)
        self._bytes += len(flight.batch.payload)
        if flight.session is not None:
            self._sessions[flight.session] = self._sessions.get(flight.session, 0) + 1

    def _drop(self, flight: _Flight) -> None:
        self._flights.remove(flight)
        self._bytes -= len(flight.batch.payload)
        if flight.session is not None:
            self._sessions[flight.session] -= 1
            if not self._sessions[flight.session]:
                del self._sessions[flight.session]

    # --- the connection ---

    def _sender(self, entity: str) -> Sender:
        sender = self._senders.get(entity)
        if sender is not None and not sender.closed:
            return sender
        if self._connection is None or not self._connection.is_open:
            self._disconnect()
            self._connection = self._connect()
        try:
            sender = self._senders[entity] = self._connection.sender(entity)
        except ClientError as error:
            if entity != self._entity and error.condition in _NO_TARGET:
                raise _NotThere(f"'{entity}' accepts no messages: {error.description}") from None
            raise
        return sender

    def _wake(self) -> None:
        """Process frames received since the last call. A connection closed since then does not count as a failure."""
        if self._connection is not None:
            try:
                self._connection.work()
            except ClientError:
                self._disconnect()
            self._collect()
            self._send_again()

    def _recover(self, error: ClientError) -> None:
        """Handle a closed link or connection. Raises SendingFailed if a retry cannot help."""
        if isinstance(error, LinkClosed):
            for entity in [entity for entity, sender in self._senders.items() if sender.closed]:
                del self._senders[entity]
        else:
            self._disconnect()
        self._send_again()
        self._pause(error)

    def _send_again(self) -> None:
        """Mark the batches in flight on a closed link or connection to be sent again, with the same message ids."""
        for flight in self._flights:
            if self._connection is None or flight.entity not in self._senders:
                flight.sent = None
                self._behind = True

    def _pause(self, error: ClientError) -> None:
        self._failures += 1
        if error.condition not in TRANSIENT:
            raise SendingFailed(f"the messages cannot be sent: {error}") from None
        if self._failures > self._patience.retries:
            raise SendingFailed(
                f"the messages could not be sent after {self._patience.retries} retries: {error}"
            ) from None
        self.retries += 1
        delay = self._patience.delay(self._failures)
        log.warning(
            "sending again in %.1f seconds (%d of %d): %s", delay, self._failures, self._patience.retries, error
        )
        self._sleep(delay)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        self._senders.clear()
        if connection is not None:
            with suppress(ClientError, OSError):  # the connection is dropped in any case
                connection.close()


class _NotThere(Exception):
    """The entity of a row does not exist or accepts no messages."""
