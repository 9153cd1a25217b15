"""The distinction between headers for custom message properties and headers of HTTP, proxies and Service Bus."""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_NAMES: Final = """
    accept age allow alt-svc authorization baggage brokerproperties cache-control connection content-disposition
    content-encoding content-language content-length content-location content-md5 content-range content-type cookie date
    dnt etag expect expires forwarded from host if-match if-modified-since if-none-match if-range if-unmodified-since
    keep-alive last-modified link location max-forwards origin peeklock-omitted-properties pragma proxy-authenticate
    proxy-authorization proxy-connection range referer retry-after server servicebusauthorization
    servicebusdlqsupplementaryauthorization servicebussupplementaryauthorization set-cookie strict-transport-security te
    traceparent tracestate trailer transfer-encoding upgrade upgrade-insecure-requests user-agent vary via warning
    www-authenticate x-correlation-id x-real-ip x-request-id
"""
_STANDARD: Final = frozenset(_NAMES.split())
_STANDARD_BEGINNINGS: Final = ("accept-", "access-control-", "sec-", "x-amzn-", "x-forwarded-", "x-ms-")


def is_property(name: str) -> bool:
    """Return whether a header with this name is a custom property. Properties with other names have no header."""
    folded = name.lower()
    return (
        _TOKEN.fullmatch(name) is not None and folded not in _STANDARD and not folded.startswith(_STANDARD_BEGINNINGS)
    )
