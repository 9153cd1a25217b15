"""Tests of `peeklock certificate`: the path of the authority that clients have to trust."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType

from peeklock.server.certificates import CertificateError, ensure_certificates, ensure_certificates_in_process
from raw_client import HOST, RawClient, dial, dial_tls, eventually, get
from serving import SOURCE, ServedBroker


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "peeklock", "certificate", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "XDG_STATE_HOME": str(folder / "state")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def printed(folder: Path, *arguments: str) -> Path:
    """Run the command and return the absolute path that it prints."""
    ended = run(folder, *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    (line,) = ended.stdout.splitlines()
    path = Path(line)
    assert path.is_absolute()
    assert path.is_file()
    return path


def test_a_client_that_trusts_the_printed_certificate_connects(served: ServedBroker, tmp_path: Path) -> None:
    authority = printed(tmp_path, "--data", str(served.data))
    assert authority == served.authority
    client = RawClient(dial_tls(served.port, authority))
    client.open()
    client.send(client.sender(), b"hello")
    assert get(served.port, "/health", authority)[0] == 200
    with (
        ServiceBusClient.from_connection_string(
            served.connection_string.replace("UseDevelopmentEmulator=true;", ""),
            transport_type=TransportType.Amqp,
            custom_endpoint_address=f"sb://{HOST}:{served.port}",
            connection_verify=str(authority),
            retry_total=0,
        ) as sdk,
        sdk.get_queue_sender("queue") as sender,
    ):
        sender.send_messages(ServiceBusMessage("hello"))


def test_a_client_that_trusts_only_public_authorities_does_not_connect(served: ServedBroker) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        ssl.create_default_context().wrap_socket(dial(served.port), server_hostname=HOST)


def test_the_certificate_can_be_printed_before_the_first_start(tmp_path: Path) -> None:
    authority = printed(tmp_path)
    assert authority == tmp_path / "peeklock-data" / "tls" / "authority.pem"
    assert printed(tmp_path) == authority


def test_what_clients_trust_stays_the_same_over_a_restart_on_another_address(tmp_path: Path) -> None:
    broker = ServedBroker(tmp_path)
    before = broker.authority.read_bytes()
    assert broker.stop() == 0
    again = ServedBroker(tmp_path, "--host", "127.0.0.2")
    assert again.authority.read_bytes() == before
    assert printed(tmp_path, "--data", str(again.data)).read_bytes() == before
    assert again.stop() == 0


def test_the_one_for_brokers_in_memory_is_kept_apart(tmp_path: Path) -> None:
    assert printed(tmp_path, "--memory") == tmp_path / "state" / "peeklock" / "tls" / "authority.pem"


def test_a_read_only_folder_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = run(tmp_path, "--data", "file/data")
    assert ended.returncode == 2
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("peeklock: ")
    assert "file/data" in line


def test_a_certificate_of_the_users_own_is_served(tmp_path: Path) -> None:
    own = ensure_certificates(tmp_path / "own", [])
    broker = ServedBroker(tmp_path, "--tls-cert", str(own.certificate), "--tls-key", str(own.key))
    client = RawClient(dial_tls(broker.port, own.authority))
    client.open()
    client.send(client.sender(), b"hello")
    assert not broker.authority.exists()
    assert broker.stop() == 0


def test_a_certificate_that_was_replaced_is_served_after_sighup(tmp_path: Path) -> None:
    own, other = ensure_certificates(tmp_path / "own", []), ensure_certificates(tmp_path / "other", [])
    own.key.chmod(0o644)
    broker = ServedBroker(tmp_path, "--tls-cert", str(own.certificate), "--tls-key", str(own.key))
    try:
        assert f"a file with a private key can be read by other users; run chmod 600 on it file={own.key}" in (
            broker.log.replace('"', "")
        )
        own.key.write_bytes(other.key.read_bytes())
        own.certificate.write_bytes(other.certificate.read_bytes())
        broker.process.send_signal(signal.SIGHUP)
        eventually(lambda: "new connections get the new certificate" in broker.log)
        client = RawClient(dial_tls(broker.port, other.authority))
        client.open()
        client.send(client.sender(), b"hello")
    finally:
        broker.stop()


def test_a_broker_frees_the_memory_used_for_making_certificates(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from peeklock.server.certificates import ensure_certificates_in_process as ensure\n"
        "print(ensure(Path(sys.argv[1]), []).authority.is_file(), 'cryptography' in sys.modules)"
    )
    for _ in range(2):
        ended = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert ended.stdout == "True False\n", ended.stderr


def test_certificates_that_cannot_be_made_apart_are_told_about_as_ever(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CertificateError, match="cannot be read or written"):
        ensure_certificates_in_process(tmp_path / "file", [])
