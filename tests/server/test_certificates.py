"""Certificates: clients that trust the authority accept the server, and valid certificates are not made again."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from peeklock.server.certificates import CertificateError, Certificates, ensure_certificates, server_context


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return ensure_certificates(tmp_path_factory.mktemp("data"), ["bus.example.com", "192.0.2.7"])


def handshake(certificates: Certificates, host: str, client: ssl.SSLContext | None = None) -> str | None:
    """Open a TLS connection over a socket pair; returns the TLS version, or raises the client's ssl.SSLError."""
    if client is None:
        client = ssl.create_default_context(cafile=str(certificates.authority))
        client.verify_flags |= ssl.VERIFY_X509_STRICT
    server = server_context(certificates.certificate, certificates.key)
    near, far = socket.socketpair()
    near.settimeout(10)
    far.settimeout(10)

    def serve() -> None:
        try:
            with server.wrap_socket(far, server_side=True) as connection:
                connection.recv(1)
        except (ssl.SSLError, OSError):
            far.close()  # the client's error has the reason

    with ThreadPoolExecutor(1) as pool:
        pool.submit(serve)
        try:
            with client.wrap_socket(near, server_hostname=host) as connection:
                return connection.version()
        finally:
            near.close()


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1", "::1", "bus.example.com", "192.0.2.7", socket.gethostname()]
)
def test_a_client_that_trusts_the_authority_accepts_every_name_of_the_server(made: Certificates, host: str) -> None:
    assert handshake(made, host) == "TLSv1.3"


def test_a_name_that_is_not_certified_is_refused_by_the_client(made: Certificates) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.example\.com"):
        handshake(made, "other.example.com")


def test_a_client_that_does_not_trust_the_authority_refuses(made: Certificates) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(made, "localhost", ssl.create_default_context())


def test_tls_1_2_is_accepted_and_nothing_older(made: Certificates) -> None:
    client = ssl.create_default_context(cafile=str(made.authority))
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert handshake(made, "localhost", client) == "TLSv1.2"
    context = server_context(made.certificate, made.key)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_openssl_accepts_the_chain_strictly(made: Certificates) -> None:
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", "localhost"]
    try:
        done = subprocess.run(
            [*command, "-CAfile", made.authority, made.certificate],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        pytest.skip("the openssl command is not installed")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(": OK\n")


def test_only_the_authority_can_sign_certificates(made: Certificates) -> None:
    authority = certificate(made.authority)
    constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    usage = authority.extensions.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert not usage.value.digital_signature

    server = certificate(made.certificate)
    server.verify_directly_issued_by(authority)
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    purposes = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert server.not_valid_after_utc - server.not_valid_before_utc < timedelta(days=398)
    assert isinstance(server.public_key(), ec.EllipticCurvePublicKey)


def test_only_the_owner_can_read_the_keys(made: Certificates) -> None:
    assert mode(made.key) == 0o600
    assert mode(made.authority.parent / "authority-key.pem") == 0o600
    assert mode(made.authority) == mode(made.certificate) == 0o644
    assert mode(made.authority.parent) == 0o700


def test_access_of_other_users_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    folder.mkdir(mode=0o755)
    made = ensure_certificates(tmp_path, [])
    assert mode(folder) == 0o700
    secrets = (made.key, folder / "authority-key.pem")
    for path, rights in ((folder, 0o777), (secrets[0], 0o644), (secrets[1], 0o640)):
        path.chmod(rights)
    ensure_certificates(tmp_path, [])
    assert mode(folder) == 0o700
    assert {mode(path) for path in secrets} == {0o600}


def test_no_temporary_files_are_left_in_the_folder(made: Certificates) -> None:
    assert sorted(path.name for path in made.authority.parent.iterdir()) == [
        "authority-key.pem",
        "authority.pem",
        "server-key.pem",
        "server.json",
        "server.pem",
    ]


def contents(files: Certificates) -> tuple[bytes, bytes, bytes]:
    return files.authority.read_bytes(), files.certificate.read_bytes(), files.key.read_bytes()


def test_valid_certificates_are_kept(tmp_path: Path) -> None:
    first = ensure_certificates(tmp_path, ["a.example"])
    before = contents(first)
    assert ensure_certificates(tmp_path, []) == first
    assert ensure_certificates(tmp_path, ["A.Example.", "0.0.0.0", "::"]) == first
    assert contents(first) == before


def test_a_start_that_makes_nothing_does_not_import_cryptography(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, [])
    script = (
        "import sys; from pathlib import Path\n"
        "from peeklock.server.certificates import ensure_certificates, server_context\n"
        "files = ensure_certificates(Path(sys.argv[1]), [])\n"
        "server_context(files.certificate, files.key)\n"
        "print('cryptography' in sys.modules)"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout == "False\n"


def test_a_new_host_gets_a_new_certificate_from_the_same_authority(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path, [])
    before = contents(files)
    ensure_certificates(tmp_path, ["new.example"])
    after = contents(files)
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert handshake(files, "new.example") is not None


def test_a_certificate_is_renewed_when_a_month_is_left(tmp_path: Path) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    files = ensure_certificates(tmp_path, [], now=start)
    before = contents(files)
    ensure_certificates(tmp_path, [], now=start + timedelta(days=359))
    assert contents(files) == before
    ensure_certificates(tmp_path, [], now=start + timedelta(days=361))
    after = contents(files)
    assert after[0] == before[0]
    assert certificate(files.certificate).not_valid_after_utc == start + timedelta(days=361 + 390)


def test_an_authority_that_would_end_before_the_certificate_is_replaced(tmp_path: Path) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    files = ensure_certificates(tmp_path, [], now=start)
    old = certificate(files.authority)
    ensure_certificates(tmp_path, [], now=start + timedelta(days=3300))
    new = certificate(files.authority)
    assert new.subject != old.subject
    certificate(files.certificate).verify_directly_issued_by(new)


@pytest.mark.parametrize("name", ["server.pem", "server-key.pem", "server.json"])
@pytest.mark.parametrize("damage", ["removed", "emptied", "exchanged"])
def test_damaged_files_are_made_again(tmp_path: Path, name: str, damage: str) -> None:
    files = ensure_certificates(tmp_path, [])
    path = files.key.parent / name
    if damage == "removed":
        path.unlink()
    elif damage == "emptied":
        path.write_bytes(b"")
    else:
        other = ensure_certificates(tmp_path / "other", [])
        path.write_bytes((other.key.parent / name).read_bytes())
    ensure_certificates(tmp_path, [])
    assert handshake(files, "localhost") is not None
    assert mode(files.key) == 0o600


@pytest.mark.parametrize("note", [b"{", b"[]", b"{}", b'{"hosts": 1, "not_after": "x", "digest": ""}', b"\xff"])
def test_an_invalid_summary_counts_as_missing(tmp_path: Path, note: bytes) -> None:
    files = ensure_certificates(tmp_path, [])
    path = files.key.parent / "server.json"
    path.write_bytes(note)
    ensure_certificates(tmp_path, [])
    assert set(json.loads(path.read_bytes())) == {"hosts", "not_after", "digest"}


def test_an_interrupted_creation_of_the_authority_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls" / "authority-key.pem").write_bytes(b"half")
    assert handshake(ensure_certificates(tmp_path, []), "localhost") is not None


def test_an_authority_without_its_key_is_used_until_it_must_sign(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path, [])
    (files.authority.parent / "authority-key.pem").unlink()
    assert ensure_certificates(tmp_path, []) == files
    with pytest.raises(CertificateError, match=r"authority-key\.pem is missing. Restore it, or delete the fold"):
        ensure_certificates(tmp_path, ["new.example"])


def test_an_authority_with_the_key_of_another_is_refused(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path / "a", [])
    other = ensure_certificates(tmp_path / "b", [])
    theirs = other.authority.parent / "authority-key.pem"
    (files.authority.parent / "authority-key.pem").write_bytes(theirs.read_bytes())
    with pytest.raises(CertificateError, match=r"authority-key\.pem does not belong to "):
        ensure_certificates(tmp_path / "a", ["new.example"])


def test_an_invalid_authority_is_refused(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path, [])
    files.authority.write_bytes(b"nonsense")
    with pytest.raises(CertificateError, match="cannot be read as PEM"):
        ensure_certificates(tmp_path, [])


@pytest.mark.parametrize("host", ["", "a b", "-a", "a..b", "x" * 64, "a/b", "1.2.3.4/8", "\ud800"])
def test_an_invalid_host_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(CertificateError, match="is not a host name or an IP address"):
        ensure_certificates(tmp_path, [host])
    assert not (tmp_path / "tls").exists()


def test_international_names_wildcards_and_bracketed_addresses_are_hosts(tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path, ["bücher.example", "*.bus.example", "[2001:db8::1]"])
    names = certificate(files.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    dns = names.value.get_values_for_type(x509.DNSName)
    assert {"xn--bcher-kva.example", "*.bus.example"} <= set(dns)
    assert handshake(files, "orders.bus.example") is not None
    assert handshake(files, "2001:db8::1") is not None


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with pytest.raises(CertificateError, match="cannot be read or written: Not a directory"):
        ensure_certificates(blocked, [])


# --- files of the user


def test_missing_tls_files_are_named(made: Certificates, tmp_path: Path) -> None:
    missing = tmp_path / "none.pem"
    with pytest.raises(CertificateError, match=r"The TLS file .*none\.pem cannot be read: No such file"):
        server_context(missing, made.key)
    with pytest.raises(CertificateError, match=r"The TLS file .*none\.pem cannot be read: No such file"):
        server_context(made.certificate, missing)


def test_a_key_of_another_certificate_is_refused(made: Certificates, tmp_path: Path) -> None:
    other = ensure_certificates(tmp_path, [])
    with pytest.raises(CertificateError, match="does not belong to the certificate"):
        server_context(made.certificate, other.key)


def test_files_that_are_not_pem_are_refused(made: Certificates, tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    with pytest.raises(CertificateError, match="are not a PEM certificate and its key"):
        server_context(nonsense, made.key)
    with pytest.raises(CertificateError, match="are not a PEM certificate and its key"):
        server_context(made.certificate, nonsense)


def test_an_encrypted_key_is_refused_instead_of_asking_for_its_password(made: Certificates, tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(made.key.read_bytes(), password=None)
    encrypted = tmp_path / "encrypted.pem"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(CertificateError, match=r"encrypted\.pem is encrypted"):
        server_context(made.certificate, encrypted)
