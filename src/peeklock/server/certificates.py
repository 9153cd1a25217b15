"""TLS certificates: a local authority, made once, and a server certificate that it signs.

A client trusts the authority and keeps trusting it while server certificates come and go. Both live in the
`tls` folder of the data, beside a small file that says what the certificate is good for: a start that
finds it in order reads no certificate and does not import `cryptography`, which is slow to load and large.
Certificates that the user brings only pass through `server_context`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import socket
import ssl
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey

AUTHORITY_LIFE = timedelta(days=3650)
CERTIFICATE_LIFE = timedelta(days=390)
"""Apple's platforms refuse a server certificate of more than 398 days."""
RENEW_BEFORE = timedelta(days=30)
_BACKDATED = timedelta(days=1)  # for clients whose clock is behind

ALWAYS = ("localhost", "127.0.0.1", "::1")
_LABEL = r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?"
_HOST_NAME = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")


class CertificateError(Exception):
    """A certificate cannot be used or made. `str()` is one clear sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Where the files are, all PEM. `authority` is what a client has to trust."""

    authority: Path
    certificate: Path
    key: Path


def ensure_certificates(folder: Path, hosts: Sequence[str], *, now: datetime | None = None) -> Certificates:
    """The certificates in `folder/tls`, good for this machine and `hosts`; made or renewed when needed."""
    moment = now or datetime.now(UTC)
    files = _Files(folder / "tls")
    wanted = _wanted(hosts)
    try:
        if not files.in_order(wanted, moment):
            _renew(files, wanted, moment)
        files.protect()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CertificateError(f"The certificates in {files.folder} cannot be kept: {reason}.") from error
    return Certificates(authority=files.authority, certificate=files.certificate, key=files.key)


def ensure_certificates_apart(folder: Path, hosts: Sequence[str], *, now: datetime | None = None) -> Certificates:
    """The same, made in a process of its own: a broker would keep the memory that `cryptography` takes to load."""
    moment = now or datetime.now(UTC)
    if not _Files(folder / "tls").in_order(_wanted(hosts), moment):
        command = [sys.executable, "-m", "peeklock.server.certificates", str(folder), moment.isoformat(), *hosts]
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return ensure_certificates(folder, hosts, now=moment)  # finds them, or says why there are none


def server_context(certificate: Path, key: Path, client_authority: Path | None = None) -> ssl.SSLContext:
    """What a listener needs to speak TLS 1.2 or later; CertificateError when the files do not serve.

    With `client_authority` (PEM) clients must show a certificate that it signed.
    """
    for path in (certificate, key, *([] if client_authority is None else [client_authority])):
        try:
            path.open("rb").close()
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise CertificateError(f"The TLS file {path} cannot be read: {reason}.") from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    encrypted: list[bool] = []

    def no_password() -> str:
        # Without this OpenSSL would ask on the terminal, and a server would hang at its start.
        encrypted.append(True)
        return ""

    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        if encrypted:
            problem = f"The TLS key {key} is encrypted, and no password can be given."
        elif getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            problem = f"The TLS key {key} does not belong to the certificate {certificate}."
        else:
            problem = f"The TLS files {certificate} and {key} are not a PEM certificate and its key."
        raise CertificateError(problem) from error
    if client_authority is not None:
        try:
            context.load_verify_locations(client_authority)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise CertificateError(f"The file {client_authority} is not a PEM certificate of an authority.") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _wanted(hosts: Sequence[str]) -> list[str]:
    """The names and addresses to certify, normalised and sorted. Those given must make sense; the machine's
    own name is taken if it does."""
    found = set(ALWAYS)
    for host in hosts:
        name = _normal(host)
        if name is None:
            raise CertificateError(f"{host!r} is not a host name or an IP address.")
        found.add(name)
    own = _normal(socket.gethostname())
    if own is not None:
        found.add(own)
    # Listening on every address says nothing about the name a client will use.
    return sorted(found - {"0.0.0.0", "::"})


def _normal(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass
    try:
        name = host.rstrip(".").encode("idna").decode("ascii").lower() if not host.isascii() else host
    except UnicodeError:
        return None
    name = name.rstrip(".").lower()
    return name if len(name) <= 253 and _HOST_NAME.fullmatch(name) else None


class _Files:
    """The files of one `tls` folder, and the note that says what is in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = folder / "authority.pem"
        self.authority_key = folder / "authority-key.pem"
        self.certificate = folder / "server.pem"
        self.key = folder / "server-key.pem"
        self.note = folder / "server.json"

    def in_order(self, hosts: Sequence[str], now: datetime) -> bool:
        try:
            note = json.loads(self.note.read_bytes())
            covers = set(note["hosts"]).issuperset(hosts)
            lasts = now + RENEW_BEFORE < datetime.fromisoformat(note["not_after"])
            return covers and lasts and note["digest"] == self.digest()
        except (OSError, ValueError, KeyError, TypeError):
            return False  # missing, cut short or not ours: make it again

    def digest(self) -> str:
        """Changes with any file a client or the listener reads, so that a half-made set is not trusted."""
        total = hashlib.sha256()
        for path in (self.authority, self.certificate, self.key):
            total.update(hashlib.sha256(path.read_bytes()).digest())
        return total.hexdigest()

    def protect(self) -> None:
        """Take the rights of others away, also from what an earlier version or a user left."""
        for path, mode in ((self.folder, 0o700), (self.key, 0o600), (self.authority_key, 0o600)):
            if path.exists() and stat.S_IMODE(path.stat().st_mode) & ~mode:
                path.chmod(mode)

    def write(self, path: Path, data: bytes, *, secret: bool = False) -> None:
        """All of the file or nothing of it, and a secret is never readable by others, not even at first."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=f".{path.name}.")  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                if not secret:
                    os.fchmod(file.fileno(), 0o644)
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _renew(files: _Files, hosts: Sequence[str], now: datetime) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    def pem(key: EllipticCurvePrivateKey) -> bytes:
        return key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )

    authority, authority_key = _authority(files, now, pem)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _sign_server(authority, authority_key, key.public_key(), hosts, now)
    # The note goes last: until it is there, and fits, the next start makes a new certificate.
    files.write(files.key, pem(key), secret=True)
    files.write(files.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    note = {
        "hosts": list(hosts),
        "not_after": certificate.not_valid_after_utc.isoformat(),
        "digest": files.digest(),
    }
    files.write(files.note, (json.dumps(note, indent=2) + "\n").encode())


def _authority(
    files: _Files, now: datetime, pem: Callable[[EllipticCurvePrivateKey], bytes]
) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """The authority there is, or a new one if there is none or it would end before what it signs."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if files.authority.exists():
        advice = f"Restore it, or remove the folder {files.folder} for a new authority that clients must trust."
        try:
            authority = x509.load_pem_x509_certificate(files.authority.read_bytes())
            key = serialization.load_pem_private_key(files.authority_key.read_bytes(), password=None)
        except FileNotFoundError:
            raise CertificateError(f"The authority's key {files.authority_key} is missing. {advice}") from None
        except (ValueError, TypeError) as error:
            problem = f"The authority {files.authority} or its key cannot be read as PEM."
            raise CertificateError(f"{problem} {advice}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != authority.public_key():
            problem = f"The key {files.authority_key} does not belong to {files.authority}."
            raise CertificateError(f"{problem} {advice}")
        if now + CERTIFICATE_LIFE < authority.not_valid_after_utc:
            return authority, key
    key = ec.generate_private_key(ec.SECP256R1())
    authority = _sign_authority(key, now)
    # The certificate goes last: it is what says that there is an authority.
    files.write(files.authority_key, pem(key), secret=True)
    files.write(files.authority, authority.public_bytes(serialization.Encoding.PEM))
    return authority, key


def _sign_authority(key: EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    serial = x509.random_serial_number()
    # Two authorities of one name would confuse a client that trusts both.
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Peeklock"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"Peeklock local authority {serial:040x}"[:33]),
        ]
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )


def _sign_server(
    authority: x509.Certificate,
    authority_key: EllipticCurvePrivateKey,
    public_key: EllipticCurvePublicKey,
    hosts: Sequence[str],
    now: datetime,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]))
        .issuer_name(authority.subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + CERTIFICATE_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority_key, hashes.SHA256())
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


if __name__ == "__main__":
    ensure_certificates(Path(sys.argv[1]), sys.argv[3:], now=datetime.fromisoformat(sys.argv[2]))
