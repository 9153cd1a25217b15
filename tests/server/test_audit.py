"""The audit log: which events are written, that secrets never are, and failures to write."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusError

from admin.atom import AtomClient, queue
from peeklock.amqp.message import Message
from peeklock.amqp.types import Int
from peeklock.broker.agenda import Agenda, ManualClock
from peeklock.broker.audit import DENIED, OK, AuditEvent
from peeklock.client import connect
from peeklock.client.errors import ClientError
from peeklock.entities.authorization import DEFAULT_KEY, DEFAULT_KEY_NAME, AuthorizationRule, Right
from peeklock.entities.definitions import QueueDefinition, SubscriptionDefinition, TopicDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.server.audit import AuditLog
from peeklock.server.broker import StartError
from raw_client import HOST, RawClient, dial, get
from serving import BrokerThread, StartBroker

SECRET = "a-secret-of-the-sender"
RULES = (
    AuthorizationRule(name=DEFAULT_KEY_NAME, primary_key=DEFAULT_KEY, rights=frozenset({Right.MANAGE})),
    AuthorizationRule(name="sender", primary_key=SECRET, rights=frozenset({Right.SEND})),
)
NAMESPACE = NamespaceDefinition(
    queues=(QueueDefinition(name="orders"),),
    topics=(TopicDefinition(name="events", subscriptions=(SubscriptionDefinition(name="all"),)),),
    authorization_rules=RULES,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


@pytest.fixture
def broker(start_broker: StartBroker, path: Path) -> BrokerThread:
    return start_broker(data=None, namespace=NAMESPACE, audit=path)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def seen(path: Path, *fields: str) -> list[tuple[Any, ...]]:
    return [tuple(line[field] for field in fields) for line in lines(path)]


def client_of(broker: BrokerThread, name: str = DEFAULT_KEY_NAME, key: str = DEFAULT_KEY) -> ServiceBusClient:
    endpoint = f"Endpoint=sb://{HOST}:{broker.broker.port};UseDevelopmentEmulator=true;"
    return ServiceBusClient.from_connection_string(
        f"{endpoint}SharedAccessKeyName={name};SharedAccessKey={key}", retry_total=0
    )


# --- what is written ---


def test_administration_over_http_is_recorded(broker: BrokerThread, path: Path) -> None:
    atom = AtomClient(broker.broker.port)
    assert atom.put("/more", queue()).status == 201
    assert atom.put("/more", queue("<LockDuration>PT2M</LockDuration>"), If_Match="*").status == 200
    assert atom.put("/more", queue()).status == 409
    assert atom.delete("/more").status == 200
    assert atom.get("/orders").status == 200
    assert atom.get("/nowhere").status == 404
    assert seen(path, "action", "entity", "client", "address", "count", "outcome") == [
        ("create queue", "more", DEFAULT_KEY_NAME, HOST, None, "ok"),
        ("update queue", "more", DEFAULT_KEY_NAME, HOST, None, "ok"),
        ("PUT", "more", DEFAULT_KEY_NAME, HOST, None, "failed"),
        ("delete queue", "more", DEFAULT_KEY_NAME, HOST, None, "ok"),
    ]
    (first, *_) = lines(path)
    now = datetime.fromtimestamp(broker.clock() / 1000, UTC)
    assert datetime.fromisoformat(first["time"]) == now.replace(microsecond=now.microsecond // 1000 * 1000)
    assert first["connection"].startswith(f"{HOST}:")


def test_requests_that_are_denied_are_recorded(broker: BrokerThread, path: Path) -> None:
    port = broker.broker.port
    assert AtomClient(port, "sender", SECRET).delete("/orders").status == 401
    assert AtomClient(port, key="guess").get("/orders").status == 401
    assert get(port, "/orders")[0] == 401
    assert get(port, "/orders", Host="evil.example")[0] == 403
    assert seen(path, "action", "entity", "client", "outcome") == [
        ("DELETE", "orders", "sender", "denied"),
        ("GET", "orders", DEFAULT_KEY_NAME, "denied"),
        ("GET", "orders", "", "denied"),
        ("GET", "orders", "", "denied"),
    ]
    assert "evil.example" in lines(path)[-1]["reason"]


def test_denials_over_amqp_are_recorded(broker: BrokerThread, path: Path) -> None:
    with client_of(broker, "sender", SECRET) as client:
        with pytest.raises(ServiceBusError), client.get_queue_receiver("orders") as receiver:
            receiver.receive_messages(max_wait_time=1)
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("a-body-of-ours"))
    with (
        client_of(broker, key="guess") as client,
        pytest.raises(ServiceBusAuthenticationError),
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("a-body-of-ours"))
    assert RawClient(dial(broker.broker.port), key="guess").closed_with() is not None
    assert seen(path, "action", "entity", "client", "outcome") == [
        ("receive", "orders", "sender", "denied"),
        ("put-token", "orders", DEFAULT_KEY_NAME, "denied"),
        ("login", "", DEFAULT_KEY_NAME, "denied"),
    ]
    text = path.read_text()
    assert not [word for word in (SECRET, "guess", DEFAULT_KEY, "a-body-of-ours", "sig=") if word in text]


def test_clients_that_lose_their_rights_are_recorded(broker: BrokerThread, path: Path) -> None:
    address = f"amqp://{HOST}:{broker.broker.port}"
    with (
        client_of(broker, "sender", SECRET) as client,
        client.get_queue_sender("orders"),
        connect(address, user="sender", password=SECRET) as login,
    ):
        login.sender("orders")
        broker.call(lambda: broker.broker.namespace.keys.set("", RULES[:1]))
    assert sorted(seen(path, "action", "entity", "client", "outcome")) == [
        ("login", "", "sender", "denied"),
        ("send", "orders", "sender", "denied"),
    ]


def test_changes_in_bulk_and_of_rules_are_recorded(broker: BrokerThread, path: Path) -> None:
    address = f"amqp://{HOST}:{broker.broker.port}"
    now = broker.clock()
    with connect(address, user=DEFAULT_KEY_NAME, password=DEFAULT_KEY) as connection:
        with connection.management("orders") as orders:
            numbers = orders.schedule([Message(data=[b"later"])] * 3, now + 1_000_000)
            orders.cancel_scheduled(numbers)
            orders.schedule([Message(data=[b"soon"])] * 5, now + 1000)
            broker.advance(1)
            broker.counters("orders")
            assert orders.delete_messages(now + 10_000) == 5
            with pytest.raises(ClientError):
                orders.delete_messages(now, count=0)
        with connection.management("events/subscriptions/all") as rules:
            rule = {"rule-name": "r", "rule-description": {"sql-filter": {"expression": "1=1"}}}
            rules.request("add-rule", rule)
            rules.request("remove-rule", {"rule-name": "r"})
        with connection.management("orders") as orders:
            for ending in ("release", "remove"):
                for _ in range(3):
                    connection.sender("orders").send(Message(data=[b"claimed"]))
                claim = {"claim-name": ending, "claim-id": uuid4()}
                orders.request("peeklock:claim-messages", {**claim, "owner": uuid4(), "message-count": Int(10)})
                orders.request(f"peeklock:{ending}-claim", claim)
    with (
        connect(address, user="sender", password=SECRET) as connection,
        connection.management("orders") as orders,
        pytest.raises(ClientError),
    ):
        orders.delete_messages(now)
    assert seen(path, "action", "entity", "client", "count", "outcome") == [
        ("com.microsoft:cancel-scheduled-message", "orders", DEFAULT_KEY_NAME, 3, "ok"),
        ("com.microsoft:batch-delete-messages", "orders", DEFAULT_KEY_NAME, 5, "ok"),
        ("com.microsoft:batch-delete-messages", "orders", DEFAULT_KEY_NAME, None, "failed"),
        ("com.microsoft:add-rule", "events/subscriptions/all", DEFAULT_KEY_NAME, None, "ok"),
        ("com.microsoft:remove-rule", "events/subscriptions/all", DEFAULT_KEY_NAME, None, "ok"),
        ("peeklock:release-claim", "orders", DEFAULT_KEY_NAME, 3, "ok"),
        ("peeklock:remove-claim", "orders", DEFAULT_KEY_NAME, 6, "ok"),
        ("com.microsoft:batch-delete-messages", "orders", "sender", None, "denied"),
    ]


# --- the file ---


def audit_log(path: Path, failures: list[None] | None = None) -> tuple[AuditLog, ManualClock, Agenda]:
    clock = ManualClock(0)
    agenda = Agenda(clock)
    return AuditLog(path, agenda, lambda: None if failures is None else failures.append(None)), clock, agenda


def test_only_the_owner_can_read_it(path: Path) -> None:
    audit_log(path)[0].close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_is_there_is_appended_to_and_warned_of_when_others_can_read_it(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.write_text("{}\n")
    path.chmod(0o644)
    audit, _, _ = audit_log(path)
    audit.record(AuditEvent(action="delete queue", outcome=OK, connection=f"{HOST}:1"))
    audit.close()
    assert len(lines(path)) == 2
    assert "a file with the audit log can be read by other users" in caplog.text


def test_a_reopened_log_is_written_to_a_new_file_after_the_old_one_was_moved(path: Path) -> None:
    audit, _, _ = audit_log(path)
    audit.record(AuditEvent(action="one", outcome=OK, connection=f"{HOST}:1"))
    moved = path.with_suffix(".1")
    path.rename(moved)
    audit.record(AuditEvent(action="two", outcome=OK, connection=f"{HOST}:1"))
    audit.reopen()
    audit.record(AuditEvent(action="three", outcome=OK, connection=f"{HOST}:1"))
    audit.close()
    assert seen(moved, "action") == [("one",), ("two",)]
    assert seen(path, "action") == [("three",)]


def test_text_of_clients_is_kept_on_one_line_and_cut_off(path: Path) -> None:
    audit, _, _ = audit_log(path)
    audit.record(
        AuditEvent(
            action="put-token",
            outcome=DENIED,
            connection=f"{HOST}:1(websocket)",
            client="x\n" * 1000,
            entity='"}\n{' * 500,
        )
    )
    audit.record(
        AuditEvent(action="put-token", outcome=DENIED, connection="[::1]:1", reason="SharedAccessKey=leaked\nand more")
    )
    audit.close()
    first, second = lines(path)
    assert first["address"] == HOST
    assert len(first["client"]) == len(first["entity"]) == 300
    assert "leaked" not in second["reason"]


def test_denials_without_end_do_not_fill_the_disk(path: Path) -> None:
    audit, clock, agenda = audit_log(path)
    for number in range(500):
        audit.record(AuditEvent(action="login", outcome=DENIED, connection=f"192.0.2.1:{number}"))
    audit.record(AuditEvent(action="login", outcome=DENIED, connection="192.0.2.2:1"))
    audit.record(AuditEvent(action="delete queue", outcome=OK, connection="192.0.2.1:1"))
    assert len(lines(path)) == 52
    clock.advance(10_000)
    agenda.run()
    last = lines(path)[-1]
    assert (last["address"], last["action"], last["count"], last["outcome"]) == ("192.0.2.1", "login", 450, "denied")
    audit.record(AuditEvent(action="login", outcome=DENIED, connection="192.0.2.1:1"))
    assert len(lines(path)) == 54
    audit.close()


def test_addresses_without_end_are_counted_together(path: Path) -> None:
    audit, _, _ = audit_log(path)
    for number in range(3000):
        audit.record(AuditEvent(action="login", outcome=DENIED, connection=f"address-{number}:1"))
    audit.close()
    assert len(lines(path)) == 1000 + 50 + 1
    assert lines(path)[-1]["count"] == 3000 - 1050


def test_lines_that_cannot_be_written_are_logged_once_and_counted(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[None] = []
    audit, _, _ = audit_log(path, failures)
    write, room = os.write, [20]

    def write_while_there_is_room(file: int, data: bytes) -> int:
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data[: room.pop()])

    with caplog.at_level(logging.INFO):
        with monkeypatch.context() as full:
            full.setattr(os, "write", write_while_there_is_room)
            for _ in range(3):
                audit.record(AuditEvent(action="lost", outcome=OK, connection=f"{HOST}:1"))
        audit.record(AuditEvent(action="kept", outcome=OK, connection=f"{HOST}:1"))
    audit.close()
    assert len(failures) == 3
    assert caplog.text.count("the audit log cannot be written") == 1
    assert caplog.text.count("the audit log can be written again") == 1
    torn, kept = path.read_text().splitlines()
    assert len(torn) == 20
    assert json.loads(kept)["action"] == "kept"


def test_the_broker_works_when_its_audit_log_cannot_be_written(start_broker: StartBroker) -> None:
    """A device that is always full."""
    broker = start_broker(data=None, namespace=NAMESPACE, audit=Path("/dev/full"))
    atom = AtomClient(broker.broker.port)
    assert atom.put("/more", queue()).status == 201
    assert "peeklock_audit_failures_total 1" in get(broker.broker.port, "/metrics")[1]


def test_a_file_that_cannot_be_opened_stops_the_start(start_broker: StartBroker, tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"the audit log .*missing/audit\.jsonl cannot be written: No such file"):
        start_broker(data=None, audit=tmp_path / "missing" / "audit.jsonl")
