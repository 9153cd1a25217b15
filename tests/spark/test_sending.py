"""What one task sends: order, batches, refusals, and a service that fails in the middle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peeklock.amqp.message import Message, Properties
from peeklock.client import Connection, connect
from peeklock.client.administration import AdministrationClient
from peeklock.client.descriptions import Kind
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.settings import Status
from peeklock.spark import sending
from peeklock.spark.parcels import Parcel, runs_of
from peeklock.spark.sending import Outbox, Patience, SendingFailed
from serving import BrokerThread, ServedBroker, StartBroker

QUEUES = (
    QueueDefinition(name="queue"),
    QueueDefinition(name="other"),
    QueueDefinition(name="sessions", requires_session=True),
    QueueDefinition(name="once", requires_duplicate_detection=True),
    QueueDefinition(name="closed", status=Status.DISABLED),
)


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(*QUEUES)


class Refusals(list[tuple[int, str]]):
    """Rows that were refused, with the reasons."""

    def __call__(self, parcel: Parcel, reason: str) -> None:
        self.append((parcel.row, reason))

    @property
    def rows(self) -> list[int]:
        return [row for row, _ in self]


def parcel(
    row: int, entity: str = "queue", session: str | None = None, *, size: int = 0, key: str | None = None
) -> Parcel:
    message = Message(
        properties=Properties(message_id=str(row), group_id=session), data=[str(row).encode().ljust(size, b" ")]
    )
    return Parcel(row, entity, str(row), message.encode(), session, key)


def outbox(
    where: str, refused: Refusals, *, entity: str = "queue", sleep: Callable[[float], None] = lambda _: None
) -> Outbox:
    return Outbox(lambda: connect(where, timeout=10), refused, entity=entity, patience=Patience(retries=3), sleep=sleep)


def bodies(where: str, entity: str = "queue", session: str | None = None) -> list[int]:
    found: list[int] = []
    with connect(where) as connection, connection.management(entity) as management:
        number = 1
        while messages := management.peek(number, 1000, session):
            found += [int(message.data[0]) for message in messages]
            number = max(message.message_annotations["x-opt-sequence-number"] for message in messages) + 1  # type: ignore[index]
    return found


@pytest.fixture
def transfers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages were in each transfer."""
    counts: list[int] = []
    post = Outbox._post

    def counting(self: Outbox, flight: sending._Flight) -> None:
        counts.append(flight.batch.messages)
        post(self, flight)

    monkeypatch.setattr(Outbox, "_post", counting)
    return counts


def test_messages_without_a_key_keep_their_order_and_share_batches(broker: BrokerThread, transfers: list[int]) -> None:
    with outbox(broker.connection_string, Refusals()) as box:
        box.send(parcel(row, size=1000) for row in range(1000))
        assert box.accepted == 1000
    assert bodies(broker.connection_string) == list(range(1000))
    assert len(transfers) == 4  # of 256 KiB, the standard profile's limit


def test_each_session_keeps_its_order_and_no_batch_has_two(broker: BrokerThread, transfers: list[int]) -> None:
    with outbox(broker.connection_string, Refusals(), entity="sessions") as box:
        box.send(parcel(row, "sessions", f"s{row % 3}", size=1000) for row in range(1500))
    for session in range(3):
        assert bodies(broker.connection_string, "sessions", f"s{session}") == list(range(session, 1500, 3))
    assert len(transfers) == 6


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many transfers of a session were on their way after each that was sent."""
    counts: list[int] = []
    post = Outbox._post

    def watching(self: Outbox, flight: sending._Flight) -> None:
        post(self, flight)
        counts.append(sum(each.sent is not None for each in self._flights if each.session == flight.session))

    monkeypatch.setattr(Outbox, "_post", watching)
    return counts


def test_a_session_has_one_batch_on_its_way_at_a_time(broker: BrokerThread, together: list[int]) -> None:
    with outbox(broker.connection_string, Refusals(), entity="sessions") as box:
        box.send(parcel(row, "sessions", f"s{row % 2}", size=1000) for row in range(2000))
    assert len(together) == 8
    assert set(together) == {1}


def test_the_messages_of_a_batch_that_was_refused_go_one_after_the_other(
    broker: BrokerThread, together: list[int]
) -> None:
    with outbox(broker.connection_string, Refusals(), entity="sessions") as box:
        wrong = parcel(9, "sessions")._replace(session_id="s")
        box.send([*(parcel(row, "sessions", "s") for row in range(9)), wrong])
    assert len(together) == 11
    assert set(together) == {1}


def test_partition_keys_share_no_batch(broker: BrokerThread, transfers: list[int]) -> None:
    with outbox(broker.connection_string, Refusals()) as box:
        box.send(parcel(row, key=f"k{row % 2}") for row in range(10))
    assert len(transfers) == 2


def test_messages_go_to_the_entity_each_names(broker: BrokerThread) -> None:
    with outbox(broker.connection_string, Refusals()) as box:
        box.send(parcel(row, "queue" if row % 2 else "other") for row in range(10))
    assert bodies(broker.connection_string, "queue") == [1, 3, 5, 7, 9]
    assert bodies(broker.connection_string, "other") == [0, 2, 4, 6, 8]


def test_a_message_that_is_too_large_is_refused_alone(broker: BrokerThread) -> None:
    refused = Refusals()
    with outbox(broker.connection_string, refused) as box:
        box.send(parcel(row, size=300_000 if row == 2 else 10) for row in range(5))
    assert bodies(broker.connection_string) == [0, 1, 3, 4]
    assert refused.rows == [2]
    assert "accepts at most 262144" in refused[0][1]


def test_a_batch_that_the_service_refuses_loses_only_the_message_at_fault(broker: BrokerThread) -> None:
    refused = Refusals()
    with outbox(broker.connection_string, refused, entity="sessions") as box:
        wrong = parcel(2, "sessions")._replace(session_id="s")  # what it says is not what it has
        box.send([parcel(0, "sessions", "s"), parcel(1, "sessions", "s"), wrong, parcel(3, "sessions", "s")])
        assert box.accepted == 3
    assert bodies(broker.connection_string, "sessions", "s") == [0, 1, 3]
    assert refused.rows == [2]
    assert "refused" in refused[0][1]


def test_an_entity_that_a_message_names_and_is_not_there_refuses_the_message(broker: BrokerThread) -> None:
    refused = Refusals()
    with outbox(broker.connection_string, refused) as box:
        box.send([parcel(0), parcel(1, "nowhere"), parcel(2)])
    assert bodies(broker.connection_string) == [0, 2]
    assert refused.rows == [1]
    assert refused[0][1].startswith("'nowhere' accepts no messages: ")


def test_the_entity_of_the_write_must_be_there(broker: BrokerThread) -> None:
    refused = Refusals()
    with (
        outbox(broker.connection_string, refused, entity="nowhere") as box,
        pytest.raises(SendingFailed, match="nowhere"),
    ):
        box.send([parcel(0, "nowhere")])
    assert refused == []


def test_no_message_is_blamed_for_an_entity_that_is_closed(broker: BrokerThread) -> None:
    refused = Refusals()
    with (
        outbox(broker.connection_string, refused, entity="closed") as box,
        pytest.raises(SendingFailed, match="disabled"),
    ):
        box.send([parcel(0, "closed")])
    assert refused == []


def test_an_entity_that_is_closed_while_messages_are_sent_fails_the_write(broker: BrokerThread) -> None:
    refused = Refusals()
    with outbox(broker.connection_string, refused) as box:
        box.send([parcel(0)])
        with AdministrationClient.from_connection_string(broker.connection_string) as administration:
            administration.update(Kind.QUEUE, "queue", {"Status": "Disabled"})
        with pytest.raises(SendingFailed):
            box.send([parcel(1)])
    assert refused == []


def make_busy(broker: BrokerThread, busy: bool = True) -> None:
    """As if its store were far behind."""
    journal = broker.broker.namespace.journal
    extra = 1 << 40 if busy else -(1 << 40)
    broker.call(lambda: setattr(journal, "unsaved_bytes", journal.unsaved_bytes + extra))


def test_messages_for_a_busy_service_are_sent_later_and_sessions_in_order(broker: BrokerThread) -> None:
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            make_busy(broker, False)

    make_busy(broker)
    with outbox(broker.connection_string, Refusals(), sleep=sleep) as box:
        box.send(
            parcel(row, "queue" if row % 2 else "sessions", "s" if row % 2 == 0 else None, size=1000)
            for row in range(2000)
        )
        assert box.retries >= 2
        assert box.accepted == 2000
    assert waited[:2] == [0.1, 0.2]
    assert bodies(broker.connection_string, "sessions", "s") == list(range(0, 2000, 2))
    assert sorted(bodies(broker.connection_string)) == list(range(1, 2000, 2))


def test_a_service_that_is_busy_now_and_then_is_not_given_up(broker: BrokerThread) -> None:
    with outbox(broker.connection_string, Refusals(), sleep=lambda _: make_busy(broker, False)) as box:
        for row in range(5):  # more often than the patience for one failure
            make_busy(broker)
            box.send([parcel(row)])
        assert box.retries == 5
    assert bodies(broker.connection_string) == list(range(5))


@pytest.fixture
def killable(tmp_path: Path) -> Iterator[ServedBroker]:
    broker = ServedBroker(tmp_path)
    with AdministrationClient.from_connection_string(broker.connection_string) as administration:
        administration.create(Kind.QUEUE, "once", {"RequiresDuplicateDetection": True})
    yield broker
    broker.stop()


def test_a_broker_that_dies_in_the_middle_has_every_message_once_when_it_is_back(
    killable: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    posts = 0
    post = Outbox._post

    def killing(self: Outbox, flight: sending._Flight) -> None:
        nonlocal posts
        posts += 1
        post(self, flight)
        if posts == 5:
            killable.kill()

    monkeypatch.setattr(Outbox, "_post", killing)
    with outbox(killable.connection_string, Refusals(), entity="once", sleep=lambda _: killable.start()) as box:
        box.send(parcel(row, "once", size=1000) for row in range(3000))
        assert box.accepted == 3000
        assert box.retries >= 1
    assert bodies(killable.connection_string, "once") == list(range(3000))


def test_a_broker_that_was_restarted_while_nothing_was_sent_is_no_failure(killable: ServedBroker) -> None:
    with outbox(killable.connection_string, Refusals()) as box:
        box.send([parcel(0)])
        killable.kill()
        killable.start()
        box.send([parcel(1)])
        assert box.retries == 0
    assert bodies(killable.connection_string) == [0, 1]


def test_unconfirmed_messages_are_sent_again_after_the_broker_was_killed(killable: ServedBroker) -> None:
    with outbox(killable.connection_string, Refusals(), entity="once") as box:
        for first in range(0, 3000, 1000):
            box.post(runs_of(parcel(row, "once", size=1000) for row in range(first, first + 1000)))
            killable.kill()
            killable.start()
        box.finish()
        assert box.accepted == 3000
    assert bodies(killable.connection_string, "once") == list(range(3000))


def test_the_next_messages_are_sent_before_the_outcomes_of_those_before_are_known(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with outbox(broker.connection_string, Refusals()) as box:
        monkeypatch.setattr(Outbox, "_collect", lambda self: None)  # as if none had come yet
        for row in range(3):
            box.post(runs_of([parcel(row)]))
        assert box.accepted == 0
        monkeypatch.undo()
        box.finish()
        assert box.accepted == 3
    assert bodies(broker.connection_string) == [0, 1, 2]


def test_a_broker_that_stays_away_ends_the_sending_after_so_many_attempts(killable: ServedBroker) -> None:
    waited: list[float] = []
    where = killable.connection_string
    killable.kill()
    with outbox(where, Refusals(), sleep=waited.append) as box, pytest.raises(SendingFailed, match="after 3 retries"):
        box.send([parcel(0)])
    assert len(waited) == 3


def test_an_invalid_key_is_reported_at_once(broker: BrokerThread) -> None:
    def wrong() -> Connection:
        return connect(broker.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x"), timeout=10)

    with Outbox(wrong, Refusals(), entity="queue") as box, pytest.raises(SendingFailed, match="cannot be sent"):
        box.send([parcel(0)])


def test_the_waits_grow_up_to_a_limit() -> None:
    patience = Patience()
    assert [patience.delay(failures) for failures in (1, 2, 3, 8, 60)] == [0.1, 0.2, 0.4, 5.0, 5.0]
