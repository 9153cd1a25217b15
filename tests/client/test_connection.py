"""Connecting, SASL, TLS, closing, and what happens when the peer goes away."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from client.engine_server import EngineServer
from peeklock.amqp.errors import Condition
from peeklock.client import (
    AuthenticationFailed,
    ClientError,
    ConnectionLost,
    LinkClosed,
    Message,
    Timeout,
    connect,
)
from peeklock.server.certificates import ensure_certificates


def connection_string(server: EngineServer, key_name: str = "Root", more: str = "") -> str:
    return (
        f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessKeyName={key_name};SharedAccessKey=key;"
        f"UseDevelopmentEmulator=true;{more}"
    )


def test_a_url_without_a_user_connects_anonymously(server: EngineServer) -> None:
    with connect(server.url) as connection:
        assert connection.is_open
    assert server.identities == ["ANONYMOUS"]
    assert not connection.is_open


def test_a_url_with_a_user_connects_with_plain(server: EngineServer) -> None:
    with connect(f"amqp://user:pass%20word@127.0.0.1:{server.port}"):
        pass
    assert server.identities == ["PLAIN"]


def test_user_and_password_may_be_arguments(server: EngineServer) -> None:
    with connect(server.url, user="user", password="pass word"):
        pass
    assert server.identities == ["PLAIN"]


def test_a_connection_without_sasl_is_possible(server: EngineServer) -> None:
    with connect(server.url, sasl="none") as connection:
        assert connection.is_open
    assert server.identities == []


def test_wrong_credentials_are_refused(server: EngineServer) -> None:
    with pytest.raises(ConnectionLost) as refused:
        connect(server.url, user="user", password="wrong")
    assert refused.value.condition == Condition.UNAUTHORIZED_ACCESS
    assert "PLAIN" in refused.value.description
    assert "wrong" not in str(refused.value)


@pytest.mark.parametrize(("sasl", "reason"), [("plain", "requires a user"), ("magic", "not 'magic'")])
def test_sasl_that_cannot_be_is_refused_before_connecting(sasl: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        connect("amqp://127.0.0.1:1", sasl=sasl)


def test_a_closed_port_is_a_lost_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConnectionLost, match=f"127.0.0.1:{port}"):
        connect(f"amqp://127.0.0.1:{port}")


def test_a_silent_peer_is_a_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(Timeout, match="the peer's open"):
        connect(f"amqp://127.0.0.1:{silent.getsockname()[1]}", timeout=0.1)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"AMQP\x00\x00\x09\x01", b""])
def test_a_peer_that_speaks_something_else_is_a_lost_connection(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def speak() -> None:
            sock, _ = other.accept()
            with sock:
                sock.recv(100)
                sock.sendall(answer)

        thread = threading.Thread(target=speak)
        thread.start()
        with pytest.raises(ConnectionLost):
            connect(f"amqp://127.0.0.1:{other.getsockname()[1]}", timeout=10)
        thread.join()


def test_tls_with_a_trusted_certificate_carries_everything(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path, ["localhost"])
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_context.load_cert_chain(files.certificate, files.key)
    client_context = ssl.create_default_context(cafile=str(files.authority))
    with EngineServer(tls=server_context) as server:
        address = f"amqps://localhost:{server.port}"
        with connect(address, tls=client_context) as connection:
            big = Message(data=[bytes(700_000)]).encode()
            assert connection.sender("q").send_all([big] * 5) == 5
            receiver = connection.receiver("q")
            received: list[Any] = []
            while len(received) < 5:
                received += receiver.receive(5)
            assert all(message.payload == big for message in received)
        with pytest.raises(ConnectionLost, match="certificate"):
            connect(address)


def test_a_close_by_the_peer_is_raised_with_its_reason_by_the_next_call(server: EngineServer) -> None:
    connection = connect(server.url)
    with pytest.raises(ConnectionLost) as lost:
        connection.sender("fatal")
    assert (lost.value.condition, lost.value.description) == (Condition.CONNECTION_FORCED, "as you wish")
    with pytest.raises(ConnectionLost, match="as you wish"):
        connection.receiver("q")
    connection.close()


def test_a_peer_that_disconnects_is_a_lost_connection() -> None:
    server = EngineServer()
    connection = connect(server.url)
    receiver = connection.receiver("q")
    server.stop()
    with pytest.raises(ConnectionLost):
        receiver.receive(timeout=10)
    assert not connection.is_open
    connection.close()


def test_nothing_can_be_done_after_close(server: EngineServer) -> None:
    connection = connect(server.url)
    sender = connection.sender("q")
    connection.close()
    connection.close()
    for call in (lambda: connection.sender("q"), lambda: sender.send(Message()), connection.work):
        with pytest.raises(ClientError, match="client closed"):
            call()


def test_an_unknown_entity_is_a_closed_link_with_the_peers_condition(server: EngineServer) -> None:
    with connect(server.url) as connection:
        for attach in (connection.sender, connection.receiver):
            with pytest.raises(LinkClosed) as refused:
                attach("missing")
            assert refused.value.condition == Condition.NOT_FOUND
        connection.sender("q").send(Message(data=[b"x"]))


def test_an_attach_without_an_answer_is_a_timeout(server: EngineServer) -> None:
    with connect(server.url) as connection, pytest.raises(Timeout, match="a sender to 'mute'"):
        connection.sender("mute", timeout=0.05)


def test_an_address_is_needed_from_somewhere(server: EngineServer) -> None:
    with connect(server.url) as connection, pytest.raises(ValueError, match="EntityPath"):
        connection.sender()


# --- tokens ---


def test_links_of_a_connection_string_show_a_token_first_and_once(server: EngineServer) -> None:
    with connect(connection_string(server)) as connection:
        connection.sender("q").send(Message(data=[b"x"]))
        connection.receiver("q")
        connection.sender("other")
    assert [token["name"] for token in server.tokens] == ["sb://127.0.0.1/q", "sb://127.0.0.1/other"]
    first = server.tokens[0]
    assert (first["operation"], first["type"]) == ("put-token", "servicebus.windows.net:sastoken")
    assert first["token"].startswith("SharedAccessSignature sr=sb%3A%2F%2F127.0.0.1%2Fq&sig=")


def test_the_entity_path_is_the_default_address(server: EngineServer) -> None:
    with connect(connection_string(server, more="EntityPath=mine")) as connection:
        connection.authenticate()
        connection.sender().send(Message(data=[b"x"]))
    assert [token["name"] for token in server.tokens] == ["sb://127.0.0.1/mine"]
    assert len(server.queues["mine"]) == 1


def test_a_ready_signature_is_shown_as_it_is(server: EngineServer) -> None:
    address = f"Endpoint=sb://127.0.0.1:{server.port};SharedAccessSignature=SharedAccessSignature sr=a&skn=b;"
    with connect(address + "UseDevelopmentEmulator=true") as connection:
        connection.authenticate("q")
    assert server.tokens[0]["token"] == "SharedAccessSignature sr=a&skn=b"


def test_a_refused_token_is_an_authentication_failure(server: EngineServer) -> None:
    with (
        connect(connection_string(server, key_name="wrong")) as connection,
        pytest.raises(AuthenticationFailed, match=r"so be it \(status 401 for 'q'\)") as failed,
    ):
        connection.sender("q")
    assert failed.value.condition == Condition.UNAUTHORIZED_ACCESS


def test_a_url_has_no_token_to_show(server: EngineServer) -> None:
    with connect(server.url) as connection, pytest.raises(AuthenticationFailed, match="neither a key"):
        connection.authenticate("q")


def test_tokens_are_renewed_before_they_expire(server: EngineServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(connection_string(server)) as connection:
        connection.authenticate("q")
        monkeypatch.setattr("peeklock.client.tokens.time.time", lambda: 4_000_000_000.0)
        monkeypatch.setattr(connection, "_ticked_at", 0.0)
        connection.work()
        connection.authenticate("other")
        assert [token["name"].rpartition("/")[2] for token in server.tokens] == ["q", "q", "other"]
        assert "se=4000003600" in server.tokens[1]["token"]


def test_key_name_and_key_may_be_used_for_plain(server: EngineServer) -> None:
    address = connection_string(server, key_name="user").replace("=key;", "=pass word;")
    with connect(address, sasl="plain"):
        pass
    assert server.identities == ["PLAIN"]
