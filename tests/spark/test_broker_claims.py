"""What is special about claims that the broker keeps; what both protocols promise is in `test_claims`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from peeklock.client import Connection, ConnectionLost, Message, Properties, connect
from peeklock.entities.definitions import QueueDefinition
from peeklock.spark.broker_claims import BrokerClaims, claims_of
from peeklock.spark.claiming import ClaimReader
from peeklock.spark.claims import Claims
from peeklock.spark.offsets import Claim, Limit, Offset
from peeklock.spark.options import Options
from peeklock.spark.reach import Asked, Reach, SourceFailed
from peeklock.spark.rows import SCHEMA, numbers_of
from peeklock.spark.sending import Patience
from peeklock.spark.triggers import ReadMaxRows
from serving import BrokerThread, StartBroker, ticking

ALL = Limit()
QUEUES = (QueueDefinition(name="queue"), QueueDefinition(name="sessions", requires_session=True))
Make = Callable[..., BrokerClaims]


@pytest.fixture
def broker(start_broker: StartBroker) -> Iterator[BrokerThread]:
    broker = start_broker(*QUEUES)
    with ticking(broker):
        yield broker


@pytest.fixture
def connection(broker: BrokerThread) -> Iterator[Connection]:
    with connect(broker.connection_string) as connection:
        yield connection


def options_of(broker: BrokerThread, queue: str = "queue", **options: str) -> Options:
    given = {"connectionString": broker.connection_string, "queue": queue, "pollInterval": "10ms", "maxWait": "0s"}
    return Options.parse({**given, **options}, use="readStream")


@pytest.fixture
def make(broker: BrokerThread) -> Iterator[Make]:
    made: list[BrokerClaims] = []

    def make(queue: str = "queue", **options: str) -> BrokerClaims:
        parsed = options_of(broker, queue, **options)
        made.append(BrokerClaims(parsed, Reach(parsed, patience=Patience(retries=3), sleep=lambda _: None)))
        return made[-1]

    yield make
    for claims in made:
        claims.close()


def send(connection: Connection, count: int, queue: str = "queue", session_id: str | None = None) -> None:
    connection.sender(queue).send_all(
        Message(properties=Properties(group_id=session_id), data=[b"%d" % n]) for n in range(count)
    )


def following(claims: BrokerClaims, offset: Offset, claim: Claim) -> Offset:
    return offset.following(claim, claims.removing)


class Cut:
    """Cuts the connection of a reach when the broker has answered to so many requests of a kind."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, operation: str, *, before: bool = False) -> None:
        self.times = 0
        self._operation = operation
        self._before = before
        self._ask = Reach.ask
        monkeypatch.setattr(Reach, "ask", lambda reach, *arguments: self.ask(reach, *arguments))

    def ask(self, reach: Reach, operation: str, body: dict[str, Any]) -> Asked:
        if operation != self._operation or not self.times:
            return self._ask(reach, operation, body)
        self.times -= 1
        if not self._before:
            self._ask(reach, operation, body).answer()
        reach.connection._wire._socket.close()
        raise ConnectionLost("cut", "here")


def test_a_claim_whose_answer_is_lost_is_created_once(
    broker: BrokerThread, connection: Connection, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(connection, 20)
    cut = Cut(monkeypatch, "peeklock:claim-messages")
    claims = make()
    cut.times = 2
    assert claims.next(Limit(messages=5)).numbers == {None: [1, 2, 3, 4, 5]}
    assert broker.counters().claimed == 5
    cut.times = 1
    assert claims.next(Limit(messages=5)).numbers == {None: [6, 7, 8, 9, 10]}


@pytest.mark.parametrize("before", [False, True], ids=["answer", "request"])
def test_a_claim_whose_removal_is_unconfirmed_is_not_claimed_again(
    broker: BrokerThread, connection: Connection, make: Make, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    send(connection, 5)
    cut = Cut(monkeypatch, "peeklock:remove-claim", before=before)
    with make() as claims:
        first = following(claims, claims.start, claims.next(ALL))
        send(connection, 5)
        cut.times = 1000
        claims.settle(first)
        cut.times = 0
        with monkeypatch.context() as patch:
            patch.setattr(BrokerClaims, "_send_removals", lambda self: None)
            second = following(claims, first, claims.next(ALL))
        assert second.claimed == [[6, 10]]
        assert second.removing == first.ids
    claims = make()
    claims.settle(second)
    assert claims.next(ALL).count == 0
    assert broker.counters().claimed == 0


def test_found_claims_precede_new_ones_within_the_limit(connection: Connection, make: Make) -> None:
    send(connection, 30)
    with make() as claims:
        for _ in range(3):
            claims.next(Limit(messages=4))
    claims = make()
    found = [claims.next(Limit(messages=9)) for _ in range(4)]
    assert [claim.numbers[None] for claim in found] == [
        [1, 2, 3, 4, 5, 6, 7, 8],
        [9, 10, 11, 12],
        [13, 14, 15, 16, 17, 18, 19, 20, 21],
        [22, 23, 24, 25, 26, 27, 28, 29, 30],
    ]
    assert [len(claim.ids) for claim in found] == [2, 1, 1, 1]


def test_claims_of_a_session_are_found_before_newer_ones(connection: Connection, make: Make) -> None:
    send(connection, 4, "sessions", "a")
    with make("sessions") as claims:
        claims.next(Limit(messages=2))
    claims = make("sessions")
    batches = [claims.next(Limit(messages=2)) for _ in range(2)]
    assert [batch.numbers for batch in batches] == [{"a": [1, 2]}, {"a": [3, 4]}]


def test_a_partly_claimed_session_is_reserved_for_its_claim_name(
    broker: BrokerThread, connection: Connection, make: Make
) -> None:
    send(connection, 4, "sessions", "a")
    claims = make("sessions")
    claims.next(Limit(messages=2))
    with pytest.raises(Exception, match="timeout"):
        connection.session_receiver("sessions", wait=0.01)
    assert make("sessions", claimName="other").next(ALL).count == 0
    assert claims.next(ALL).numbers == {"a": [3, 4]}


# --- owners


def test_a_second_query_with_the_same_claim_name_is_refused_with_advice(connection: Connection, make: Make) -> None:
    send(connection, 5)
    first = make()
    first.next(ALL)
    with pytest.raises(SourceFailed, match=r"another query claims messages of 'queue' under .* different 'claimName'"):
        make().next(ALL)
    send(connection, 5)
    assert first.next(ALL).numbers == {None: [6, 7, 8, 9, 10]}
    assert make(claimName="other").next(ALL).count == 0


def test_a_query_gets_its_name_when_the_one_before_has_ended(connection: Connection, make: Make) -> None:
    send(connection, 5)
    first = make()
    first.next(ALL)
    second = make()
    second._reach._sleep = lambda _: first.close()
    assert second.next(ALL).numbers == {None: [1, 2, 3, 4, 5]}


def test_a_query_that_loses_its_connection_keeps_its_name(connection: Connection, make: Make) -> None:
    claims = make()
    claims.next(ALL)
    claims._reach.connection._wire._socket.close()
    send(connection, 5)
    assert claims.next(ALL).count == 5


def test_heartbeats_are_sent_while_a_batch_runs(
    broker: BrokerThread, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peeklock.spark.broker_claims._KEPT_ALIVE_S", 0.001)
    turns = threading.Semaphore(0)
    keep_alive = Reach.keep_alive
    monkeypatch.setattr(Reach, "keep_alive", lambda reach: (keep_alive(reach), turns.release()))
    claims = make()
    claims.next(ALL)
    for _ in range(5):
        assert turns.acquire(timeout=10)
    claims.close()
    assert claims._keeper is not None
    claims._keeper.join(10)
    assert not claims._keeper.is_alive()


# --- claiming ahead


def test_a_claim_made_ahead_is_the_next_batch(broker: BrokerThread, connection: Connection, make: Make) -> None:
    send(connection, 10)
    claims = make()
    limit = Limit(messages=4)
    claims.next(limit)
    claims.claim_ahead(limit)
    claims.claim_ahead(limit)  # there is one already
    assert claims.next(limit).numbers == {None: [5, 6, 7, 8]}
    assert broker.counters().claimed == 8


def test_a_claim_ahead_that_is_not_full_is_filled(connection: Connection, make: Make) -> None:
    send(connection, 6)
    claims = make()
    limit = Limit(messages=4)
    claims.next(limit)
    claims.claim_ahead(limit)
    claims._take_ahead()
    send(connection, 6)
    claim = claims.next(limit)
    assert claim.numbers == {None: [5, 6, 7, 8]}
    assert len(claim.ids) == 2


@pytest.mark.parametrize("is_answered", [False, True], ids=["asked", "answered"])
def test_a_claim_made_ahead_by_a_killed_query_is_found(
    connection: Connection, make: Make, monkeypatch: pytest.MonkeyPatch, is_answered: bool
) -> None:
    send(connection, 10)
    limit = Limit(messages=4)
    claims = make()
    noted = claims.start.following(claims.next(limit))
    claims.claim_ahead(limit)
    if is_answered:
        claims._take_ahead()
    connection.management("queue").peek()  # the broker has done by now what came before
    claims._reach.connection._wire._socket.close()
    claims = make()
    claims.settle(noted)
    found = [number for _ in range(2) for number in claims.next(limit).numbers.get(None, [])]
    assert sorted(found) == [5, 6, 7, 8, 9, 10]


def test_a_claim_made_ahead_that_the_service_did_not_receive_is_requested_again(
    connection: Connection, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(connection, 10)
    cut = Cut(monkeypatch, "peeklock:claim-messages", before=True)
    claims = make()
    limit = Limit(messages=4)
    claims.next(limit)
    cut.times = 1
    claims.claim_ahead(limit)
    assert claims.next(limit).numbers == {None: [5, 6, 7, 8]}


def test_a_stopped_query_releases_its_claims_made_ahead(broker: BrokerThread, connection: Connection) -> None:
    send(connection, 10)
    reader = ClaimReader(options_of(broker), SCHEMA)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(4))
    reader.partitions(start, end)
    connection.management("queue").peek()
    reader.stop()
    assert (broker.counters().claimed, broker.counters().active) == (4, 6)


def test_nothing_is_claimed_ahead_of_a_batch_that_was_not_full(broker: BrokerThread, connection: Connection) -> None:
    send(connection, 3)
    reader = ClaimReader(options_of(broker), SCHEMA)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(4))
    send(connection, 3)
    reader.partitions(start, end)
    assert reader.latestOffset(end, ReadMaxRows(4))["claimed"] == [[4, 6]]
    reader.stop()


def test_an_offset_names_the_claims_whose_removal_is_not_confirmed(
    broker: BrokerThread, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(connection, 8)
    reader = ClaimReader(options_of(broker), SCHEMA)
    offsets = [reader.initialOffset()]
    with monkeypatch.context() as patch:
        patch.setattr(BrokerClaims, "_send_removals", lambda self: None)
        for _ in range(2):
            offsets.append(reader.latestOffset(offsets[-1], ReadMaxRows(3)))
    offsets += [reader.latestOffset(offsets[-1], ReadMaxRows(3))]
    assert offsets[2]["removing"] == offsets[1]["claimIds"]
    assert reader.latestOffset(offsets[-1], ReadMaxRows(3)) == offsets[-1]
    assert broker.counters().claimed == 0
    reader.stop()


# --- choosing the protocol


@pytest.mark.parametrize(
    ("protocol", "offered", "kind"),
    [("auto", True, BrokerClaims), ("auto", False, Claims), ("broker", True, BrokerClaims), ("defer", True, Claims)],
)
def test_the_claim_protocol_follows_the_option_and_the_service(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, protocol: str, offered: bool, kind: type
) -> None:
    if not offered:
        monkeypatch.setattr(Connection, "capabilities", frozenset())
    with claims_of(options_of(broker, claimProtocol=protocol)) as claims:
        assert type(claims) is kind


def test_the_protocol_of_the_broker_is_refused_if_the_service_lacks_it(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "capabilities", frozenset())
    with pytest.raises(SourceFailed, match=r"'claimProtocol' is 'broker', but the service of 'queue' does not offer"):
        claims_of(options_of(broker, claimProtocol="broker"))


def test_the_log_names_the_protocol_once(
    broker: BrokerThread, connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "peeklock.spark")
    reader = ClaimReader(options_of(broker), SCHEMA)
    start = reader.initialOffset()
    for _ in range(3):
        reader.latestOffset(start, ReadMaxRows(4))
    reader.stop()
    assert [each for each in caplog.messages if each.startswith("claiming messages")] == [
        "claiming messages of 'queue' by claims of the broker"
    ]


@pytest.mark.parametrize(("chosen", "warned"), [("auto", 1), ("defer", 0)])
def test_a_warning_says_that_messages_are_deferred_because_the_service_has_no_claims(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, chosen: str, warned: int
) -> None:
    monkeypatch.setattr(Connection, "capabilities", frozenset())
    caplog.set_level("WARNING", "peeklock.spark")
    reader = ClaimReader(options_of(broker, claimProtocol=chosen), SCHEMA)
    for _ in range(2):
        reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    progress = reader.reportLatestOffset()
    reader.stop()
    assert progress is not None
    assert progress["claimProtocol"] == "defer"
    assert sum("the service of 'queue' does not offer claims" in each for each in caplog.messages) == warned


def test_messages_deferred_by_an_older_run_are_found_and_settled(
    broker: BrokerThread, connection: Connection, make: Make
) -> None:
    send(connection, 12)
    with Claims(options_of(broker)) as older:
        noted = older.start.following(older.next(Limit(messages=5)))
        older.take(Limit(messages=3))  # forgotten
    claims = make()
    claims.settle(noted)
    forgotten = claims.next(Limit(messages=5))
    assert forgotten.numbers == {None: [6, 7, 8]}
    offset = noted.following(forgotten, claims.removing)
    assert not offset.ids
    claims.settle(offset)
    assert claims.next(ALL).numbers == {None: [9, 10, 11, 12]}
    assert broker.counters().deferred == 0


def test_the_defer_protocol_cannot_settle_claims_of_the_broker(
    broker: BrokerThread, connection: Connection, make: Make
) -> None:
    send(connection, 3)
    with make() as claims:
        noted = claims.start.following(claims.next(ALL))
    with Claims(options_of(broker)) as older, pytest.raises(SourceFailed, match="only that broker can remove them"):
        older.settle(noted)
    assert broker.counters().claimed == 3


def test_an_offset_with_claims_of_the_broker_is_the_same_after_its_json() -> None:
    id, other = "6f2f1f4e-7e0c-4ea6-b2a1-6a3a4c1d2e3f", "00000000-0000-0000-0000-000000000001"
    offset = Offset(entity="q", claim="c", batch=3, size=9, claimed=[[1, 5]], ids=(id,), removing=(other,))
    assert Offset.parse(offset.json()) == offset
    with pytest.raises(ValueError, match="is not an offset of a claiming stream"):
        Offset.parse({**offset.json(), "claimIds": ["five"]})


def test_a_long_name_is_shortened_for_the_broker_and_stays_its_own(connection: Connection, make: Make) -> None:
    send(connection, 4)
    names = ["n" * 200 + end for end in "ab"]
    for name in names:
        with make(claimName=name) as claims:
            assert claims.next(Limit(messages=2)).count == 2
    found = [make(claimName=name).next(ALL).numbers for name in names]
    assert found == [{None: [1, 2]}, {None: [3, 4]}]


# --- reading


def test_pages_are_limited_in_bytes_and_requested_ahead(
    connection: Connection, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.sender("queue").send_all(Message(data=[bytes(10_000)]) for _ in range(40))
    monkeypatch.setattr("peeklock.spark.packed.PAGE_BYTES", 50_000)
    claims = make()
    claim = claims.next(ALL)
    pages = [
        page for page in claims.read(claim.parts[None], None, claim.size // claim.count) if isinstance(page, bytes)
    ]
    assert [number for page in pages for number in numbers_of(page, "queue")] == list(range(1, 41))
    assert max(map(len, pages)) < 60_000
    assert len(pages) == 10


def test_messages_that_are_larger_than_expected_come_all_the_same_and_in_order(
    connection: Connection, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [10] * 20 + [30_000] * 20 + [10] * 20
    connection.sender("queue").send_all(Message(data=[bytes(size)]) for size in sizes)
    monkeypatch.setattr("peeklock.spark.packed.PAGE_BYTES", 4000)
    monkeypatch.setattr("peeklock.spark.packed.MAX_PEEKED_BYTES", 64_000)
    claims = make()
    claim = claims.next(ALL)
    numbers = [
        number
        for page in claims.read(claim.parts[None], None, 10)
        for number in numbers_of(page if isinstance(page, bytes) else b"", "queue")
    ]
    assert numbers == list(range(1, 61))


def test_an_idle_poll_is_one_request(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = make()
    claims.next(ALL)
    asked: list[str] = []
    ask = Reach.ask
    monkeypatch.setattr(
        Reach, "ask", lambda reach, operation, body: (asked.append(operation), ask(reach, operation, body))[1]
    )
    for _ in range(10):
        assert claims.next(ALL).count == 0
    assert asked == ["peeklock:claim-messages"] * 10
