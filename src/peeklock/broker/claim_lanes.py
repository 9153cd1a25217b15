"""Where claims look for active messages: in the lanes of a queue, which are sessions, priorities, or the queue itself.

`claiming` looks through the lanes in order. While it does, the queue delivers no message that the claim may find.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from peeklock.broker.claim_records import Claim
from peeklock.broker.claimed_sessions import ClaimHolder, is_kept_for
from peeklock.store.base import Run

if TYPE_CHECKING:
    from peeklock.broker.queue import Queue
    from peeklock.broker.session_queue import SessionQueue
    from peeklock.broker.waiting import Waiting


class ClaimLanes:
    """The lanes of one queue. Abstract."""

    def pause(self) -> bool:
        """Stop delivering messages that a claim may find, until `resume`; False if that is not possible now."""
        raise NotImplementedError  # abstract

    def resume(self) -> None:
        raise NotImplementedError  # abstract

    def names(self, claim_name: str, most: int) -> list[str | None]:
        """The lanes to look through, in order, at most so many sessions. None stands for all messages."""
        raise NotImplementedError  # abstract

    def keep(self, lane: str | None, claim_name: str) -> int | None:
        """Keep the lane for claims of that name.

        Returns the sequence number after which to look; None if the lane is not available.
        """
        raise NotImplementedError  # abstract

    def load(self, claim: Claim) -> None:
        """At start: keep the lanes of a claim that the store has."""
        raise NotImplementedError  # abstract

    def on_staged(self, lane: str | None, runs: list[Run]) -> None:
        """Active messages of the lane are being claimed: they can no longer be received."""
        raise NotImplementedError  # abstract

    def on_undone(self, lane: str | None, runs: list[Run]) -> None:
        """Messages of the lane are active again: the store refused the claim, or the claim was released.

        Without runs: the search found none there, or the claimed messages were removed.
        """
        raise NotImplementedError  # abstract


class QueueLanes(ClaimLanes):
    """Those of a queue without sessions: one lane, or one for each priority."""

    def __init__(self, queue: Queue, waiting: Waiting) -> None:
        self._queue = queue
        self._waiting = waiting

    def pause(self) -> bool:
        return self._queue.pause()

    def resume(self) -> None:
        self._queue.end_pause()

    def names(self, claim_name: str, most: int) -> list[str | None]:
        return [lane.session_id for lane in self._waiting.lanes]

    def keep(self, lane: str | None, claim_name: str) -> int | None:
        return next(each.begin_claim() for each in self._waiting.lanes if each.session_id == lane)

    def load(self, claim: Claim) -> None:
        pass  # claimed messages are not active, so no lane has to be kept

    def on_staged(self, lane: str | None, runs: list[Run]) -> None:
        self._waiting.drop_runs(runs)

    def on_undone(self, lane: str | None, runs: list[Run]) -> None:
        if runs:
            self._waiting.read_again(runs)
            self._queue.expiry.look()
            self._queue.wake()


class SessionLanes(ClaimLanes):
    """Those of a queue with sessions: its sessions, of which claims keep those that no receiver holds."""

    def __init__(self, queue: SessionQueue) -> None:
        self._queue = queue
        self._sessions = queue.sessions

    def pause(self) -> bool:
        return True  # claims look only into sessions that no receiver holds

    def resume(self) -> None:
        pass

    def names(self, claim_name: str, most: int) -> list[str | None]:
        """First sessions that claims of this name keep, so that their later messages follow, then free ones."""
        kept: list[str | None] = [
            session.id for session in self._sessions if session.active and is_kept_for(session, claim_name)
        ]
        return [*kept, *self._sessions.free_ids][:most]

    def keep(self, lane: str | None, claim_name: str) -> int | None:
        session = self._sessions.find(lane or "")
        if session is None:
            return None
        if session.is_free:
            self._sessions.keep_free(session, ClaimHolder(claim_name))
        return 0 if is_kept_for(session, claim_name) else None

    def load(self, claim: Claim) -> None:
        for lane in claim.parts:
            self._sessions.keep_free(self._sessions.enter(lane or ""), ClaimHolder(claim.name))

    def on_staged(self, lane: str | None, runs: list[Run]) -> None:
        # Below zero for a moment, if the store had messages of which the queue had not been told yet.
        self._sessions.enter(lane or "").active -= sum(run.count for run in runs)

    def on_undone(self, lane: str | None, runs: list[Run]) -> None:
        session = self._sessions.enter(lane or "")
        if runs:
            session.active += sum(run.count for run in runs)
            self._queue.expiry.look()
        if isinstance(session.holder, ClaimHolder) and not self._queue.claims.has_lane(lane):
            session.holder = None
            self._sessions.offer(session)
