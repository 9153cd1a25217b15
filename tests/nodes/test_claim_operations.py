"""The five operations on claims, from a client, down to the bytes of each message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from nodes.asking import SUBSCRIPTION, Management, body_of, receive, refusal_of, request, send
from peeklock.amqp.message import Message
from peeklock.amqp.types import Array, Int, Timestamp
from peeklock.client import Connection, connect
from raw_client import eventually
from serving import BrokerThread, StartBroker

IN_USE = (409, "peeklock:claim-name-in-use")
ARGUMENT_ERROR = (400, "com.microsoft:argument-error")


class Claimer:
    """Claims messages of an entity, as one query of a data pipeline does."""

    def __init__(self, connection: Connection, entity: str = "queue", name: str = "query") -> None:
        self.management = Management(connection, entity)
        self.name = name
        self.owner = uuid4()

    def body(self, count: int = 1000, id: UUID | None = None, **more: Any) -> dict[str, Any]:
        named = {"claim-name": self.name, "claim-id": id or uuid4(), "owner": self.owner}
        return {**named, "message-count": Int(count), **{key.replace("_", "-"): each for key, each in more.items()}}

    def claim(self, count: int = 1000, id: UUID | None = None, **more: Any) -> dict[str, Any]:
        return self.management.ok("peeklock:claim-messages", self.body(count, id, **more))

    def nothing(self) -> None:
        assert body_of(self.management.ask("peeklock:claim-messages", self.body()), 204) == {}

    def read(self, ranges: list[int], **more: Any) -> tuple[list[bytes], dict[str, Any]]:
        body = {"ranges": Array(ranges, int), **{key.replace("_", "-"): each for key, each in more.items()}}
        answer = self.management.ok("peeklock:read-packed", body)
        return list(unpacked(answer["messages"])), answer

    def end(self, how: str, id: UUID, *ranges: int) -> Message:
        body = {"claim-name": self.name, "claim-id": id}
        if ranges:
            body["ranges"] = Array(list(ranges), int)
        return self.management.ask(f"peeklock:{how}-claim", body)

    def list(self, **more: Any) -> list[dict[str, Any]]:
        response = self.management.ask("peeklock:list-claims", {"skip": Int(0), "top": Int(100), **more})
        assert response.application_properties is not None
        if response.application_properties["statusCode"] == 204:
            return []
        return list(body_of(response, 200)["claims"])


def unpacked(packed: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(packed):
        length = int.from_bytes(packed[at : at + 4])
        yield packed[at + 4 : at + 4 + length]
        at += 4 + length


@pytest.fixture
def claimer(connection: Connection) -> Claimer:
    return Claimer(connection)


def fill(connection: Connection, count: int, to: str = "queue") -> None:
    send(connection, *(b"%d" % number for number in range(1, count + 1)), to=to)


def test_the_broker_offers_claims(connection: Connection) -> None:
    assert "peeklock:claims" in connection.capabilities


def test_a_claim_is_answered_with_ranges_and_their_types(
    connection: Connection, claimer: Claimer, broker: BrokerThread
) -> None:
    fill(connection, 5)
    answer = claimer.claim(3)
    assert set(answer) == {"message-count", "bytes", "since", "ranges"}
    assert (type(answer["message-count"]), answer["message-count"]) == (int, 3)
    assert answer["bytes"] > 3
    assert (type(answer["since"]), answer["since"]) == (Timestamp, broker.clock())
    assert answer["ranges"] == Array([1, 3], int)
    assert claimer.claim()["ranges"] == Array([4, 5], int)
    claimer.nothing()


def test_a_repeated_request_gets_the_same_answer_also_on_another_connection(
    broker: BrokerThread, connection: Connection, claimer: Claimer
) -> None:
    fill(connection, 5)
    id = uuid4()
    answer = claimer.claim(3, id)
    assert claimer.claim(3, id) == answer
    with connect(broker.connection_string, timeout=20) as other:
        again = Claimer(other)
        again.owner = claimer.owner
        assert again.claim(3, id) == answer


def test_a_packed_read_returns_claimed_messages_as_peeking_does(connection: Connection, claimer: Claimer) -> None:
    fill(connection, 5)
    claimer.claim(3)
    messages, answer = claimer.read([1, 2, 4, 9])
    assert (answer["message-count"], answer["last"]) == (4, 9)
    assert type(answer["message-count"]) is Int
    assert [Message.decode(each).data for each in messages] == [[b"1"], [b"2"], [b"4"], [b"5"]]
    peeked = claimer.management.peek()
    assert [Message.decode(each).message_annotations for each in messages] == [
        peeked[at].message_annotations for at in (0, 1, 3, 4)
    ]
    states = [(each.message_annotations or {})["x-opt-message-state"] for each in peeked]
    assert states == [1, 1, 1, 0, 0], "claimed messages look like deferred ones"


@pytest.mark.parametrize("count", [5, 200])
def test_messages_beyond_the_size_of_a_page_must_be_requested_again(
    connection: Connection, claimer: Claimer, count: int
) -> None:
    fill(connection, count)
    numbers: list[bytes] = []
    first, asked = 1, 0
    while first <= count:
        messages, answer = claimer.read([first, count], max_bytes=Int(40))
        assert len(messages) == answer["message-count"] > 0
        numbers += [b"".join(Message.decode(each).data) for each in messages]
        first, asked = answer["last"] + 1, asked + 1
    assert numbers == [b"%d" % number for number in range(1, count + 1)]
    assert asked > 2


def test_many_small_ranges_are_read_in_order(connection: Connection, claimer: Claimer) -> None:
    fill(connection, 300)
    ranges = [number for first in range(1, 200, 2) for number in (first, first)] + [202, 299]
    messages, answer = claimer.read(ranges)
    wanted = [*range(1, 200, 2), *range(202, 300)]
    assert [int(b"".join(Message.decode(each).data)) for each in messages] == wanted
    assert answer["last"] == 299


def test_messages_of_subscriptions_are_packed_as_they_are_peeked(connection: Connection) -> None:
    fill(connection, 2, "topic")
    claimer = Claimer(connection, SUBSCRIPTION)
    claimer.claim()
    messages, _ = claimer.read([1, 2])
    assert [Message.decode(each) for each in messages] == claimer.management.peek()


def test_where_nothing_is_the_answer_is_empty(claimer: Claimer) -> None:
    messages, answer = claimer.read([5, 5, 10, 1000])
    assert (messages, answer["message-count"], answer["last"]) == ([], 0, 1000)


def test_a_claim_is_removed_and_released(connection: Connection, claimer: Claimer) -> None:
    fill(connection, 6)
    id = uuid4()
    claimer.claim(5, id)
    assert body_of(claimer.end("remove", id, 1, 2), 200) == {"message-count": 2}
    assert body_of(claimer.end("release", id, 4, 4), 200) == {"message-count": 1}
    (left,) = claimer.list()
    assert left["ranges"] == Array([3, 3, 5, 5], int)
    assert body_of(claimer.end("remove", id), 200) == {"message-count": 2}
    assert body_of(claimer.end("remove", id), 204) == {}
    assert body_of(claimer.end("release", id), 204) == {}
    receiver = connection.receiver("queue")
    assert [message.body for message in receive(receiver, 2)] == [b"4", b"6"]


def test_claims_are_listed_with_their_names_the_oldest_first(connection: Connection, claimer: Claimer) -> None:
    assert claimer.list() == []
    fill(connection, 3)
    first, second = uuid4(), uuid4()
    claimer.claim(1, first)
    Claimer(connection, name="other").claim(1, second)
    claimer.claim(1)
    claims = claimer.list()
    assert [each["claim-name"] for each in claims] == ["query", "other", "query"]
    assert [each["claim-id"] for each in claims[:2]] == [first, second]
    assert [each["message-count"] for each in claims] == [1, 1, 1]
    assert all(each["is-owned"] is True for each in claims)
    assert [each["claim-id"] for each in claimer.list(**{"claim-name": "other"})] == [second]
    assert claimer.list(**{"claim-name": "nobody"}) == []
    page = claimer.management.ok("peeklock:list-claims", {"skip": Int(1), "top": Int(1)})
    assert (page["skip"], [each["claim-id"] for each in page["claims"]]) == (2, [second])


def test_a_claim_name_is_in_use_until_its_connection_ends(broker: BrokerThread, connection: Connection) -> None:
    fill(connection, 3)
    mine = Claimer(connection)
    with connect(broker.connection_string, timeout=20) as other:
        Claimer(other).claim(1)
        response = mine.management.ask("peeklock:claim-messages", mine.body())
        status, condition, text = refusal_of(response)
        assert (status, condition) == IN_USE
        assert "'query'" in text
        assert mine.list()[0]["is-owned"] is True
    assert mine.claim()["ranges"] == Array([2, 3], int)


def test_a_waiting_request_is_answered_when_a_message_arrives(connection: Connection, claimer: Claimer) -> None:
    pending = claimer.management.requester.submit(request("peeklock:claim-messages", claimer.body(wait=Int(60_000))))
    fill(connection, 1)
    assert body_of(claimer.management.requester.response(pending), 200)["ranges"] == Array([1, 1], int)


def test_a_request_that_waits_in_vain_is_answered_in_time(claimer: Claimer, broker: BrokerThread) -> None:
    pending = claimer.management.requester.submit(request("peeklock:claim-messages", claimer.body(wait=Int(60_000))))
    claimer.nothing()  # the other has arrived
    broker.advance(60)
    assert body_of(claimer.management.requester.response(pending), 204) == {}


def test_claimed_sessions_have_their_ranges(connection: Connection) -> None:
    for number, session in enumerate("xyx"):
        send(connection, b"%d" % number, to="sessions", session=session)
    claimer = Claimer(connection, "sessions")
    answer = claimer.claim()
    assert "ranges" not in answer
    assert answer["sessions"] == [
        {"session-id": "x", "ranges": Array([1, 1, 3, 3], int)},
        {"session-id": "y", "ranges": Array([2, 2], int)},
    ]
    assert claimer.list()[0]["sessions"] == answer["sessions"]


@pytest.mark.parametrize(
    ("operation", "changes", "named"),
    [
        ("claim-messages", {"claim-name": ""}, "'claim-name'"),
        ("claim-messages", {"claim-name": "n" * 129}, "'claim-name'"),
        ("claim-messages", {"message-count": Int(0)}, "'message-count'"),
        ("claim-messages", {"message-count": Int(1_000_001)}, "'message-count'"),
        ("claim-messages", {"max-bytes": 0}, "'max-bytes'"),
        ("claim-messages", {"through": 0}, "'through'"),
        ("claim-messages", {"wait": Int(60_001)}, "'wait'"),
        ("claim-messages", {"wait": Int(-1)}, "'wait'"),
        ("claim-messages", {"linger": Int(60_001)}, "'linger'"),
        ("claim-messages", {"session-count": Int(0)}, "'session-count'"),
        ("read-packed", {"ranges": Array([2, 1], int)}, "'ranges'"),
        ("read-packed", {"ranges": Array([1], int)}, "'ranges'"),
        ("read-packed", {"ranges": Array([*range(1, 2 * 8193 + 1)], int)}, "'ranges'"),
        ("read-packed", {"ranges": None}, "'ranges'"),
        ("read-packed", {"max-bytes": Int(0)}, "'max-bytes'"),
        ("remove-claim", {"ranges": Array([3, 1], int)}, "'ranges'"),
        ("release-claim", {"claim-name": ""}, "'claim-name'"),
        ("list-claims", {"top": Int(0)}, "'top'"),
        ("list-claims", {"skip": Int(-1)}, "'skip'"),
    ],
)
def test_the_error_of_an_invalid_request_names_the_mistake(
    claimer: Claimer, operation: str, changes: dict[str, Any], named: str
) -> None:
    good = {
        "claim-messages": claimer.body(),
        "read-packed": {"ranges": Array([1, 1], int)},
        "list-claims": {"skip": Int(0), "top": Int(1)},
    }.get(operation, {"claim-name": "query", "claim-id": uuid4()})
    response = claimer.management.ask(f"peeklock:{operation}", {**good, **changes})
    status, condition, text = refusal_of(response)
    assert (status, condition) == ARGUMENT_ERROR
    assert named in text


def test_claims_survive_a_restart(start_broker: StartBroker, tmp_path: Path) -> None:
    broker = BrokerThread(data=tmp_path)
    id = uuid4()
    with connect(broker.connection_string, timeout=20) as connection:
        fill(connection, 3)
        claimer = Claimer(connection)
        answer = claimer.claim(2, id)
    broker.stop()
    with connect(start_broker(data=tmp_path).connection_string, timeout=20) as connection:
        again = Claimer(connection)
        (found,) = again.list()
        assert found["is-owned"] is False
        assert {key: found[key] for key in answer} == answer
        assert again.claim(2, id) == answer
        assert again.claim()["ranges"] == Array([3, 3], int)


def test_a_request_for_a_claim_is_small(claimer: Claimer) -> None:
    body = {**claimer.body(wait=Int(60_000)), "padding": b"x" * 8192}
    refusal = refusal_of(claimer.management.ask("peeklock:claim-messages", body))
    assert refusal[:2] == (403, "amqp:link:message-size-exceeded")
    assert "8192 bytes" in refusal[2]


def test_requests_of_a_detached_client_no_longer_count(broker: BrokerThread, connection: Connection) -> None:
    fill(connection, 5)
    with connect(broker.connection_string, timeout=20) as other:
        claimer = Claimer(other)
        claimer.claim()
        for _ in range(10):
            body = claimer.body(wait=Int(60_000))
            claimer.management.requester.submit(request("peeklock:claim-messages", body))
            packed = {"ranges": Array([1, 5], int)}
            claimer.management.requester.submit(request("peeklock:read-packed", packed))
        claimer.list()  # so that all of them were heard of
        assert broker.call(lambda: broker.broker.namespace.journal.unsaved_bytes) > 0
    eventually(lambda: not broker.call(lambda: broker.broker.namespace.journal.unsaved_bytes))
