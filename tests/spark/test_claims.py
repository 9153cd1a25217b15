"""Claims that the broker keeps and claims by deferral, without Spark, on a broker whose clock can be moved."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any

import pytest

from peeklock.amqp.types import Array, Int, UByte
from peeklock.client import Connection, Management, Message, Properties, connect
from peeklock.engine.links import Link
from peeklock.engine.session import Session
from peeklock.entities.definitions import QueueDefinition
from peeklock.spark import ranges
from peeklock.spark.broker_claims import BrokerClaims
from peeklock.spark.claims import ClaimLost, Claims
from peeklock.spark.offsets import Claim, Limit, Offset
from peeklock.spark.options import Options
from peeklock.spark.reach import Reach, SourceFailed
from peeklock.spark.rows import Page, number_of, numbers_of
from peeklock.spark.sending import Patience
from serving import BrokerThread, StartBroker, ticking

ALL = Limit()
QUEUES = (QueueDefinition(name="queue"), QueueDefinition(name="sessions", requires_session=True))
AnyClaims = Claims | BrokerClaims
Make = Callable[..., AnyClaims]
PROTOCOLS = {"broker": BrokerClaims, "defer": Claims}

by_deferring = pytest.mark.parametrize("protocol", ["defer"])


@pytest.fixture
def broker(start_broker: StartBroker) -> Iterator[BrokerThread]:
    broker = start_broker(*QUEUES)
    with ticking(broker):
        yield broker


@pytest.fixture
def connection(broker: BrokerThread) -> Iterator[Connection]:
    with connect(broker.connection_string) as connection:
        yield connection


@pytest.fixture(params=list(PROTOCOLS))
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def claims_of(broker: BrokerThread, protocol: str) -> Iterator[Make]:
    made: list[AnyClaims] = []

    def make(queue: str = "queue", **options: str) -> AnyClaims:
        given = {"connectionString": broker.connection_string, "queue": queue, "pollInterval": "10ms", "maxWait": "0s"}
        parsed = Options.parse({**given, **options}, use="readStream")
        made.append(PROTOCOLS[protocol](parsed, Reach(parsed, patience=Patience(retries=3), sleep=lambda _: None)))
        return made[-1]

    yield make
    for claims in made:
        claims.close()


def send(connection: Connection, count: int, queue: str = "queue", size: int = 10) -> None:
    connection.sender(queue).send_all(Message(data=[b"%d" % n + bytes(size)]) for n in range(count))


def send_to_session(connection: Connection, session_id: str, count: int) -> None:
    messages = (Message(properties=Properties(group_id=session_id), data=[b"%d" % n]) for n in range(count))
    connection.sender("sessions").send_all(messages)


def noted(claims: AnyClaims, claim: Claim) -> Offset:
    return claims.start.following(claim, claims.removing, claims.owner)


def settle(claims: AnyClaims, offset: Offset) -> None:
    claims.settle(offset)
    claims.finish()


def in_page(page: Page) -> list[int]:
    return numbers_of(page, "queue") if isinstance(page, bytes) else list(map(number_of, page))


def read(claims: AnyClaims, numbers: ranges.Ranges, session_id: str | None = None) -> list[int]:
    return [number for page in claims.read(numbers, session_id) for number in in_page(page)]


def set_aside(broker: BrokerThread, queue: str = "queue") -> int:
    counters = broker.counters(queue)
    return counters.deferred + counters.claimed


def remove_some(connection: Connection, numbers: ranges.Ranges) -> None:
    """Of the messages that are claimed, by whatever protocol, as somebody else may do it."""
    management = connection.management("queue")
    listed = management.request("peeklock:list-claims", {"skip": Int(0), "top": Int(100)})
    body: dict[str, Any] = {"sequence-numbers": Array(list(ranges.numbers(numbers)), int)}
    if not listed:
        management.request("receive-by-sequence-number", {**body, "receiver-settle-mode": UByte(0)})
    for claim in listed.get("claims", ()):
        named = {"claim-name": claim["claim-name"], "claim-id": claim["claim-id"]}
        bounds = Array([bound for each in numbers for bound in each], int)
        management.request("peeklock:remove-claim", {**named, "ranges": bounds})


def test_claimed_messages_are_deferred_and_not_delivered(
    broker: BrokerThread, connection: Connection, claims_of: Make
) -> None:
    send(connection, 5)
    claim = claims_of().next(ALL)
    assert claim.numbers == {None: [1, 2, 3, 4, 5]}
    assert set_aside(broker) == 5
    assert connection.receiver("queue", credit=0).receive(10, timeout=0) == []


def test_claimed_messages_can_be_read_repeatedly_and_are_not_counted(connection: Connection, claims_of: Make) -> None:
    send(connection, 5)
    claims = claims_of()
    offset = noted(claims, claims.next(ALL))
    assert read(claims, offset.claimed) == read(claims_of(), offset.claimed) == [1, 2, 3, 4, 5]
    [message, *_] = connection.management("queue").peek()
    assert message.header is not None
    assert not message.header.delivery_count


def test_settled_claims_are_removed(broker: BrokerThread, connection: Connection, claims_of: Make) -> None:
    send(connection, 1200)
    claims = claims_of()
    settle(claims, noted(claims, claims.next(ALL)))
    assert set_aside(broker) == broker.counters().active == 0


def test_settling_a_partly_removed_claim_settles_the_remaining_messages(
    broker: BrokerThread, connection: Connection, claims_of: Make
) -> None:
    send(connection, 1200)
    claims = claims_of()
    offset = noted(claims, claims.next(ALL))
    remove_some(connection, [[3, 3], [500, 700]])
    assert set_aside(broker) == 998
    settle(claims, offset)
    settle(claims, offset)
    assert set_aside(broker) == 0


def test_a_limit_of_messages_holds_and_the_rest_stays_active(
    broker: BrokerThread, connection: Connection, claims_of: Make
) -> None:
    send(connection, 10)
    claims = claims_of()
    assert claims.next(Limit(messages=4)).numbers == {None: [1, 2, 3, 4]}
    assert broker.counters().active == 6


def test_a_limit_of_bytes_is_reached_by_the_last_message(connection: Connection, claims_of: Make) -> None:
    send(connection, 50, size=1000)
    claim = claims_of().next(Limit(size=20_500))
    assert claim.size - claim.size // claim.count < 20_500 <= claim.size
    assert claim.numbers == {None: list(range(1, claim.count + 1))}


def test_one_message_is_claimed_even_beyond_the_limit_of_bytes(connection: Connection, claims_of: Make) -> None:
    send(connection, 3, size=1000)
    assert claims_of().next(Limit(size=1)).numbers == {None: [1]}


def test_messages_after_the_end_of_a_batch_are_not_claimed(
    broker: BrokerThread, connection: Connection, claims_of: Make
) -> None:
    send(connection, 5)
    claims = claims_of()
    ends = {0: 5}
    send(connection, 5)
    assert claims.next(Limit(ends=ends)).numbers == {None: [1, 2, 3, 4, 5]}
    assert claims.next(Limit(ends=ends)).count == 0
    assert broker.counters().active == 5


def test_claims_missing_in_the_checkpoint_are_found_by_their_name(connection: Connection, claims_of: Make) -> None:
    send(connection, 3)
    with claims_of() as claims:
        claims.next(ALL)
    send(connection, 2)
    assert claims_of().next(ALL).numbers == {None: [1, 2, 3, 4, 5]}


def test_claims_of_another_name_are_not_changed(connection: Connection, claims_of: Make) -> None:
    send(connection, 3)
    other = claims_of(claimName="other").next(ALL)
    send(connection, 2)
    claims = claims_of()
    assert claims.next(ALL).numbers == {None: [4, 5]}
    assert claims.is_searched
    assert read(claims, ranges.of_numbers(other.numbers[None])) == [1, 2, 3]


@pytest.fixture
def move_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let queries start on a machine that knows nothing about the queries of other machines."""

    def move(machine: str) -> None:
        folder = tmp_path / machine
        folder.mkdir(exist_ok=True)
        monkeypatch.setattr("tempfile.tempdir", str(folder))

    move("one")
    return move


@by_deferring
def test_a_second_query_on_this_machine_is_refused_until_the_first_has_ended(
    connection: Connection, claims_of: Make, move_to: Callable[[str], None]
) -> None:
    send(connection, 3)
    second = claims_of()
    with claims_of() as first:
        claim = first.next(ALL)
        with pytest.raises(SourceFailed, match="under the name 'spark:queue': set a different 'claimName'"):
            second.next(ALL)
        assert read(first, claim.parts[None]) == [1, 2, 3]
    assert second.next(ALL).numbers == {None: [1, 2, 3]}
    assert claims_of(claimName="other").next(ALL).count == 0


@by_deferring
def test_a_query_is_refused_while_a_query_of_another_machine_may_own_claims(
    broker: BrokerThread, connection: Connection, claims_of: Make, move_to: Callable[[str], None]
) -> None:
    send(connection, 3)
    first = claims_of()
    offset = noted(first, first.next(ALL))
    move_to("two")
    send(connection, 2)
    with pytest.raises(SourceFailed, match="start this one once with claimName 'spark:queue'"):
        claims_of().next(ALL)
    assert (set_aside(broker), broker.counters().active) == (3, 2)
    settle(first, offset)
    assert claims_of().next(ALL).numbers == {None: [4, 5]}


@by_deferring
def test_a_named_query_takes_over_claims_of_an_unnamed_one(
    connection: Connection, claims_of: Make, move_to: Callable[[str], None]
) -> None:
    send(connection, 3)
    claims_of().next(ALL)
    for machine, name in (("two", {"claimName": "spark:queue"}), ("three", {})):
        move_to(machine)
        with claims_of(**name) as claims:
            taken = claims.next(ALL)
            if name:
                assert taken.numbers == {None: [1, 2, 3]}
                assert noted(claims, taken).owner == ""
                settle(claims, noted(claims, taken))
                send(connection, 2)
                claims.next(ALL)
            else:  # marked only with the name, as by older versions
                assert taken.numbers == {None: [4, 5]}


@by_deferring
def test_a_query_that_continues_on_another_machine_finds_its_claims(
    connection: Connection, claims_of: Make, move_to: Callable[[str], None]
) -> None:
    send(connection, 6)
    first = claims_of()
    offset = Offset.parse(noted(first, first.next(Limit(messages=2))).json())
    assert first.next(Limit(messages=2)).numbers == {None: [3, 4]}  # in no offset
    move_to("two")
    for _ in range(2):
        with claims_of() as claims:
            claims.settle(offset)
            assert claims.next(ALL).numbers == {None: [3, 4, 5, 6]}
            assert noted(claims, Claim()).owner == offset.owner


@by_deferring
def test_a_machine_without_lock_files_still_tells_queries_apart(
    connection: Connection,
    claims_of: Make,
    move_to: Callable[[str], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    send(connection, 3)
    (tmp_path / "one" / f"peeklock-claims-{os.getuid()}").symlink_to(tmp_path)
    claims_of().next(ALL)
    assert "have no lock file on this machine" in caplog.text
    with pytest.raises(SourceFailed, match="which may still run"):
        claims_of().next(ALL)


def test_messages_deferred_by_other_clients_are_not_claims(connection: Connection, claims_of: Make) -> None:
    send(connection, 2)
    receiver = connection.receiver("queue", credit=0)
    receiver.modify(receiver.receive(2), undeliverable_here=True, wait=True)
    assert claims_of().next(ALL).count == 0


@by_deferring
def test_a_large_entity_is_searched_a_part_at_a_time(
    connection: Connection, claims_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peeklock.spark.claims.PEEKED_AT_ONCE", 10)
    monkeypatch.setattr("peeklock.spark.claims.SEARCHED_AT_ONCE", 20)
    send(connection, 100)
    with claims_of() as forgotten:
        forgotten.next(Limit(messages=50))
    claims = claims_of()
    assert isinstance(claims, Claims)
    found: list[int] = []
    while not claims.is_searched:
        claim = claims.recover(ALL)
        assert claim.count <= 20
        found += claim.numbers.get(None, [])
    assert found == list(range(1, 51))


@by_deferring
def test_a_service_that_fails_in_the_middle_loses_no_claim(
    broker: BrokerThread, connection: Connection, claims_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(connection, 30)
    claims = claims_of()
    monkeypatch.setattr("peeklock.spark.intake.RECEIVED_AT_ONCE", 10)
    turns = iter(range(100))
    number = number_of

    def cut(payload: bytes) -> int:
        if next(turns) == 15:
            claims._reach.connection._wire._socket.close()
        return number(payload)

    monkeypatch.setattr("peeklock.spark.claims.number_of", cut)
    assert claims.next(ALL).count == 0  # the deferral of the first ten is in doubt
    monkeypatch.undo()
    found: list[int] = []
    for _ in range(3):
        claim = claims.next(ALL)
        found += claim.numbers.get(None, [])
        claims.settle(noted(claims, claim))
        broker.advance(61)  # locks run out
    assert sorted(found) == list(range(1, 31))
    assert len(set(found)) == 30


def test_a_claimed_message_removed_by_another_client_is_reported_by_number(
    connection: Connection, claims_of: Make
) -> None:
    send(connection, 6)
    claims = claims_of()
    offset = noted(claims, claims.next(ALL))
    remove_some(connection, [[2, 3], [6, 6]])
    pages = claims.read(offset.claimed)
    with pytest.raises(ClaimLost, match=r"3 claimed messages of 'queue' .* sequence numbers 2-3, 6"):
        assert [in_page(page) for page in pages] == [[1, 4, 5]]


def test_a_connection_that_breaks_while_pages_are_on_their_way_is_made_again(
    connection: Connection, claims_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peeklock.spark.claims.PEEKED_AT_ONCE", 7)
    monkeypatch.setattr("peeklock.spark.packed.FIRST_PAGE", 7)
    monkeypatch.setattr("peeklock.spark.packed.PAGE_BYTES", 700)
    send(connection, 60)
    claims = claims_of()
    found: list[int] = []
    for page in claims.read(claims.next(ALL).parts[None]):
        found += in_page(page)
        if len(found) < 40:
            claims._reach.connection._wire._socket.shutdown(SHUT_RDWR)
    assert found == list(range(1, 61))


def test_numbers_with_gaps_are_read_without_the_gaps(
    connection: Connection, claims_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peeklock.spark.claims.PEEKED_AT_ONCE", 7)
    monkeypatch.setattr("peeklock.spark.packed.FIRST_PAGE", 7)
    monkeypatch.setattr("peeklock.spark.packed.PAGE_BYTES", 700)
    send(connection, 60)
    wanted = [[1, 1], [3, 9], [20, 41], [59, 60]]
    assert read(claims_of(), wanted) == list(ranges.numbers(wanted))


def test_sessions_are_claimed_whole_and_let_go(connection: Connection, claims_of: Make) -> None:
    for session_id, count in (("a", 3), ("b", 2), ("a", 1)):
        send_to_session(connection, session_id, count)
    claims = claims_of("sessions")
    claim = claims.next(ALL)
    assert claim.numbers == {"a": [1, 2, 3, 6], "b": [4, 5]}
    assert read(claims, [[1, 3], [6, 6]], "a") == [1, 2, 3, 6]
    settle(claims, noted(claims, claim))
    send_to_session(connection, "a", 1)
    connection.session_receiver("sessions", "a", wait=1).close()


def test_claims_in_sessions_are_settled_and_found_again(
    broker: BrokerThread, connection: Connection, claims_of: Make
) -> None:
    send_to_session(connection, "a", 3)
    send_to_session(connection, "b", 2)
    with claims_of("sessions") as forgetful:
        forgetful.next(ALL)
    send_to_session(connection, "a", 1)
    claims = claims_of("sessions")
    claim = claims.next(ALL)
    assert claim.numbers == {"a": [1, 2, 3, 6], "b": [4, 5]}
    offset = noted(claims, claim)
    settle(claims, offset)
    assert set_aside(broker, "sessions") == 0
    settle(claims_of("sessions"), offset)


@by_deferring
def test_a_session_that_another_holds_is_waited_for_and_then_named(
    broker: BrokerThread, connection: Connection, claims_of: Make
) -> None:
    send_to_session(connection, "a", 3)
    claims = claims_of("sessions")
    offset = noted(claims, claims.next(ALL))
    holder = connection.session_receiver("sessions", "a", credit=0)
    with pytest.raises(SourceFailed, match="settling claimed messages of 'sessions' failed 4 times in a row"):
        claims.settle(offset)
    holder.close()
    claims_of("sessions").settle(offset)
    assert broker.counters("sessions").deferred == 0


@by_deferring
def test_found_claims_of_a_session_come_before_newer_messages(connection: Connection, claims_of: Make) -> None:
    send_to_session(connection, "a", 4)
    with claims_of("sessions") as forgotten:
        forgotten.next(ALL)
    send_to_session(connection, "a", 2)
    claims = claims_of("sessions")
    first = claims.next(Limit(messages=2))
    assert first.numbers == {"a": [1, 2]}
    claims.settle(noted(claims, first))
    assert claims.next(Limit(messages=10)).numbers == {"a": [3, 4, 5, 6]}


@by_deferring
def test_an_idle_poll_is_one_question_on_an_open_link(
    broker: BrokerThread, claims_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = claims_of()
    claims.next(ALL)  # the first looks for forgotten claims
    asked: list[str] = []
    engine_flow, engine_attach, request = Session.send_flow, Link.attach, Management.request
    monkeypatch.setattr(Session, "send_flow", lambda *a, **k: (asked.append("flow"), engine_flow(*a, **k))[1])
    monkeypatch.setattr(Link, "attach", lambda *a, **k: (asked.append("attach"), engine_attach(*a, **k))[1])
    monkeypatch.setattr(Management, "request", lambda *a, **k: (asked.append("request"), request(*a, **k))[1])
    for _ in range(10):
        assert claims.next(ALL).count == 0
    # The credit, its taking back, and the peer's word on that; the broker is in this process, and counted.
    assert asked == ["flow"] * 30


def test_a_connection_that_was_idle_for_too_long_is_made_again(
    connection: Connection, claims_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    claims = claims_of()
    claims.next(ALL)
    claims._reach.connection.close()
    send(connection, 1)
    assert claims.next(ALL).count == 1
    assert not [record for record in caplog.records if record.name.startswith("peeklock.spark")]


def test_an_offset_of_another_entity_or_name_is_refused(claims_of: Make) -> None:
    claims = claims_of()
    with pytest.raises(SourceFailed, match="the checkpoint is for 'other' with claimName 'x'"):
        claims.settle(Offset(entity="other", claim="x", claimed=[[1, 1]]))


def test_an_offset_is_the_same_after_its_json() -> None:
    offset = Offset(entity="q", claim="c", batch=3, size=9, claimed=[[1, 5]], sessions={"s": [[7, 8]]})
    assert Offset.parse(offset.json()) == offset
    assert offset.count == 7


@pytest.mark.parametrize(
    "value", [{}, {"next": 5}, None, {"entity": "q", "claim": "c", "batch": 1, "bytes": 0, "claimed": [[5, 1]]}]
)
def test_an_invalid_offset_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not an offset of a claiming stream"):
        Offset.parse(value)


def test_an_entity_that_is_not_there_is_an_error_at_once(claims_of: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with pytest.raises(SourceFailed, match="'nothing'"):
        claims_of("nothing").next(ALL)
    assert not [record for record in caplog.records if record.name.startswith("peeklock.spark")]  # no second attempt
