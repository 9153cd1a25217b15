"""The metrics page: its content, and which clients may request it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from admin.atom import AtomClient, rule, subscription, topic
from broker.world import FlakyStore
from peeklock import __version__
from peeklock.entities.authorization import AuthorizationRule, Right, default_authorization_rule
from peeklock.entities.definitions import QueueDefinition
from peeklock.entities.namespaces import NamespaceDefinition
from peeklock.server.loopback import is_loopback
from peeklock.server.metrics import COMMIT_BUCKETS, STATES, Metrics, escape_label, resident_memory
from peeklock.store.base import Body, Changes, StoredMessage, StoreError
from peeklock.store.memory import MemoryStore
from raw_client import RawClient, get
from serving import StartBroker

MONITORING = Path(__file__).parents[2] / "docs" / "features" / "monitoring.md"
LINE = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\[\\"n])*",?)*)\})? ([0-9.e+-]+)')


@dataclass
class Page:
    """A page of metrics, parsed as Prometheus does."""

    samples: dict[tuple[str, str], float]
    kinds: dict[str, str]

    def __getitem__(self, name: str) -> float:
        return self.samples[name, ""]

    def of(self, name: str, labels: str) -> float:
        return self.samples[name, labels]


def read(text: str) -> Page:
    assert text.endswith("\n")
    page = Page({}, {})
    family = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
            assert family not in page.kinds, "the lines of a metric stand together"
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name == family
            page.kinds[name] = kind
        else:
            match = LINE.fullmatch(line)
            assert match is not None, line
            assert match[1].startswith(family)
            assert (match[1], match[2] or "") not in page.samples
            page.samples[match[1], match[2] or ""] = float(match[3])
    return page


def page_of(port: int) -> Page:
    status, text = get(port, "/metrics")
    assert status == 200
    return read(text)


def test_messages_of_entities_are_counted_by_state(start_broker: StartBroker) -> None:
    broker = start_broker(QueueDefinition(name="queue"), data=None)
    atom = AtomClient(broker.broker.port)
    atom.put("/news", topic())
    atom.put("/news/subscriptions/all", subscription())
    atom.put("/news/subscriptions/none", subscription())
    atom.put("/news/subscriptions/none/rules/$Default", rule('<Filter i:type="FalseFilter"/>'), If_Match="*")
    client = RawClient.opened(broker.broker.port)
    client.send(client.sender(), b"one", b"two")
    client.send(client.sender("news"), b"three")
    page = page_of(broker.broker.port)
    assert page.kinds["peeklock_messages"] == "gauge"
    assert page.of("peeklock_messages", 'entity="queue",kind="queue",state="active"') == 2
    for state in ("deferred", "scheduled", "dead_letter", "transfer_dead_letter"):
        assert page.of("peeklock_messages", f'entity="queue",kind="queue",state="{state}"') == 0
    assert page.of("peeklock_messages", 'entity="news",kind="topic",state="active"') == 0
    path = "news/Subscriptions"
    assert page.of("peeklock_messages", f'entity="{path}/all",kind="subscription",state="active"') == 1
    assert page.of("peeklock_messages", f'entity="{path}/none",kind="subscription",state="active"') == 0
    size = broker.call(lambda: broker.broker.namespace.queue("queue").size_in_bytes)
    assert page.of("peeklock_entity_size_bytes", 'entity="queue",kind="queue"') == size > 6


def test_the_page_of_monitoring_has_every_metric_with_its_kind_and_states(
    start_broker: StartBroker, tmp_path: Path
) -> None:
    served = page_of(start_broker(QueueDefinition(name="queue"), data=tmp_path).broker.port)
    text = MONITORING.read_text()
    table = text.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    kinds = {
        name: cells[2].strip()
        for cells in (line.split("|") for line in table.splitlines() if line.startswith("| `"))
        for name in re.findall(r"`([a-z_]+)(?:\{[^`]*)?`", cells[1])
    }
    assert kinds.keys() == served.kinds.keys()
    assert {name: kind for name, kind in kinds.items() if kind} == {
        name: kind for name, kind in served.kinds.items() if kinds[name]
    }
    assert all(f"`{state}`" in table for state in STATES)


def test_stored_and_removed_messages_are_counted(start_broker: StartBroker) -> None:
    broker = start_broker(data=None)
    before = page_of(broker.broker.port)
    client = RawClient.opened(broker.broker.port)
    client.send(client.sender(), b"x" * 1000, b"y" * 1000)
    client.receiver(credit=1)
    client.complete(client.receive(1)[0])
    after = page_of(broker.broker.port)
    grown = {name: after[name] - before[name] for name, kind in after.kinds.items() if kind == "counter"}
    assert grown["peeklock_messages_stored_total"] == 2
    assert 2000 < grown["peeklock_message_bytes_stored_total"] < 2200
    assert grown["peeklock_messages_removed_total"] == 1
    assert 1000 < grown["peeklock_message_bytes_removed_total"] < 1100
    assert after["peeklock_commit_seconds_count"] >= before["peeklock_commit_seconds_count"] + 2
    assert after["peeklock_commits_failed_total"] == 0
    assert after["peeklock_connections"] == before["peeklock_connections"] + 1


def test_a_failed_commit_counts_no_messages(start_broker: StartBroker) -> None:
    store = FlakyStore()
    broker = start_broker(data=None, make_store=lambda call: store)
    store.fails = lambda changes: StoreError("The disk is on fire.")
    client = RawClient.opened(broker.broker.port)
    client.refusal(client.sender(), b"lost")
    page = page_of(broker.broker.port)
    # This commit, and the one with which the broker found that the store fails.
    assert (page["peeklock_commits_failed_total"], page["peeklock_messages_stored_total"]) == (2, 0)


def test_the_page_has_metrics_of_the_process(start_broker: StartBroker) -> None:
    page = page_of(start_broker(data=None).broker.port)
    assert page.of("peeklock_build_info", f'version="{__version__}"') == 1
    assert page["process_resident_memory_bytes"] > 10_000_000
    assert page["process_start_time_seconds"] > 1_700_000_000
    assert page["process_cpu_seconds_total"] > 0


def test_without_proc_the_peak_memory_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peeklock.server.metrics._MEMORY", Path("/nowhere"))
    assert resident_memory() > 10_000_000


def test_the_content_type_has_the_version_of_the_format(start_broker: StartBroker) -> None:
    atom = AtomClient(start_broker(data=None).broker.port)
    assert atom.get("/metrics").headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


def test_a_label_may_have_any_character() -> None:
    escaped = escape_label('say "\\"\n')
    assert escaped == 'say \\"\\\\\\"\\n'
    assert LINE.fullmatch(f'a{{b="{escaped}"}} 1')


# --- commits ---


def test_buckets_of_commits_are_cumulative() -> None:
    metrics = Metrics()
    for seconds in (0.0005, 0.001, 0.003, 60.0):
        metrics.committed(Changes(), seconds, None)
    lines = [line for line in metrics.lines() if line.startswith("peeklock_commit_seconds")]
    assert lines[0] == 'peeklock_commit_seconds_bucket{le="0.001"} 2'
    assert lines[2] == 'peeklock_commit_seconds_bucket{le="0.005"} 3'
    assert lines[len(COMMIT_BUCKETS) - 1] == 'peeklock_commit_seconds_bucket{le="5.0"} 3'
    assert lines[-3:] == [
        'peeklock_commit_seconds_bucket{le="+Inf"} 4',
        "peeklock_commit_seconds_sum 60.0045",
        "peeklock_commit_seconds_count 4",
    ]


def test_a_shared_body_counts_for_each_copy() -> None:
    metrics = Metrics()
    body = Body(1, b"b" * 100)
    copies = [StoredMessage(number, b"front", 0, body=body) for number in (1, 2)]
    metrics.committed(Changes(appends=[(1, copy) for copy in copies]), 0.0, None)
    assert (metrics.stored, metrics.stored_bytes) == (2, 210)


def test_a_measured_store_is_otherwise_the_same() -> None:
    store = MemoryStore()
    measured = Metrics().measured(store)
    assert measured.open() == []
    outcomes: list[StoreError | None] = []
    measured.commit(Changes(), outcomes.append)
    assert outcomes == [None]
    measured.close()


# --- access ---


def test_requests_from_another_machine_require_a_token_of_the_namespace(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peeklock.server.metrics.is_loopback", lambda host: False)
    reader, sender, mine = (
        AuthorizationRule(name=name, primary_key=f"key-of-{name}", rights=frozenset({right}))
        for name, right in (("reader", Right.LISTEN), ("sender", Right.SEND), ("mine", Right.MANAGE))
    )
    namespace = NamespaceDefinition(
        queues=(QueueDefinition(name="metrics", authorization_rules=(mine,)),),
        authorization_rules=(default_authorization_rule(), reader, sender),
    )
    port = start_broker(data=None, namespace=namespace).broker.port
    for token in ("", "Bearer x", "SharedAccessSignature \xe9"):
        assert get(port, "/metrics", Authorization=token)[0] == 401
    for name in ("sender", "mine"):
        assert get(port, "/metrics", Authorization=AtomClient(port, name, f"key-of-{name}").token())[0] == 401
    reader_client = AtomClient(port, "reader", "key-of-reader")
    for path in ("", "metrics"):
        assert get(port, "/metrics", Authorization=reader_client.token(path))[0] == 200


@pytest.mark.parametrize(
    ("host", "own"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("LocalHost", True),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("::", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_loopback_addresses_are_recognised(host: str, own: bool) -> None:
    assert is_loopback(host) is own
