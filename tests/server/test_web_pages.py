"""What a web page can do to a broker on the machine of its visitor, tested with a real browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from admin.atom import AtomClient
from chromium import Page, browsing
from raw_client import HOST, get
from serving import BrokerThread, StartBroker
from toolchains import chromium

EVIL = "evil.example"
SOCKET = """
new Promise(done => {
  const socket = new WebSocket("ws://%s/$servicebus/websocket", "AMQPWSB10");
  socket.onopen = () => done("open");
  socket.onclose = () => done("refused");
})
"""
FETCH = """
fetch("%s", %s).then(answer => answer.text().then(text => answer.status + " " + text), error => "unreadable")
"""


class _Empty(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[int]:
    """The port of a web site of another origin."""
    server = ThreadingHTTPServer((HOST, 0), _Empty)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with browsing(chromium(), tmp_path, evil_example=HOST) as found:
        yield found


@pytest.fixture
def broker(start_broker: StartBroker) -> BrokerThread:
    return start_broker(data=None)


def test_a_page_of_another_origin_gets_no_websocket_and_no_answers(broker: BrokerThread, site: int, page: Page) -> None:
    port = broker.broker.port
    page.visit(f"http://{EVIL}:{site}/")
    for host in (HOST, "localhost"):
        assert page.run(SOCKET % f"{host}:{port}") == "refused"
        for path in ("/metrics", "/health", "/$Resources/queues?api-version=2021-05"):
            assert page.run(FETCH % (f"http://{host}:{port}{path}", "{}")) == "unreadable"
        deletion = "{method: 'DELETE', headers: {Authorization: 'x'}}"
        assert page.run(FETCH % (f"http://{host}:{port}/queue?api-version=2021-05", deletion)) == "unreadable"
    assert get(port, "/health")[0] == 200


def test_a_page_with_dns_rebinding_gets_no_answers(broker: BrokerThread, page: Page) -> None:
    """DNS rebinding: to the browser the page and the broker are the same site."""
    port = broker.broker.port
    shown = page.visit(f"http://{EVIL}:{port}/metrics")
    assert "peeklock_messages" not in shown
    assert f"The host name '{EVIL}:{port}' is not allowed" in shown
    # For the browser, the page with the refusal has the origin of the rebound name.
    assert page.run("location.host") == f"{EVIL}:{port}"
    for path in ("/metrics", "/health", "/$Resources/queues?api-version=2021-05"):
        assert page.run(FETCH % (path, "{}")).startswith("403 ")
    token = AtomClient(port).token("queue")
    deletion = f"{{method: 'DELETE', headers: {{Authorization: '{token}'}}}}"
    assert page.run(FETCH % ("/queue?api-version=2021-05", deletion)).startswith("403 ")
    assert page.run(SOCKET % f"{EVIL}:{port}") == "refused"
    assert broker.call(lambda: broker.broker.namespace.queue("queue").path) == "queue"


def test_a_page_of_a_configured_origin_opens_a_websocket(start_broker: StartBroker, site: int, page: Page) -> None:
    """The page and the script are the same as above: only the origin is configured."""
    port = start_broker(data=None, allowed_origins=(f"http://{EVIL}:{site}",)).broker.port
    page.visit(f"http://{EVIL}:{site}/")
    assert page.run(SOCKET % f"{HOST}:{port}") == "open"


def test_a_page_of_a_configured_name_is_answered(start_broker: StartBroker, page: Page) -> None:
    port = start_broker(data=None, allowed_hosts=(EVIL,)).broker.port
    assert "Service is healthy" in page.visit(f"http://{EVIL}:{port}/health")
    assert page.run(FETCH % ("/metrics", "{}")).startswith("401 "), "metrics are open under the names of loopback only"
