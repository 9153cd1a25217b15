"""Claims that the broker stores by ranges of sequence numbers, so that no message passes through the driver.

This protocol requires a service that offers the capability `peeklock:claims`. `claims` has the protocol for all other
services, and `claims_of` selects one. The module knows the broker's operations and nothing of Spark. The caller decides
when to settle.

If the broker has a claim that is in no offset, it was requested by a run that ended before it stored an offset, or it
was requested ahead. Such a claim becomes a batch, or a part of one. Removals are sent without waiting for the answer.
An offset therefore also has the ids of claims whose removal was not confirmed when it was made: their batches are
durable, and they must not be read again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any, Final
from uuid import UUID, uuid4

from peeklock.amqp.errors import Condition
from peeklock.amqp.types import Int
from peeklock.client import ClientError, RequestRefused
from peeklock.limits.broker import MAX_CLAIM_NAME, MAX_CLAIM_WAIT_MS, MAX_CLAIMED_MESSAGES, MAX_LISTED_CLAIMS
from peeklock.spark import ranges
from peeklock.spark.claims import IN_USE, ClaimLost, Claims, NameInUse, check_same
from peeklock.spark.offsets import Claim, Limit, Offset
from peeklock.spark.options import BROKER, DEFER, Options
from peeklock.spark.packed import PackedReading
from peeklock.spark.ranges import Ranges
from peeklock.spark.reach import Asked, Reach, SourceFailed
from peeklock.spark.rows import Page, numbers_of

log = logging.getLogger(__name__)

_MOST_UNCONFIRMED: Final = 2
"""The most removals without a confirmation."""
_KEPT_ALIVE_S: Final = 10.0
"""How often an idle connection is serviced. If it closed, the claim name would have no connected owner."""

_CLAIMING: Final = "claiming messages of"
_LISTING: Final = "looking for claims on"
_READING: Final = "reading claimed messages of"
_REMOVING: Final = "removing claimed messages of"


class _NameInUse(Exception):
    """Another connected query uses the claim name."""


class BrokerClaims:
    """The claims of one name on one entity. A context manager, for use by one thread; a second one keeps it alive."""

    def __init__(self, options: Options, reach: Reach | None = None) -> None:
        self.start = Offset(entity=options.address, claim=options.claim)
        """The offset before the first claim."""
        self.removed = 0
        """Number of messages whose removal was confirmed."""
        self._options = options
        self._reach = reach or Reach(options)
        self._name = _short(options.claim)
        self._owner = uuid4()
        self._found: list[Claim] | None = None
        """Claims that are in no offset, oldest first; None before they were listed."""
        self._made: set[str] = set()
        """The ids of those claims that this object made."""
        self._ahead: tuple[dict[str, Any], Asked | None] | None = None
        """A claim that was requested without waiting for the answer."""
        self._removals: dict[str, Asked | None] = {}
        """The removal requests by claim id; None for a removal that must be requested again."""
        self._deferred: Claims | None = None
        """Claims by deferral, while there may be messages that an earlier run deferred."""
        self._lock = threading.RLock()
        self._is_closed = threading.Event()
        self._keeper: threading.Thread | None = None

    def __enter__(self) -> BrokerClaims:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_closed.set()
        with self._lock:
            if self._deferred is not None:
                self._deferred.disown()
            self._reach.close()

    # --- claiming ---

    @property
    def owner(self) -> str:
        """Empty: the broker knows the owner. An offset keeps the id that an earlier offset has."""
        return ""

    @property
    def is_searched(self) -> bool:
        """Whether all claims that are in no offset were found."""
        return self._found is not None and self._deferred is None

    def next(self, limit: Limit, *, wait_s: float | None = None) -> Claim:
        """Return the claim of the next batch: first claims that are in no offset, then newly claimed messages.

        Call it only after all offsets were settled: any other claim with this name counts as one that is in no offset.
        It waits up to `wait_s` (or the poll interval) for a first message, and then for a short time for more.
        """
        with self._lock:
            self._keep_alive()
            claim = self._found_deferred(limit)
            if claim.count:
                return claim
            claim = self._next_found(limit)
            if not self._found and claim.has_room(limit) and limit.through != 0:
                wait_s = self._options.poll_interval_s if wait_s is None else wait_s
                claim = self._fill(claim, limit, self._options.max_wait_s if claim.count else wait_s)
            if not claim.count:
                self.finish()  # use the idle time to confirm the removals
            return claim

    def _fill(self, claim: Claim, limit: Limit, wait_s: float) -> Claim:
        while True:
            request = self._request(claim.room(limit), wait_s, self._options.max_wait_s)
            more = self._claim(request)
            claim = claim.joined(more)
            if not more.count or limit.messages is not None or not claim.has_room(limit):
                return claim
            wait_s = 0.0

    def _next_found(self, limit: Limit) -> Claim:
        """Return existing claims up to the limit. A claim that is larger than the limit is returned alone."""
        self._take_ahead()
        if self._found is None:
            # Claiming makes this object the owner of the name. After that no other client adds claims to it.
            own = self._claim(self._request(limit, 0.0, 0.0))
            self._made.update(own.ids)
            found = self._reach.attempt(_LISTING, self._listed)
            self._found = [each for each in found if each.ids != own.ids]
            forgotten = sum(each.count for each in self._found)
            if own.count:
                self._found.append(own)
            if forgotten:
                log.info("found %d claimed messages of '%s' that are in no offset", forgotten, self.start.entity)
        claim = Claim()
        while self._found and (not claim.count or _fits(claim.joined(self._found[0]), limit)):
            claim = claim.joined(self._found.pop(0))
        self._made.difference_update(claim.ids)
        return claim

    def claim_ahead(self, limit: Limit) -> None:
        """Request the next claim without waiting for the answer; `next` returns it."""
        with self._lock:
            if self._found != [] or self._ahead is not None or limit.through == 0:
                return
            request = self._request(limit, 0.0, 0.0)
            self._ahead = request, None
            with suppress(ClientError):  # it is requested again, under the same id
                self._ahead = request, self._reach.ask("peeklock:claim-messages", request)

    def _take_ahead(self) -> None:
        if self._ahead is None or self._found is None:
            return
        request, asked = self._ahead
        answer: dict[str, Any] | None = None
        with suppress(ClientError):
            answer = asked.answer() if asked is not None else None
        claim = self._claim(request) if answer is None else _claim_of(answer, request["claim-id"])
        self._ahead = None
        if claim.count:
            self._found.append(claim)
            self._made.update(claim.ids)

    def _request(self, limit: Limit, wait_s: float, linger_s: float) -> dict[str, Any]:
        """Make a request with a new claim id, so that a repeated request after a failure has the same answer."""
        most = MAX_CLAIMED_MESSAGES if limit.messages is None else min(limit.messages, MAX_CLAIMED_MESSAGES)
        request: dict[str, Any] = {
            "claim-name": self._name,
            "claim-id": uuid4(),
            "owner": self._owner,
            "message-count": Int(most),
            "wait": Int(min(int(wait_s * 1000), MAX_CLAIM_WAIT_MS)),
            "linger": Int(min(int(linger_s * 1000), MAX_CLAIM_WAIT_MS)),
        }
        if limit.size is not None:
            request["max-bytes"] = limit.size
        if limit.through is not None:
            request["through"] = max(1, limit.through)
        return request

    def _claim(self, request: dict[str, Any]) -> Claim:
        failures = 0
        while True:
            try:
                answer = self._reach.attempt(_CLAIMING, partial(self._try_to_claim, request))
                return _claim_of(answer, request["claim-id"])
            except _NameInUse:
                failures += 1
                if failures > IN_USE.retries:
                    raise NameInUse.of(self.start) from None
                self._reach.pause(IN_USE.delay(failures))

    def _try_to_claim(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            return self._reach.ask("peeklock:claim-messages", request).answer()
        except RequestRefused as refusal:
            if refusal.condition == Condition.CLAIM_NAME_IN_USE:
                raise _NameInUse from None
            raise

    # --- finding claims that are in no offset ---

    def _listed(self) -> list[Claim]:
        """List the claims with this name, except claims whose removal was requested."""
        found: list[Claim] = []
        skip = 0
        while True:
            body = {"claim-name": self._name, "skip": Int(skip), "top": Int(MAX_LISTED_CLAIMS)}
            answer = self._reach.ask("peeklock:list-claims", body).answer()
            if not answer:
                return [claim for claim in found if self._removals.keys().isdisjoint(claim.ids)]
            found += [_claim_of(each, each["claim-id"]) for each in answer["claims"]]
            skip = answer["skip"]

    def _found_deferred(self, limit: Limit) -> Claim:
        """Return messages that an earlier run deferred and that are in no offset."""
        while self._deferred is not None:
            claim = self._deferred.recover(limit)
            if self._deferred.is_searched:
                self._deferred.disown()
                self._deferred = None
            if claim.count:
                return claim
        return Claim()

    # --- reading ---

    def read(self, wanted: Ranges, session_id: str | None = None, size: int | None = None) -> Iterator[Page]:
        """Read claimed messages in order, as packed pages. Raises ClaimLost at the end if some no longer exist.

        Reading changes nothing, so several readers may read the same messages, and repeatedly. `size` is the expected
        size of a message.
        """
        missing: Ranges = []
        for page in PackedReading(self._reach, size).read(wanted, _READING):
            if page.messages != ranges.count(page.asked):
                there = ranges.of_numbers(numbers_of(page.data, self.start.entity))
                missing = ranges.join(missing, ranges.subtract(page.asked, there))
            if page.messages:
                yield page.data
        if missing:
            raise ClaimLost.of(missing, self.start.entity)

    # --- settling ---

    def settle(self, offset: Offset) -> None:
        """Request the removal of an offset's claims, without waiting. Claims that no longer exist are ignored."""
        with self._lock:
            check_same(self.start, offset)
            if offset.batch and not offset.ids:
                if self._found is None and self._deferred is None:
                    self._deferred = Claims(self._options, self._reach)
                self._settle_deferred(offset)
            for id in (*offset.removing, *offset.ids):
                if id not in self._removals:
                    self._removals[id] = None
            self._send_removals()

    def _settle_deferred(self, offset: Offset) -> None:
        (self._deferred or Claims(self._options, self._reach)).settle(offset)

    @property
    def removing(self) -> tuple[str, ...]:
        """The ids of the claims whose removal is not confirmed."""
        with self._lock:
            for id, asked in list(self._removals.items()):
                if asked is not None and asked.is_answered:
                    self._removals[id] = None
                    with suppress(ClientError):
                        self._confirm(id, asked)
            self._send_removals()
            if len(self._removals) > _MOST_UNCONFIRMED:
                self.finish()
            return tuple(self._removals)

    def finish(self) -> None:
        """Wait until all settled claims are removed."""
        with self._lock:
            for id in list(self._removals):
                self._reach.attempt(_REMOVING, partial(self._finish, id))

    def _finish(self, id: str) -> None:
        asked = self._removals[id]
        self._removals[id] = None  # if it fails, it is requested again
        self._confirm(id, self._ask_to_remove(id) if asked is None else asked)

    def _confirm(self, id: str, asked: Asked) -> None:
        self.removed += asked.answer().get("message-count", 0)
        del self._removals[id]

    def _send_removals(self) -> None:
        with suppress(ClientError):  # a removal that could not be sent stays None
            for id, asked in self._removals.items():
                if asked is None:
                    self._removals[id] = self._ask_to_remove(id)

    def _ask_to_remove(self, id: str) -> Asked:
        return self._reach.ask("peeklock:remove-claim", {"claim-name": self._name, "claim-id": UUID(id)})

    def release(self) -> None:
        """Release the claims that this object made and did not return from `next`."""
        with self._lock, suppress(ClientError):
            if self._ahead is not None and self._ahead[1] is not None:
                if self._ahead[1].answer():
                    self._made.add(str(self._ahead[0]["claim-id"]))
                self._ahead = None
            for id in self._made:
                body = {"claim-name": self._name, "claim-id": UUID(id)}
                self._reach.ask("peeklock:release-claim", body).answer()

    # --- the connection of the owner ---

    def _keep_alive(self) -> None:
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._run, name="claims", daemon=True)
            self._keeper.start()

    def _run(self) -> None:
        while not self._is_closed.wait(_KEPT_ALIVE_S):
            with self._lock:
                self._reach.keep_alive()


def claims_of(options: Options) -> Claims | BrokerClaims:
    """Make the claims with the protocol that the options and the service allow."""
    reach = Reach(options)
    if options.claim_protocol == DEFER:
        return Claims(options, reach)
    if reach.attempt("reaching", lambda: reach.offers_claims):
        return BrokerClaims(options, reach)
    if options.claim_protocol == BROKER:
        reach.close()
        raise SourceFailed(
            f"option 'claimProtocol' is '{BROKER}', but the service of '{options.address}' does not offer claims "
            f"(peeklock:claims): use 'auto' or '{DEFER}'"
        )
    return Claims(options, reach)


def _claim_of(answer: dict[str, Any], id: UUID) -> Claim:
    """The claim in an answer; an empty claim for an empty answer."""
    if not answer:
        return Claim()
    places = answer.get("sessions")
    if places is None:
        parts: dict[str | None, Ranges] = {None: _ranges(answer["ranges"])}
    else:
        parts = {str(each["session-id"]): _ranges(each["ranges"]) for each in places}
    return Claim(parts, answer["bytes"], answer["message-count"], (str(id),))


def _ranges(bounds: list[int]) -> Ranges:
    """Convert pairs of bounds to ranges, and join adjacent ranges."""
    return ranges.join([[first, last] for first, last in zip(bounds[::2], bounds[1::2], strict=True)])


def _short(name: str) -> str:
    """Shorten a claim name if it is too long for the broker, with a digest that keeps names distinct."""
    if len(name) <= MAX_CLAIM_NAME:
        return name
    digest = sha256(name.encode()).hexdigest()[:32]
    return f"{name[: MAX_CLAIM_NAME - 33]}:{digest}"


def _fits(claim: Claim, limit: Limit) -> bool:
    return (limit.messages is None or claim.count <= limit.messages) and (
        limit.size is None or claim.size <= limit.size
    )
