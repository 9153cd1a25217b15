"""curl: the commands of docs/features/rest.md, and their output."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pages import DOCS, block_with, commands
from peeklock.client import Message, connect
from rest.asking import RestClient
from serving import ServedBroker
from toolchains import toolchain

PAGE = DOCS / "features" / "rest.md"


class Curl:
    """curl with a token for the whole namespace."""

    def __init__(self, broker: ServedBroker, base: str = "") -> None:
        self._program = toolchain("curl")
        self._token = RestClient(broker.port).token()
        self.base = base or f"http://127.0.0.1:{broker.port}"

    def run(self, path: str, *arguments: str, stdin: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        """The status, the headers and the body of the answer."""
        url = path if path.startswith("http") else self.base + path
        ended = subprocess.run(
            [self._program, "-sS", "-i", "-H", f"Authorization: {self._token}", *arguments, url],
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        head, _, body = ended.stdout.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        return int(status.split()[1]), dict(line.split(": ", 1) for line in lines), body


@pytest.fixture
def curl(served: ServedBroker) -> Curl:
    return Curl(served)


def test_curl_sends_locks_renews_unlocks_and_completes(curl: Curl) -> None:
    sent = curl.run("/queue/messages", "-H", 'BrokerProperties: {"Label": "l"}', "-H", 'Priority: "High"', "-d", "one")
    assert sent[0] == 201
    status, headers, body = curl.run("/queue/messages/head?timeout=5", "-X", "POST")
    assert (status, body, headers["Priority"]) == (201, b"one", '"High"')
    assert '"Label":"l"' in headers["BrokerProperties"]
    assert curl.run(headers["Location"], "-X", "POST")[0] == 200
    assert curl.run(headers["Location"], "-X", "PUT")[0] == 200
    assert curl.run(headers["Location"], "-X", "PUT")[0] == 404
    status, headers, _ = curl.run("/queue/messages/head", "-X", "POST")
    assert '"DeliveryCount":2' in headers["BrokerProperties"]
    assert curl.run(headers["Location"], "-X", "DELETE")[0] == 200
    assert curl.run("/queue/messages/head?timeout=0", "-X", "DELETE")[0] == 204


def test_curl_sends_a_file_in_pieces_and_gets_the_same_bytes(curl: Curl) -> None:
    data = bytes(range(256)) * 900
    assert curl.run("/queue/messages", "-T", "-", "-X", "POST", "-H", "Expect: 100-continue", stdin=data)[0] == 201
    status, headers, body = curl.run("/queue/messages/head", "-X", "DELETE")
    assert (status, body == data) == (200, True)
    assert headers["Transfer-Encoding"] == "chunked"


def test_curl_works_with_http_1_0(curl: Curl) -> None:
    assert curl.run("/queue/messages", "-0", "-d", "one")[0] == 201
    status, headers, body = curl.run("/queue/messages/head", "-0", "-X", "DELETE")
    assert (status, body, headers["Content-Length"]) == (200, b"one", "3")


def test_curl_over_tls_with_the_brokers_own_authority(served: ServedBroker) -> None:
    secure = Curl(served, f"https://127.0.0.1:{served.port}")
    trust = ("--cacert", str(served.authority))
    assert secure.run("/queue/messages", *trust, "-d", "one")[0] == 201
    status, headers, body = secure.run("/queue/messages/head", *trust, "-X", "POST")
    assert (status, body) == (201, b"one")
    assert headers["Location"].startswith(f"https://127.0.0.1:{served.port}/queue/messages/1/")


def test_a_message_of_an_amqp_client_is_received_by_curl(served: ServedBroker, curl: Curl) -> None:
    with connect(served.connection_string) as connection:
        connection.sender("queue").send(Message(application_properties={"n": 5}, data=[b"one"]))
    status, headers, body = curl.run("/queue/messages/head?timeout=5", "-X", "DELETE")
    assert (status, body, headers["n"]) == (200, b"one", "5")


def test_the_page_prints_commands_of_curl_only(tmp_path: Path) -> None:
    """They are run by tests/test_clean_room.py, too."""
    typed = commands(block_with(PAGE, "sh", "curl"))
    assert len(typed) == 5
    assert all(command.startswith("curl ") for command in typed)
