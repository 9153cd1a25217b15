"""Client certificates for a broker that requires them: of its configured authority, and of others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

GOOD: Final = "client.pem"
EXPIRED: Final = "expired.pem"
_DAY: Final = timedelta(days=1)


class ClientAuthority:
    """Signs client certificates. All authorities have the same name and differ in their keys."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("clients")
        self.file = folder / "authority.pem"
        self.file.write_bytes(self._signed(self._name, self._key, timedelta(days=30), is_authority=True))
        for file, left in ((GOOD, timedelta(days=30)), (EXPIRED, -_DAY)):
            self._issue(folder / file, left)

    def _issue(self, file: Path, left: timedelta) -> None:
        """Write a certificate that expires after `left`, and its key, to one file."""
        key = ec.generate_private_key(ec.SECP256R1())
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(self._signed(_name("client"), key, left, is_authority=False) + secret)

    def _signed(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, left: timedelta, *, is_authority: bool
    ) -> bytes:
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 10 * _DAY)
            .not_valid_after(now + left)
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
