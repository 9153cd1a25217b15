"""The lanes of a queue, in which claims search for active messages: its sessions, its priorities, or the whole queue.

`claim_search` searches the lanes in order. During a search the queue delivers no message that the claim may find.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from peeklock.broker.claim_records import Claim
from peeklock.broker.claimed_sessions import ClaimHolder, is_reserved_for
from peeklock.store.base import Run

if TYPE_CHECKING:
    from peeklock.broker.queue import Queue
    from peeklock.broker.session_queue import SessionQueue
    from peeklock.broker.waiting import Waiting


class ClaimLanes:
    """The lanes of one queue. Abstract."""

    def pause(self) -> bool:
        """Stop delivering messages that a claim may find, until `resume`. Return False if that is not possible now."""
        raise NotImplementedError  # abstract

    def resume(self) -> None:
        """Deliver messages again."""
        raise NotImplementedError  # abstract

    def names(self, claim_name: str, most: int) -> list[str | None]:
        """Return the lanes to search, in order; at most `most` sessions. None is the lane with all messages."""
        raise NotImplementedError  # abstract

    def reserve(self, lane: str | None, claim_name: str) -> int | None:
        """Reserve the lane for claims of that name.

        Return the sequence number after which to search; None if the lane is not available.
        """
        raise NotImplementedError  # abstract

    def load(self, claim: Claim) -> None:
        """At start: reserve the lanes of a claim in the store."""
        raise NotImplementedError  # abstract

    def on_staged(self, lane: str | None, runs: list[Run]) -> None:
        """Active messages of the lane are being claimed: they can no longer be received."""
        raise NotImplementedError  # abstract

    def on_undone(self, lane: str | None, runs: list[Run]) -> None:
        """Messages of the lane are active again: the store refused the claim, or the claim was released.

        Without runs: the search found no messages in the lane, or the claimed messages were removed.
        """
        raise NotImplementedError  # abstract


class QueueLanes(ClaimLanes):
    """The lanes of a queue without sessions: one for each priority, or one lane with all messages."""

    def __init__(self, queue: Queue, waiting: Waiting) -> None:
        self._queue = queue
        self._waiting = waiting

    def pause(self) -> bool:
        return self._queue.pause()

    def resume(self) -> None:
        self._queue.end_pause()

    def names(self, claim_name: str, most: int) -> list[str | None]:
        return [lane.session_id for lane in self._waiting.lanes]

    def reserve(self, lane: str | None, claim_name: str) -> int | None:
        return next(each.begin_claim() for each in self._waiting.lanes if each.session_id == lane)

    def load(self, claim: Claim) -> None:
        pass  # claimed messages are not active, so no lane has to be reserved

    def on_staged(self, lane: str | None, runs: list[Run]) -> None:
        self._waiting.drop_runs(runs)

    def on_undone(self, lane: str | None, runs: list[Run]) -> None:
        if runs:
            self._waiting.read_again(runs)
            self._queue.expiry.look()
            self._queue.wake()


class SessionLanes(ClaimLanes):
    """The lanes of a queue with sessions: one for each session. Claims can reserve sessions that no receiver holds."""

    def __init__(self, queue: SessionQueue) -> None:
        self._queue = queue
        self._sessions = queue.sessions

    def pause(self) -> bool:
        return True  # claims search only sessions that no receiver holds

    def resume(self) -> None:
        pass

    def names(self, claim_name: str, most: int) -> list[str | None]:
        """Return the sessions that claims of this name hold, so that later messages follow, and then free sessions."""
        kept: list[str | None] = [
            session.id for session in self._sessions if session.active and is_reserved_for(session, claim_name)
        ]
        return [*kept, *self._sessions.free_ids][:most]

    def reserve(self, lane: str | None, claim_name: str) -> int | None:
        session = self._sessions.find(lane or "")
        if session is None:
            return None
        if session.is_free:
            self._sessions.reserve(session, ClaimHolder(claim_name))
        return 0 if is_reserved_for(session, claim_name) else None

    def load(self, claim: Claim) -> None:
        for lane in claim.parts:
            self._sessions.reserve(self._sessions.enter(lane or ""), ClaimHolder(claim.name))

    def on_staged(self, lane: str | None, runs: list[Run]) -> None:
        # The count is below zero for a moment if the store has messages whose commit was not answered yet.
        self._sessions.enter(lane or "").active -= sum(run.count for run in runs)

    def on_undone(self, lane: str | None, runs: list[Run]) -> None:
        session = self._sessions.enter(lane or "")
        if runs:
            session.active += sum(run.count for run in runs)
            self._queue.expiry.look()
        if isinstance(session.holder, ClaimHolder) and not self._queue.claims.has_lane(lane):
            session.holder = None
            self._sessions.offer(session)
