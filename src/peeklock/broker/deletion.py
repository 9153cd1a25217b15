"""Deletes many active messages from the head of a queue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from peeklock.broker.errors import BrokerError, EntityNotFound
from peeklock.broker.reading import unreadable
from peeklock.broker.retries import BUSY_RETRY_MS
from peeklock.store.base import ACTIVE, StoredMessage, StoreError

if TYPE_CHECKING:
    from peeklock.broker.machinery import Machinery
    from peeklock.broker.message_queue import MessageQueue

Deleted = Callable[[int | BrokerError], None]


class Deletion:
    """Deletes messages of one queue."""

    def __init__(self, queue: MessageQueue, machinery: Machinery) -> None:
        self._queue = queue
        self._machinery = machinery

    def delete_before(self, enqueued_before: int, limit: int, session_id: str | None, done: Deleted) -> None:
        """Delete active messages that are not locked, from the head of the queue. `done` gets how many were deleted."""
        if not self._queue.begin_sweep():
            again = partial(self.delete_before, enqueued_before, limit, session_id, done)
            self._machinery.agenda.after(BUSY_RETRY_MS, again)
            return
        self._delete_after(0, enqueued_before, limit, session_id, done)

    def _delete_after(
        self, after: int, enqueued_before: int, limit: int, session_id: str | None, done: Deleted, deleted: int = 0
    ) -> None:
        """Delete the messages of one page, starting at the next unlocked message; then continue with the next page.

        A page may have fewer messages to delete than `limit`, because some are locked, or because they are large.
        """
        queue, machinery = self._queue, self._machinery

        def finish(outcome: int | BrokerError) -> None:
            queue.end_sweep()
            done(outcome)

        def found(messages: list[StoredMessage] | StoreError, changed: set[int]) -> None:
            if isinstance(messages, StoreError):
                finish(deleted or unreadable(messages))  # success if earlier pages were deleted
                return
            if queue.is_deleting:
                finish(deleted or EntityNotFound(queue.path))
                return
            leaving = [message for message in messages if self._is_deletable(message, enqueued_before, changed)]
            if not leaving:  # no commit is needed; a turn of its own, because a store may answer during `read`
                machinery.call_soon(lambda: removed((messages, leaving), None))
                return
            lane = machinery.journal.rest
            for message in leaving:
                queue.leaving.add(message.sequence_number)
                queue.windows.drop(message)
                lane.changes.removals.append((queue.id, message))
            lane.then(removed, (messages, leaving))

        def removed(argument: tuple[list[StoredMessage], list[StoredMessage]], error: BrokerError | None) -> None:
            messages, leaving = argument
            for message in leaving:
                queue.leaving.discard(message.sequence_number)
                if error is None:
                    queue.on_removed(message)
                else:
                    queue.on_returned(message, was_refused=True)
            count = deleted + len(leaving)
            if error is not None:
                finish(deleted or error)
            elif not messages or count >= limit or messages[-1].enqueued_at >= enqueued_before:
                finish(count)
            else:
                last = messages[-1].sequence_number
                self._delete_after(last, enqueued_before, limit, session_id, done, count)

        after = queue.windows.next_after(after, session_id) - 1
        wanted = queue.page_after(after, limit - deleted, session_id, state=ACTIVE)
        queue.watches.read(partial(machinery.store.read, wanted), found)

    def _is_deletable(self, message: StoredMessage, enqueued_before: int, changed: set[int]) -> bool:
        number = message.sequence_number
        return message.enqueued_at < enqueued_before and not self._queue.is_taken(number) and number not in changed
