"""Claims by deferral: messages are deferred under the name of a query, read by peeking, and removed when durable.

A claimed message is a deferred message whose application property `peeklock-claim` has the claim name. No receiver gets
it, it can be peeked repeatedly, and a search finds it by that property if the query ended before it stored an offset.
The module knows the entity's operations and nothing of Spark. The caller decides when to settle.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, Self

from peeklock.amqp.errors import Condition, DecodeError
from peeklock.amqp.message import Message
from peeklock.amqp.types import Array, UByte
from peeklock.client import ClientError, ReceivedMessage, ReceiveMode, Receiver, RequestRefused
from peeklock.spark import ranges
from peeklock.spark.intake import BYTES_AT_ONCE, Intake
from peeklock.spark.offsets import Claim, Limit, Offset
from peeklock.spark.options import Options
from peeklock.spark.owners import NotOwned, Owner
from peeklock.spark.pages import Pages
from peeklock.spark.ranges import Ranges
from peeklock.spark.reach import Asked, Reach, SourceFailed
from peeklock.spark.rows import CLAIM_PROPERTY, Page, number_of
from peeklock.spark.sending import Patience

log = logging.getLogger(__name__)

SETTLED_AT_ONCE: Final = 500
PEEKED_AT_ONCE: Final = 500
AT_ONCE: Final = 2
"""Outstanding requests, so that client and service work at the same time."""
SEARCHED_AT_ONCE: Final = 5000
"""Messages searched for forgotten claims before new messages are claimed."""
IN_USE: Final = Patience(retries=6)
"""Retries while the name is in use: after its driver was killed, a process takes some time to end."""

_CLAIMING: Final = "claiming messages of"
_READING: Final = "reading claimed messages of"
_MARK: Final = CLAIM_PROPERTY.encode()
_STATE: Final = "x-opt-message-state"
_DEFERRED: Final = 1
_RECEIVE_AND_DELETE: Final = UByte(0)


class ClaimLost(SourceFailed):
    """Claimed messages no longer exist; the text names their sequence numbers."""

    @classmethod
    def of(cls, missing: Ranges, entity: str) -> Self:
        return cls(
            f"{ranges.count(missing)} claimed messages of '{entity}' no longer exist and were not read: "
            f"sequence numbers {_named(missing)}"
        )


class NameInUse(SourceFailed):
    """Another query claims under the name."""

    @classmethod
    def of(cls, start: Offset) -> Self:
        return cls(
            f"another query claims messages of '{start.entity}' under the name '{start.claim}': "
            "set a different 'claimName' for each query, or stop the other query"
        )


class Claims:
    """The claims of one name on one entity. A context manager, for use by one thread."""

    def __init__(self, options: Options, reach: Reach | None = None) -> None:
        self.start = Offset(entity=options.address, claim=options.claim)
        """The offset before the first claim."""
        self.removed = 0
        """Number of messages of settled offsets that were removed."""
        self._options = options
        self._poll_s = options.poll_interval_s
        self._owner = Owner(options)
        self._reach = reach or Reach(options)
        self._intake = Intake(options, self._reach, ReceiveMode.PEEK_LOCK)
        self._search_from = 0
        self._search_through: int | None = None
        self._is_searched = False
        self._has_settled = False

    def __enter__(self) -> Claims:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.disown()
        self._reach.close()

    @property
    def owner(self) -> str:
        """The id of the query, for its offsets."""
        return self._owner.id

    def disown(self) -> None:
        """Let another query claim under the name; the connection stays open."""
        self._owner.release()

    def _own(self) -> None:
        """Become the owner of the name on this machine, or raise NameInUse."""
        failures = 0
        while not self._owner.acquire():
            failures += 1
            if failures > IN_USE.retries:
                raise NameInUse.of(self.start)
            self._reach.pause(IN_USE.delay(failures))

    # --- claiming ---

    def next(self, limit: Limit, *, wait_s: float | None = None) -> Claim:
        """Return the claim of the next batch: first claims that are in no offset, then newly claimed messages.

        Call it only after all offsets were settled: any other claim with this name counts as one that is in no offset.
        """
        claim = self.recover(limit)
        if not claim.has_room(limit) or (not self._is_searched and self._intake.has_sessions):
            return claim  # older messages of a session go first
        if claim.count or not self._is_searched:
            wait_s = 0.0
        taken = self.take(claim.room(limit), wait_s=wait_s)
        return claim.joined(taken)

    def take(self, limit: Limit, *, wait_s: float | None = None) -> Claim:
        """Claim messages. Wait `wait_s` (or the poll interval) for a first message, and then a short time for more.

        If the service fails meanwhile, this returns an empty claim, and `recover` finds the messages claimed so far.
        """
        wait_s = self._poll_s if wait_s is None else wait_s
        self._own()
        try:
            claim = self._take(limit, wait_s)
        except ClientError as error:
            self._is_searched = False
            self._search_from, self._search_through = 0, None
            self._reach.failed(_CLAIMING, error)
            return Claim()
        self._reach.succeeded(_CLAIMING)
        return claim

    def _take(self, limit: Limit, wait_s: float) -> Claim:
        claim = Claim()

        def defer(receiver: Receiver, session_id: str | None, messages: list[ReceivedMessage]) -> bool:
            taken: list[ReceivedMessage] = []
            left: list[ReceivedMessage] = []
            for message in messages:
                number = number_of(message.payload)
                if limit.allows(number) and claim.has_room(limit):
                    claim.add(session_id, number, len(message.payload))
                    taken.append(message)
                else:
                    left.append(message)
            if taken:
                mark = {CLAIM_PROPERTY: self._owner.mark}
                receiver.modify(taken, delivery_failed=False, undeliverable_here=True, annotations=mark)
            if left:
                receiver.release(left)
            return not left

        self._intake.fill(claim, limit, wait_s, defer)
        return claim

    def claim_ahead(self, limit: Limit) -> None:
        """Does nothing with this protocol, where claiming would block the driver."""

    def release(self) -> None:
        """Does nothing: every claimed message is part of an offset."""

    # --- finding claims that are in no offset ---

    @property
    def is_searched(self) -> bool:
        """Whether the whole entity was searched for claims that are in no offset."""
        return self._is_searched

    def recover(self, limit: Limit) -> Claim:
        """Return claims with this name that are in no offset. Call it when all offsets are settled.

        A call searches a part of a large entity, or all of an entity with sessions, where older messages go first.
        """
        if self._is_searched:
            return Claim()
        self._own()
        return self._reach.attempt("looking for claims on", lambda: self._recover(limit))

    def _recover(self, limit: Limit) -> Claim:
        claim = Claim()
        looked = 0
        has_sessions = self._intake.has_sessions
        if self._search_through is None:
            with Pages(self._options) as pages:
                self._search_through = max(pages.ends().values(), default=0)
        search_from = self._search_from  # stored only if the search succeeds
        while claim.has_room(limit) and (has_sessions or looked < SEARCHED_AT_ONCE):
            page = (
                self._reach.peek(search_from, PEEKED_AT_ONCE, bodies=False)
                if search_from <= self._search_through
                else []
            )
            if not page:
                self._is_searched = True
                break
            for payload in page:
                number = number_of(payload)
                search_from = number + 1
                found = self._is_ours(payload)
                if found is not None:
                    session_id = found.properties.group_id if has_sessions and found.properties else None
                    claim.add(session_id, number, len(payload))
                    if not claim.has_room(limit):
                        break
            looked += len(page)
        self._search_from = search_from
        if claim.count:
            log.info("found %d claimed messages of '%s' that are in no offset", claim.count, self.start.entity)
        return claim

    def _is_ours(self, payload: bytes) -> Message | None:
        if _MARK not in payload:
            return None
        try:
            message = Message.decode(payload)
        except DecodeError:
            return None
        if (message.message_annotations or {}).get(_STATE) != _DEFERRED:
            return None
        try:
            is_owned = self._owner.owns((message.application_properties or {}).get(CLAIM_PROPERTY))
        except NotOwned:
            self.disown()
            entity, claim = self.start.entity, self.start.claim
            raise NameInUse(
                f"messages of '{entity}' are claimed by another query without a 'claimName', which may still run: set "
                f"a different 'claimName' for each query; if the other query does not run any more, start this one "
                f"once with claimName '{claim}', which takes its messages over"
            ) from None
        return message if is_owned else None

    # --- reading ---

    def read(self, wanted: Ranges, session_id: str | None = None, size: int | None = None) -> Iterator[Page]:
        """Read claimed messages in order, as pages of encoded messages. Raises ClaimLost if some no longer exist.

        Reading changes nothing, so several readers may read the same messages, and repeatedly. `size` is not used.
        """
        left = wanted
        missing: Ranges = []
        while left:
            try:
                for page, missing_here, rest in self._pages(left, session_id):
                    left = rest
                    self._reach.succeeded(_READING)
                    missing = ranges.join(missing, missing_here)
                    if page:
                        yield page
            except ClientError as error:
                self._reach.failed(_READING, error)
        if missing:
            raise ClaimLost.of(missing, self.start.entity)

    def _pages(self, wanted: Ranges, session_id: str | None) -> Iterator[tuple[list[bytes], Ranges, Ranges]]:
        """Yield for each page its messages, the missing numbers, and the numbers that remain to be read. Pages are
        requested ahead."""
        asked: deque[tuple[Ranges, Asked]] = deque()
        left = unasked = wanted
        while left:
            while unasked and len(asked) < AT_ONCE:
                window = ranges.intersect(unasked, unasked[0][0], unasked[0][0] + PEEKED_AT_ONCE - 1)
                unasked = ranges.subtract(unasked, window)
                asked.append((window, self._ask(window, session_id)))
            window, request = asked.popleft()
            page, missing, rest = _sort(window, self._reach.peeked(request))
            if rest:  # an answer may have fewer messages than requested
                asked.appendleft((rest, self._ask(rest, session_id)))
            left = ranges.join(rest, ranges.subtract(left, window))
            yield page, missing, left

    def _ask(self, window: Ranges, session_id: str | None) -> Asked:
        first = window[0][0]
        return self._reach.ask_to_peek(first, window[-1][1] - first + 1, session_id)

    # --- settling ---

    def settle(self, offset: Offset) -> None:
        """Remove the messages that an offset has claimed. Messages that no longer exist are ignored."""
        check_same(self.start, offset)
        self._owner.continues(offset.owner)
        if offset.ids or offset.removing:
            raise SourceFailed(
                f"the checkpoint has claims on '{offset.entity}' that a broker stores (peeklock:claims); only that "
                "broker can remove them: use claimProtocol=auto, and the service that made them"
            )
        size = min(SETTLED_AT_ONCE, max(1, BYTES_AT_ONCE * offset.count // max(1, offset.size)))
        for session_id, numbers in offset.parts():
            self._reach.attempt(
                "settling claimed messages of",
                lambda: self._settle_part(numbers, session_id, size),  # noqa: B023
            )
        self._has_settled = True
        self.removed += offset.count

    @property
    def removing(self) -> tuple[str, ...]:
        """Always empty: `settle` waits for the removals."""
        return ()

    def finish(self) -> None:
        """Does nothing: `settle` waits for the removals."""

    def _settle_part(self, numbers: Ranges, session_id: str | None, size: int) -> None:
        if session_id is None:
            self._remove_all(numbers, None, size)
            return
        if not self._has_settled and not self._left_of(numbers, session_id):
            return  # settled before a restart; the session does not have to be locked
        connection = self._reach.connection
        with connection.session_receiver(self.start.entity, session_id, credit=0):
            self._remove_all(numbers, session_id, size)

    def _remove_all(self, numbers: Ranges, session_id: str | None, size: int) -> None:
        asked: deque[tuple[list[int], Asked]] = deque()
        for chunk in ranges.chunks(numbers, size):
            asked.append((chunk, self._ask_to_remove(chunk, session_id)))
            if len(asked) == AT_ONCE:
                self._finish_removal(*asked.popleft(), session_id)
        while asked:
            self._finish_removal(*asked.popleft(), session_id)

    def _finish_removal(self, numbers: list[int], request: Asked, session_id: str | None) -> None:
        if not self._is_removed(request):
            # Some no longer exist. Peeking at the rest is faster than removing one at a time.
            rest = list(ranges.numbers(self._left_of(ranges.of_numbers(numbers), session_id)))
            self._remove_some(rest, session_id)

    def _remove_some(self, numbers: list[int], session_id: str | None) -> None:
        if not numbers or self._remove(numbers, session_id) or len(numbers) == 1:
            return
        middle = len(numbers) // 2
        self._remove_some(numbers[:middle], session_id)
        self._remove_some(numbers[middle:], session_id)

    def _remove(self, numbers: list[int], session_id: str | None) -> bool:
        return self._is_removed(self._ask_to_remove(numbers, session_id))

    def _ask_to_remove(self, numbers: list[int], session_id: str | None) -> Asked:
        """Request to receive and delete messages: all, or none if one of them does not exist."""
        body: dict[str, Any] = {
            "sequence-numbers": Array(numbers, int),
            "receiver-settle-mode": _RECEIVE_AND_DELETE,
        }
        if session_id is not None:
            body["session-id"] = session_id
        return self._reach.ask("receive-by-sequence-number", body)

    def _is_removed(self, request: Asked) -> bool:
        try:
            request.answer()
        except RequestRefused as refusal:
            if refusal.condition != Condition.MESSAGE_NOT_FOUND:
                raise
            return False
        return True

    def _left_of(self, numbers: Ranges, session_id: str | None) -> Ranges:
        """Return the numbers whose messages still exist."""
        there: list[int] = []
        for page, _, _ in self._pages(numbers, session_id):
            there += map(number_of, page)
        return ranges.of_numbers(there)


def check_same(start: Offset, offset: Offset) -> None:
    """Raise SourceFailed if the offset is for another entity or claim name."""
    if (offset.entity, offset.claim) != (start.entity, start.claim):
        raise SourceFailed(
            f"the checkpoint is for '{offset.entity}' with claimName '{offset.claim}', not for '{start.entity}' with "
            f"'{start.claim}': use another checkpoint, or the same entity and claimName"
        )


def _sort(window: Ranges, peeked: list[bytes]) -> tuple[list[bytes], Ranges, Ranges]:
    """Match an answer with its request: the messages, the missing numbers, and those to be requested again."""
    numbers = [number_of(payload) for payload in peeked]
    # A number before the last one in the answer, and not in the answer, has no message.
    through = numbers[-1] if numbers else window[-1][1]
    due = ranges.intersect(window, window[0][0], through)
    wanted = set(ranges.numbers(due)) if numbers else set()
    page = [payload for payload, number in zip(peeked, numbers, strict=True) if number in wanted]
    found = ranges.of_numbers(number for number in numbers if number in wanted)
    return page, ranges.subtract(due, found), ranges.subtract(window, due)


def _named(numbers: Ranges, most: int = 10) -> str:
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in numbers[:most]]
    return ", ".join(texts) + (f" and {len(numbers) - most} more ranges" if len(numbers) > most else "")
