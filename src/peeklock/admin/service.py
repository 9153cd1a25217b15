"""The HTTP service of the ATOM API: authorizes requests, calls the operations of resources, writes responses."""

from __future__ import annotations

import asyncio
import logging
import re
from http import HTTPStatus
from typing import Final

from aiohttp import web

from peeklock.admin.access import authorize, authorize_destinations
from peeklock.admin.addresses import Address, NamespaceAddress, owner_of, parse_address
from peeklock.admin.documents import (
    ENTRY_TYPE,
    FEED_TYPE,
    Entry,
    Page,
    UrlBuilder,
    write_entry,
    write_feed,
)
from peeklock.admin.resources import KINDS, Definition, Listing, Resource, Resources, RuleResource, etag_of
from peeklock.atom.entries import description_of
from peeklock.atom.markup import MarkupError, parse
from peeklock.broker.access import Grant, key_name_of
from peeklock.broker.audit import OK, AuditEvent
from peeklock.broker.errors import (
    EntityChanging,
    EntityExists,
    EntityNotFound,
    StorageFull,
)
from peeklock.broker.namespace import Namespace
from peeklock.entities.names import DefinitionError
from peeklock.limits.http import BODY_SECONDS, MAX_PAGE
from peeklock.server.http import AUDIT, TICKET, Handler, origin_of
from peeklock.server.logs import event
from peeklock.server.peers import peer_name
from peeklock.server.refusals import Refused, refusal

log = logging.getLogger(__name__)

LATEST_VERSION: Final = "2024-05"
RULE: Final = web.RequestKey("rule", RuleResource)
"""The rule that a request creates or updates: if it is refused, the error also states the effect on the
subscription."""
_VERBS: Final = {"created": "create", "updated": "update", "deleted": "delete"}
_CHANGING: Final = frozenset({"PUT", "DELETE"})
_VERSION = re.compile(r"[0-9]{4}-[0-9]{2}")


def administer(namespace: Namespace) -> Handler:
    """Return the handler of requests that administer the namespace."""
    return AtomService(namespace).handle


class AtomService:
    """Handles the administration requests of one namespace."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    async def handle(self, request: web.Request) -> web.Response:
        try:
            return await self._answer(request)
        except Exception as failure:
            return _refusal(failure, request)

    async def _answer(self, request: web.Request) -> web.Response:
        unknown: EntityNotFound | None = None
        address: Address | None = None
        try:
            address = parse_address(request.path)
        except EntityNotFound as failure:
            unknown = failure
        token = request.headers.get("Authorization", "")
        owner = None if address is None else owner_of(address)
        grant = authorize(self._namespace, token, request.rel_url.raw_path, owner, request[TICKET])
        if address is None:
            assert unknown is not None
            raise unknown
        urls = self._urls(request)
        resources = Resources(self._namespace, urls)
        resource = resources.resource(address)
        if resource is not None and request.method == "PUT":
            return await self._put(request, resource, grant, urls)
        if resource is not None and request.method == "DELETE":
            return await self._delete(request, resource)
        if request.method != "GET":
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"{request.method} is not supported at this address.")
        if resource is not None:
            return _entry(resource.entry(), urls)
        listing = resources.listing(address)
        if listing is not None:
            return self._page(request, listing, urls)
        assert isinstance(address, NamespaceAddress)
        return _entry(resources.namespace_entry(), urls)

    async def _put(self, request: web.Request, resource: Resource, grant: Grant, urls: UrlBuilder) -> web.Response:
        """Create a resource, or with `If-Match` update it."""
        if isinstance(resource, RuleResource):
            request[RULE] = resource
        body = await _body(request)
        expected = request.headers.get("If-Match")
        try:
            former = resource.get()
        except EntityNotFound:
            if expected is not None:
                raise
            former = None
        if former is not None and expected is None:
            raise EntityExists(f"The messaging entity '{resource.path}' already exists. Use If-Match to update it.")
        if former is not None:
            _check_match(expected, etag_of(former))
        wanted = resource.read(description_of(parse(body)), former)
        authorize_destinations(self._namespace, grant, wanted, former, request.headers, request[TICKET])
        if former is None:
            await resource.create(wanted)
        else:
            await resource.update(wanted)
        self._record_change(request, resource, wanted, "created" if former is None else "updated")
        return _entry(resource.entry(), urls, HTTPStatus.CREATED if former is None else HTTPStatus.OK)

    async def _delete(self, request: web.Request, resource: Resource) -> web.Response:
        former = resource.get()
        _check_match(request.headers.get("If-Match"), etag_of(former))
        await resource.delete()
        self._record_change(request, resource, former, "deleted")
        return web.Response()

    def _page(self, request: web.Request, listing: Listing, urls: UrlBuilder) -> web.Response:
        skip = _number(request, "$skip", 0, 0)
        top = min(_number(request, "$top", MAX_PAGE, 1), MAX_PAGE)
        items = listing.items[skip : skip + top]
        is_last = skip + top >= len(listing.items)
        page = Page(listing.path, listing.title, [listing.entry(item) for item in items], skip, top, is_last)
        text = write_feed(page, urls, self._namespace.now())
        return web.Response(body=text.encode(), headers={"Content-Type": FEED_TYPE})

    def _urls(self, request: web.Request) -> UrlBuilder:
        version = request.query.get("api-version", LATEST_VERSION)
        if not _VERSION.fullmatch(version):
            raise Refused(HTTPStatus.BAD_REQUEST, "The api-version must have the form YYYY-MM, such as 2021-05.")
        names_version = "api-version" in request.query
        return UrlBuilder(origin_of(request), version, self._namespace.definition.name, names_version)

    def _record_change(self, request: web.Request, resource: Resource, definition: Definition, what: str) -> None:
        by = key_name_of(request.headers["Authorization"])
        event(log, logging.INFO, f"{KINDS[type(definition)]} {what}", entity=resource.path, by=by)
        action = f"{_VERBS[what]} {KINDS[type(definition)]}"
        peer = peer_name(request.transport)
        request[AUDIT].record(AuditEvent(action=action, outcome=OK, connection=peer, client=by, entity=resource.path))


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise Refused(
            HTTPStatus.REQUEST_TIMEOUT, f"The body of the request did not arrive within {BODY_SECONDS:g} seconds."
        ) from None


def _entry(entry: Entry, urls: UrlBuilder, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    body = write_entry(entry, urls).encode()
    return web.Response(body=body, status=status, headers={"Content-Type": ENTRY_TYPE, "ETag": entry.etag})


def _number(request: web.Request, name: str, default: int, lowest: int) -> int:
    text = request.query.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < lowest:
        raise Refused(HTTPStatus.BAD_REQUEST, f"{name} must be a whole number of at least {lowest}.")
    return int(text)


def _check_match(expected: str | None, etag: str) -> None:
    """Raise Refused unless the header `If-Match` is `*` or has this value in its list."""
    if expected is None or expected.strip() == "*":
        return
    if etag not in [each.strip().removeprefix("W/") for each in expected.split(",")]:
        raise Refused(
            HTTPStatus.PRECONDITION_FAILED, "The entity was changed: its current version is not the one in If-Match."
        )


# --- refusing ---

SUB_CODES: Final[dict[type[Exception], int]] = {EntityExists: 40900, EntityChanging: 40901}
STATUSES: Final[dict[type[Exception], HTTPStatus]] = {
    MarkupError: HTTPStatus.BAD_REQUEST,
    DefinitionError: HTTPStatus.BAD_REQUEST,
    # Clients do not handle 507, the status of HTTP for a full storage.
    StorageFull: HTTPStatus.FORBIDDEN,
}


def _refusal(failure: Exception, request: web.Request) -> web.Response:
    return refusal(
        failure,
        request,
        statuses=STATUSES,
        sub_codes=SUB_CODES,
        action="",
        entity="",
        is_change=request.method in _CHANGING,
        path=request.rel_url.raw_path,
        explain=request[RULE].explain if RULE in request else None,
    )
