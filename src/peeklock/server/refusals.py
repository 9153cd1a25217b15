"""Refusals of HTTP requests: the status, the error document of Service Bus, the log and the audit log.

The administration and the messaging handlers pass the statuses of failures that are not BrokerErrors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final, TypeVar
from uuid import uuid4
from xml.etree.ElementTree import Element

from aiohttp import web

from peeklock.atom.markup import leaf, to_text
from peeklock.broker.audit import FAILED
from peeklock.broker.errors import BrokerError
from peeklock.server.http import audit_denied, audit_request
from peeklock.server.logs import event
from peeklock.server.peers import peer_name

log = logging.getLogger(__name__)

T = TypeVar("T")

ERROR_TYPE: Final = "application/xml; charset=utf-8"
MAX_SHOWN: Final = 200
"""Characters of a path or a reason in the log; the rest is cut off."""


class Refused(Exception):
    """The request is refused with this HTTP status and sentence."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def refusal(
    failure: Exception,
    request: web.Request,
    *,
    statuses: Mapping[type[Exception], HTTPStatus],
    sub_codes: Mapping[type[Exception], int],
    action: str,
    entity: str,
    is_change: bool,
    path: str,
    explain: Callable[[str], str] | None = None,
) -> web.Response:
    """Return the answer to a request that failed, and log the failure.

    Denied access and failed changes are also recorded in the audit log.

    `sub_codes`: codes with which clients distinguish failures of one status. The default is the status times 100.
    `path`: the path in the log and in the answer.
    `explain`: adds to the sentence what the refusal means for the client.
    """
    sentence = str(failure)
    if isinstance(failure, web.HTTPRequestEntityTooLarge):
        status, sentence = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The body of the request is too large."
    elif isinstance(failure, web.RequestPayloadError | ConnectionError):
        status, sentence = HTTPStatus.BAD_REQUEST, "The body of the request could not be read."
    elif isinstance(failure, Refused):
        status = failure.status
    elif (known := _first(statuses, failure)) is not None:
        status = known
    elif isinstance(failure, BrokerError):
        status = failure.status
    else:
        log.error("a request failed", exc_info=failure)
        status, sentence = HTTPStatus.INTERNAL_SERVER_ERROR, "The request could not be processed."
    sub_code = _first(sub_codes, failure) or status * 100
    if sentence[-1:].isalnum():
        sentence += "."
    if explain is not None:
        sentence = explain(sentence)
    _log_refused(request, path, status, sentence)
    if status == HTTPStatus.UNAUTHORIZED:
        audit_denied(request, sentence, action, entity)
    elif is_change:
        audit_request(request, FAILED, sentence, action, entity)
    body = write_error(status, sub_code, f"{status.phrase}. {sentence}", path)
    return web.Response(body=body.encode(), status=status, headers={"Content-Type": ERROR_TYPE})


def write_error(status: int, sub_code: int, sentence: str, tracker: str) -> str:
    """Return the error document as XML. Clients read the sub-code from its detail."""
    moment = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "")
    detail = f"SubCode={sub_code}. {sentence} TrackingId:{uuid4()}, SystemTracker:{tracker}, Timestamp:{moment}"
    error = Element("Error")
    leaf(error, "Code", f"{status}")
    leaf(error, "Detail", detail)
    return to_text(error)


def _log_refused(request: web.Request, path: str, status: HTTPStatus, sentence: str) -> None:
    """Log the refusal: as info for 404, because clients check whether entities exist; otherwise as a warning."""
    event(
        log,
        logging.INFO if status == HTTPStatus.NOT_FOUND else logging.WARNING,
        "request refused",
        peer=peer_name(request.transport),
        request=f"{request.method} {path}"[:MAX_SHOWN],
        status=int(status),
        reason=sentence.partition("\n")[0][:MAX_SHOWN],
    )


def _first(table: Mapping[type[Exception], T], failure: Exception) -> T | None:
    return next((value for kind, value in table.items() if isinstance(failure, kind)), None)
