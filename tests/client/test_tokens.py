from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import parse_qs, unquote_plus

from peeklock.client import sas_token


def test_a_signature_covers_the_encoded_uri_and_the_expiry() -> None:
    token = sas_token("sb://ns.example/my queue", "Root Key", "k+/=", 1_700_000_000.9)
    word, _, rest = token.partition(" ")
    assert word == "SharedAccessSignature"
    raw = dict(part.split("=", 1) for part in rest.split("&"))
    assert unquote_plus(raw["sr"]) == "sb://ns.example/my queue"
    assert (raw["se"], unquote_plus(raw["skn"])) == ("1700000000", "Root Key")
    digest = hmac.new(b"k+/=", f"{raw['sr']}\n{raw['se']}".encode(), hashlib.sha256).digest()
    assert parse_qs(rest)["sig"] == [base64.b64encode(digest).decode()]
