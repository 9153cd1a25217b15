"""TLS: renewed and reloaded certificates, required TLS, and required client certificates."""

from __future__ import annotations

import socket
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from peeklock.amqp.errors import Condition
from peeklock.amqp.frames import AMQP_HEADER, SASL_HEADER
from peeklock.engine.sasl import SaslClient
from peeklock.server.certificates import ensure_certificates
from raw_client import HOST, RawClient, dial, dial_tls, eventually, get, read_to_end, trusting
from serving import BrokerThread, StartBroker


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return tmp_path / "data" / "tls" / "authority.pem"


def shown(port: int) -> x509.Certificate:
    """Return the certificate that a new connection gets, without checking its signature."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with context.wrap_socket(dial(port), server_hostname=HOST) as stream:
        found = stream.getpeercert(binary_form=True)
    assert found is not None
    return x509.load_der_x509_certificate(found)


# --- renewal ---


def test_the_brokers_own_certificate_is_renewed_while_it_runs(start_broker: StartBroker, authority: Path) -> None:
    broker = start_broker(data=None)
    port = broker.broker.port
    first = shown(port)
    trusted = authority.read_bytes()
    client = RawClient(dial_tls(port, authority))
    client.open()
    broker.advance(timedelta(days=300).total_seconds())
    assert shown(port).serial_number == first.serial_number
    broker.advance(timedelta(days=65).total_seconds())
    eventually(lambda: shown(port).serial_number != first.serial_number)
    assert shown(port).not_valid_after_utc > first.not_valid_after_utc + timedelta(days=300)
    assert authority.read_bytes() == trusted
    client.send(client.sender(), b"over the connection that was there")


def replace(files: Path, certificate: Path, key: Path) -> None:
    made = ensure_certificates(files, [])
    certificate.write_bytes(made.certificate.read_bytes())
    key.write_bytes(made.key.read_bytes())


def test_certificates_of_the_user_are_read_again_by_timer_and_on_request(
    start_broker: StartBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = tmp_path / "own.pem", tmp_path / "own-key.pem"
    replace(tmp_path / "a", certificate, key)
    broker = start_broker(data=None, tls_certificate=certificate, tls_key=key)
    port = broker.broker.port
    serials = [shown(port).serial_number]

    replace(tmp_path / "b", certificate, key)
    assert shown(port).serial_number == serials[0]
    broker.advance(3600)
    eventually(lambda: shown(port).serial_number != serials[0])
    serials.append(shown(port).serial_number)

    replace(tmp_path / "c", certificate, key)
    broker.call(broker.broker.tls.request_reload)
    eventually(lambda: shown(port).serial_number not in serials)
    serials.append(shown(port).serial_number)

    key.write_bytes(ensure_certificates(tmp_path / "d", []).key.read_bytes())
    broker.call(broker.broker.tls.request_reload)
    eventually(lambda: "the TLS files cannot be used; the previous certificate stays in use" in caplog.text)
    assert shown(port).serial_number == serials[-1]


# --- required TLS ---


@pytest.fixture
def strict(start_broker: StartBroker) -> BrokerThread:
    return start_broker(data=None, require_tls=True)


def test_every_protocol_is_served_inside_tls(strict: BrokerThread, authority: Path) -> None:
    port = strict.broker.port
    client = RawClient(dial_tls(port, authority))
    client.open()
    client.send(client.sender(), b"hello")
    assert get(port, "/health", authority)[0] == 200


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "MSSBCBS"])
def test_plain_amqp_is_refused_with_the_reason(
    strict: BrokerThread, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = RawClient(dial(strict.broker.port), sasl=SaslClient(mechanism))
    error = client.closed_with()
    assert error is not None
    assert error.condition == Condition.NOT_ALLOWED
    assert error.description == "This broker requires TLS: connect with TLS to the same port."
    assert "connection refused" in caplog.text


def test_plain_is_not_offered_without_tls(strict: BrokerThread) -> None:
    stream = dial(strict.broker.port)
    stream.sendall(SASL_HEADER)
    offered = b""
    while b"ANONYMOUS" not in offered:
        offered += stream.recv(1000)
    assert b"PLAIN" not in offered
    stream.close()


def test_plain_http_is_refused_with_the_reason(strict: BrokerThread) -> None:
    for path in ("/health", "/metrics", "/queue?api-version=2021-05", "/$servicebus/websocket"):
        assert get(strict.broker.port, path) == (426, "This broker requires TLS: use https or wss.\n")


def test_garbage_is_answered_with_the_amqp_header_without_tls(strict: BrokerThread) -> None:
    stream = dial(strict.broker.port)
    stream.sendall(b"\x00" * 8)
    assert read_to_end(stream) == AMQP_HEADER


# --- certificates of clients ---


class Authority:
    """Signs client certificates."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, folder.name)])
        self.file = folder / "authority.pem"
        self.file.write_bytes(self._signed(self._name, self._key, is_authority=True))

    def client(self) -> Path:
        """Write a certificate and its key to one file."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "client")])
        path = self._folder / "client.pem"
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.write_bytes(self._signed(name, key, is_authority=False) + secret)
        return path

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> bytes:
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def dial_with(port: int, authority: Path, certificate: Path | None) -> socket.socket:
    context = trusting(authority)
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context.wrap_socket(dial(port), server_hostname=HOST)


def is_refused(port: int, authority: Path, certificate: Path | None) -> bool:
    """Return whether the broker refuses the certificate. In TLS 1.3 the client gets the error when it reads."""
    try:
        with dial_with(port, authority, certificate) as stream:
            stream.sendall(AMQP_HEADER)
            return stream.recv(8) == b""
    except (ssl.SSLError, ConnectionError):
        return True


def test_with_an_authority_for_clients_only_certificates_that_it_signed_are_accepted(
    start_broker: StartBroker, tmp_path: Path, authority: Path
) -> None:
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    port = start_broker(data=None, require_tls=True, mtls_ca=ours.file).broker.port
    client = RawClient(dial_with(port, authority, ours.client()))
    client.open()
    client.send(client.sender(), b"hello")
    for certificate in (None, theirs.client()):
        assert is_refused(port, authority, certificate)


def test_client_certificates_without_required_tls_cause_a_warning(
    start_broker: StartBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start_broker(data=None, mtls_ca=Authority(tmp_path / "ours").file)
    assert "clients that connect without TLS are not asked for a certificate" in caplog.text


def test_an_invalid_authority_for_clients_is_named(start_broker: StartBroker, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nonsense")
    with pytest.raises(Exception, match=r"wrong\.pem is not a PEM certificate of an authority"):
        start_broker(data=None, mtls_ca=wrong)
    with pytest.raises(Exception, match=r"missing\.pem cannot be read"):
        start_broker(data=None, mtls_ca=tmp_path / "missing.pem")
