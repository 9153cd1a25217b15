"""Forwards messages from a source to a destination: one commit removes them from the one and adds them to the other.

A forwarder is a consumer of its source: it takes messages in order and under locks. So a crash between two commits does
not lose or duplicate messages, a chain of entities is passed hop by hop, and messages that were active before
forwarding was set are forwarded too. A message that cannot be forwarded is moved to the source's transfer dead-letter
queue.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from peeklock.broker.annex import Annex
from peeklock.broker.bare_message import session_id_of
from peeklock.broker.errors import (
    BrokerError,
    ChangeRefused,
    EntityDisabled,
    EntityNotFound,
    MessageLockLost,
    MessageSizeExceeded,
    QuotaExceeded,
    ServerBusy,
    SessionIdMissing,
    StorageFailed,
    TooManyHops,
)
from peeklock.broker.incoming import Incoming
from peeklock.broker.retries import RETRY_MS
from peeklock.limits.broker import MAX_HOPS
from peeklock.store.base import StoredMessage

if TYPE_CHECKING:
    from peeklock.broker.entity import Entity
    from peeklock.broker.locks import Lock
    from peeklock.broker.machinery import Machinery
    from peeklock.broker.queue import Queue

log = logging.getLogger(__name__)

MAX_UNDER_WAY: Final = 1000
"""The most messages that one source forwards at a time. They are committed together, and the next ones only after that
commit: otherwise, if the store refuses some of them, later messages would overtake earlier ones."""

FAILED: Final = "TransferFailed"
REASONS: Final[dict[type[BrokerError], str]] = {
    TooManyHops: "MaxTransferHopCountExceeded",
    SessionIdMissing: "Session ID is null.",
    EntityNotFound: "MessagingEntityNotFound",
    EntityDisabled: "MessagingEntityDisabled",
    QuotaExceeded: "QuotaExceeded",
    MessageSizeExceeded: "MessageSizeExceeded",
}


class Forwarder:
    """Forwards the messages of one queue or sub-queue."""

    deletes = False

    def __init__(self, source: Queue, destination: str, unforwardable: Entity, machinery: Machinery) -> None:
        self.destination = destination
        self._source = source
        self._unforwardable = unforwardable
        self._machinery = machinery
        self._gathered: list[Lock] = []
        self._under_way = 0
        self._together = 0
        """The number of messages in the last commit."""
        self._one_by_one = 0
        """How many of the next messages are committed one by one, because the store refused one of them."""
        self._paused = False
        self._stopped = False

    def stop(self) -> None:
        """Stop forwarding. Messages whose commit is under way are still forwarded."""
        self._stopped = True
        self._source.leave(self)

    # --- as a consumer ---

    def ready(self) -> bool:
        most = 1 if self._one_by_one else MAX_UNDER_WAY
        return not self._under_way and not self._paused and not self._stopped and len(self._gathered) < most

    def deliver(self, message: StoredMessage, lock: Lock | None) -> None:
        assert lock is not None
        if not self._gathered:
            self._machinery.call_soon(self._forward_gathered)
        self._gathered.append(lock)

    def reserve(self, message: StoredMessage) -> None: ...

    def unreserve(self, message: StoredMessage) -> None: ...

    def on_starved(self) -> None: ...

    # --- forwarding ---

    def _forward_gathered(self) -> None:
        locks, self._gathered = self._gathered, []
        self._under_way = self._together = len(locks)
        self._machinery.journal.all_or_nothing(partial(self._stage, locks))

    def _stage(self, locks: list[Lock]) -> None:
        refused: dict[str, int] = {}
        for lock in locks:
            try:
                self._stage_one(lock, refused)
            except Exception as failure:
                if not isinstance(failure, BrokerError):
                    log.exception("a message of '%s' was not forwarded; the broker tries again", self._source.path)
                    failure = StorageFailed("The broker failed at the message.")
                self._done(lock, failure)
        for why, count in refused.items():
            fields = {"from": self._source.path, "to": self.destination, "messages": count, "reason": why}
            log.warning("messages could not be forwarded", extra={"fields": fields})

    def _stage_one(self, lock: Lock, refused: dict[str, int]) -> None:
        """Stage the forwarding of a message or, if that is refused, its move to the transfer dead-letter queue.

        Raise BrokerError if the message has to stay in the source for now.
        """
        if self._source.is_deleting or self._paused:
            raise MessageLockLost
        self._source.settlements.check_held(lock)
        done = partial(self._done, lock)
        try:
            target, admitted = self._admitted(lock.message)
            is_loop = target is self._source or target.dead_letters is self._source
            target.stage_sends(
                self._machinery.journal.moves, [admitted], lambda error: None, checks_duplicates=not is_loop
            )
        except ServerBusy:
            raise
        except BrokerError as failure:
            reason = next((REASONS[kind] for kind in type(failure).__mro__ if kind in REASONS), FAILED)
            refused[str(failure)] = refused.get(str(failure), 0) + 1
            self._source.settlements.move_aside(lock, reason, str(failure), self._unforwardable, done)
        except Exception as failure:
            # The broker has a fault that this message triggers: later messages must not wait for it forever.
            log.error("a message of '%s' could not be forwarded", self._source.path, exc_info=failure)
            why = f"The broker failed at the message ({type(failure).__name__})."
            self._source.settlements.move_aside(lock, FAILED, why, self._unforwardable, done)
        else:
            self._source.settlements.complete(lock, done)

    def _admitted(self, message: StoredMessage) -> tuple[Entity, StoredMessage]:
        """Return the destination, and the message as it is stored there. Raise BrokerError to refuse the message."""
        annex = Annex.decode(message.annex)
        if annex.hops >= MAX_HOPS:
            raise TooManyHops(f"The message was forwarded {MAX_HOPS} times, which is the limit.")
        target = self._machinery.find(self.destination)
        limit = target.definition.max_message_size_in_kilobytes
        if limit is not None and message.size > limit * 1024:
            raise MessageSizeExceeded(f"The message is larger than {limit} KB, the limit of '{target.path}'.")
        first = message.sequence_number if annex.enqueued_number is None else annex.enqueued_number
        annex = annex._replace(hops=annex.hops + 1, enqueued_number=first)
        ttl = None if message.expires_at is None else max(0, message.expires_at - self._machinery.agenda.now())
        session_id = session_id_of(message.payload) if target.reads_session_ids else None
        admitted = target.admit([Incoming(message.payload, annex.encode(), ttl, session_id, None)])[0]
        admitted.body = message.body
        return target, admitted

    def _done(self, lock: Lock, error: BrokerError | None) -> None:
        if isinstance(error, ChangeRefused):
            self._on_refused(lock, error)
            return
        if error is None:
            self._one_by_one = max(0, self._one_by_one - 1)
        else:
            if not self._paused:
                self._paused = True
                self._machinery.agenda.after(RETRY_MS, self._resume)
            self._source.settlements.release(lock)
        self._on_finished()

    def _on_refused(self, lock: Lock, error: ChangeRefused) -> None:
        """The store refused messages that were committed together: forward them one by one to find the refused one."""
        if self._together > 1:
            self._one_by_one = self._together
            self._source.settlements.release(lock)
        elif self._together == 1:
            self._together = 0
            try:
                done = partial(self._done, lock)
                self._source.settlements.move_aside(lock, FAILED, str(error), self._unforwardable, done)
            except BrokerError as failure:
                self._done(lock, failure)
            return
        else:
            # The store refused the move too. The message stays locked until its lock expires, and others pass it.
            self._one_by_one = max(0, self._one_by_one - 1)
        self._on_finished()

    def _on_finished(self) -> None:
        """A message was forwarded or has failed. After the last one, take the next messages."""
        self._under_way -= 1
        if not self._under_way and not self._stopped:
            self._source.want(self)

    def _resume(self) -> None:
        self._paused = False
        if not self._stopped:
            self._source.want(self)
