"""TLS certificates: a local authority, created once, and a server certificate that it signs.

Clients trust the authority, so they need no change when the server certificate is renewed. Both are in the folder `tls`
of the data folder, with a summary of the certificate in `server.json`. When the summary is valid, a start parses no
certificate and does not import `cryptography`, which is slow to load and large. For certificates that the user provides
only `server_context` is used.
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
"""Apple's platforms refuse server certificates that are valid for more than 398 days."""
RENEW_BEFORE = timedelta(days=30)
_BACKDATED = timedelta(days=1)  # for clients whose clock is behind

ALWAYS = ("localhost", "127.0.0.1", "::1")
_LABEL = r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?"
_HOST_NAME = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*")


class CertificateError(Exception):
    """A certificate cannot be used or made. `str()` is one sentence with the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Paths of the PEM files. Clients must trust `authority`."""

    authority: Path
    certificate: Path
    key: Path


def ensure_certificates(folder: Path, hosts: Sequence[str], *, now: datetime | None = None) -> Certificates:
    """Return the certificates in `folder/tls`, valid for this machine and `hosts`, after making or renewing them."""
    moment = now or datetime.now(UTC)
    files = _Files(folder / "tls")
    names = _names_to_certify(hosts)
    try:
        if not files.are_valid(names, moment):
            _renew(files, names, moment)
        files.protect()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CertificateError(f"The certificates in {files.folder} cannot be read or written: {reason}.") from error
    return Certificates(authority=files.authority, certificate=files.certificate, key=files.key)


def ensure_certificates_in_process(folder: Path, hosts: Sequence[str], *, now: datetime | None = None) -> Certificates:
    """Do the same as `ensure_certificates`, but make certificates in a child process.

    Loading `cryptography` takes memory that the broker's process would never release.
    """
    moment = now or datetime.now(UTC)
    if not _Files(folder / "tls").are_valid(_names_to_certify(hosts), moment):
        command = [sys.executable, "-m", "peeklock.server.certificates", str(folder), moment.isoformat(), *hosts]
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return ensure_certificates(folder, hosts, now=moment)  # finds the new ones, or raises the error of the child


def server_context(certificate: Path, key: Path, client_authority: Path | None = None) -> ssl.SSLContext:
    """Return a context for TLS 1.2 or later on the server's side; CertificateError when the files cannot be used.

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
        # Without this callback OpenSSL asks for the password on the terminal, and the start would hang.
        encrypted.append(True)
        return ""

    try:
        context.load_cert_chain(certificate, key, password=no_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        if encrypted:
            problem = f"The TLS key {key} is encrypted. Encrypted keys are not supported: decrypt it."
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


def _names_to_certify(hosts: Sequence[str]) -> list[str]:
    """Return the names and addresses for the certificate, normalised and sorted; CertificateError for an invalid host.

    The machine's own host name is included if it is valid.
    """
    found = set(ALWAYS)
    for host in hosts:
        name = _normal(host)
        if name is None:
            raise CertificateError(f"{host!r} is not a host name or an IP address.")
        found.add(name)
    own = _normal(socket.gethostname())
    if own is not None:
        found.add(own)
    # These mean "listen on every address"; no client connects to them.
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
    """The files of one `tls` folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = folder / "authority.pem"
        self.authority_key = folder / "authority-key.pem"
        self.certificate = folder / "server.pem"
        self.key = folder / "server-key.pem"
        self.summary = folder / "server.json"
        """Hosts and expiry of the server certificate, and the digest of the files."""

    def are_valid(self, hosts: Sequence[str], now: datetime) -> bool:
        """Return whether the certificate is for these hosts and does not have to be renewed yet."""
        try:
            summary = json.loads(self.summary.read_bytes())
            covers = set(summary["hosts"]).issuperset(hosts)
            lasts = now + RENEW_BEFORE < datetime.fromisoformat(summary["not_after"])
            return covers and lasts and summary["digest"] == self.digest()
        except (OSError, ValueError, KeyError, TypeError):
            return False  # missing, incomplete or not written by us: make it again

    def digest(self) -> str:
        """Return a digest of all files that clients and listeners read. It shows files of an interrupted renewal."""
        total = hashlib.sha256()
        for path in (self.authority, self.certificate, self.key):
            total.update(hashlib.sha256(path.read_bytes()).digest())
        return total.hexdigest()

    def protect(self) -> None:
        """Remove the access of other users, also to files that an earlier version or the user made."""
        for path, mode in ((self.folder, 0o700), (self.key, 0o600), (self.authority_key, 0o600)):
            if path.exists() and stat.S_IMODE(path.stat().st_mode) & ~mode:
                path.chmod(mode)

    def write(self, path: Path, data: bytes, *, secret: bool = False) -> None:
        """Write a file atomically. A secret is created with mode 0600, so other users can never read it."""
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
    # The summary is written last: without a matching one the next start makes a new certificate.
    files.write(files.key, pem(key), secret=True)
    files.write(files.certificate, certificate.public_bytes(serialization.Encoding.PEM))
    summary = {
        "hosts": list(hosts),
        "not_after": certificate.not_valid_after_utc.isoformat(),
        "digest": files.digest(),
    }
    files.write(files.summary, (json.dumps(summary, indent=2) + "\n").encode())


def _authority(
    files: _Files, now: datetime, pem: Callable[[EllipticCurvePrivateKey], bytes]
) -> tuple[x509.Certificate, EllipticCurvePrivateKey]:
    """Return the existing authority; a new one if there is none or it expires before a certificate signed now."""
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    if files.authority.exists():
        advice = f"Restore it, or delete the folder {files.folder}: then clients must trust a new authority."
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
    # The certificate is written last: an authority exists if its certificate does.
    files.write(files.authority_key, pem(key), secret=True)
    files.write(files.authority, authority.public_bytes(serialization.Encoding.PEM))
    return authority, key


def _sign_authority(key: EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import NameOID

    serial = x509.random_serial_number()
    # A client that trusts two authorities finds the issuer by its name, so names are unique.
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
