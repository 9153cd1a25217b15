"""Group commit: all changes of one turn of the loop are stored in one commit, and each waiter gets its outcome.

Changes are staged on three lanes, because they fail separately. On a full disk sends fail first, then moves of
messages; settlements, which free space, are tried again without them. If the store works but refuses a commit for
another reason, one change is the cause: each change is then committed alone, and only the refused one fails.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from peeklock.broker.errors import BrokerError, ChangeRefused, StorageFailed, StorageFull
from peeklock.store.base import Changes, Store, StoreError, StoreFull

log = logging.getLogger(__name__)

Outcome = Callable[[Any, BrokerError | None], None]
"""Called once after the commit, with the argument it was staged with, and with the error if the commit failed."""

COMMITS_IN_FLIGHT = 2
"""One commit is being synced while the next one is ready to follow. More would only make each of them smaller."""

MANY_MESSAGES = 100
"""With this many messages staged, `commit_if_many` commits at once; fewer wait for other messages of the same turn."""


Ends = tuple[int, int, int, int, int, int, int, int, int]
"""The lengths of the lists of a lane's changes when a waiter was added, in the order of `_part`."""


class Lane:
    """Staged changes, and the outcomes to call after their commit."""

    __slots__ = ("_wake", "changes", "kept_together", "waiting")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        """Schedules the commit of the lane for the end of this turn."""
        self.changes = Changes()
        self.waiting: list[tuple[Outcome, Any, Ends]] = []
        self.kept_together: dict[int, Changes] = {}
        """By the index of a waiter: its changes, if they must not be committed separately."""

    def then(self, outcome: Outcome, argument: Any) -> None:
        """Commit the changes staged since the last call, and call `outcome` when the commit is done or has failed."""
        changes = self.changes
        ends = (
            len(changes.appends),
            len(changes.removals),
            len(changes.updates),
            len(changes.rewrites),
            len(changes.seen),
            len(changes.session_states),
            len(changes.forgotten),
            len(changes.entities),
            len(changes.dropped_entities),
        )
        self.waiting.append((outcome, argument, ends))
        self._wake()

    def finish(self, error: BrokerError | None) -> None:
        """Call the outcomes of all waiters."""
        for outcome, argument, _ in self.waiting:
            _call(outcome, argument, error)

    def parts(self) -> list[Changes]:
        """Split the changes into one commit for each waiter."""
        found: list[Changes] = []
        begins = _NOTHING
        for index, (_, _, ends) in enumerate(self.waiting):
            whole = self.kept_together.get(index)
            found.append(_part(self.changes, begins, ends) if whole is None else whole)
            begins = ends
        return found


_NOTHING: Ends = (0, 0, 0, 0, 0, 0, 0, 0, 0)


class Journal:
    """The three lanes and their commits.

    Stage changes on a lane, then call `Lane.then`, which also starts the commit.
    """

    def __init__(self, store: Store, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.sends = Lane(self._wake)
        """Messages from clients."""
        self.moves = Lane(self._wake)
        """Changes that both use and free space: dead letters, scheduled messages that are due, transactions."""
        self.rest = Lane(self._wake)
        """Settlements and all other changes that use no space."""
        self.failure: StoreError | None = None
        """The last failure of the store; None if the store accepts messages, as far as is known."""
        self.on_failed: Callable[[], None] = lambda: None
        """Called after each failure of the store."""
        self.make_probe: Callable[[], Changes] = Changes
        """Makes the changes that are committed after a refusal, to test whether the store works."""
        self.refusal: BrokerError | None = None
        """The error for senders if messages are refused although the store works, as with little free disk space. None
        if they are accepted."""
        self.unsaved_bytes = 0
        """About how many bytes of messages from all connections are not durable yet."""
        self._store = store
        self._call_soon = call_soon
        self._in_flight = 0
        self._scheduled = False
        self._last_commit = 0
        """The number of the last commit of staged changes. If it is tried again without a lane, it keeps its number."""
        self._unfinished: set[int] = set()
        """The numbers of commits that are under way."""
        self._early: deque[Callable[[], None]] = deque()
        """Answers of the store that arrived while an older commit is tried again. They are handled after that commit:
        otherwise later messages of a sender would become active before earlier ones."""
        self._barriers: deque[tuple[int, Callable[[], None]]] = deque()
        """Actions to call when all commits up to a number are finished."""

    @property
    def idle(self) -> bool:
        """Whether nothing is staged and no commit is under way."""
        return not self._in_flight and not self._is_staged

    @property
    def _is_staged(self) -> bool:
        return bool(self.sends.waiting or self.moves.waiting or self.rest.waiting)

    def check_growth(self) -> None:
        """Raise BrokerError if the namespace accepts no messages from clients, for example because the disk is full."""
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)  # the same object is raised often, and its traceback would grow

    def after_commit(self, action: Callable[[], None]) -> None:
        """Call `action` when all settlements that are staged by now are in the store, or have failed."""
        self.rest.then(_act, action)

    def charge(self, size: int) -> None:
        """Count bytes of messages from a sender that are not durable yet."""
        self.unsaved_bytes += size

    def discharge(self, size: int) -> None:
        """Stop counting bytes: they are durable, or were refused."""
        self.unsaved_bytes -= size

    def _wake(self) -> None:
        """Schedule a commit for the end of this turn. If too many are under way, the end of one schedules the next."""
        if not self._scheduled and self._in_flight < COMMITS_IN_FLIGHT:
            self._scheduled = True
            self._call_soon(self.flush)

    def commit_if_many(self) -> None:
        """Commit now if many messages are staged and few commits are under way.

        Called after a connection has handled the bytes that it read. The rest of the turn may read from many
        connections, and the store writes meanwhile.
        """
        if self._in_flight < COMMITS_IN_FLIGHT:
            staged = len(self.sends.changes.appends) + len(self.rest.changes.removals)
            if staged >= MANY_MESSAGES:
                self._commit_staged()

    def all_or_nothing(self, stage: Callable[[], None]) -> None:
        """Commit all changes that `stage` puts on `moves` and `rest` as one. If it raises, none is committed."""
        moves, rest, together = self.moves, self.rest, Lane(_do_nothing)
        self.moves = self.rest = together
        try:
            stage()
        except BaseException as failure:
            undone = failure if isinstance(failure, BrokerError) else StorageFailed("Nothing was changed.")
            together.finish(undone)
            raise
        finally:
            self.moves, self.rest = moves, rest
        if together.waiting or together.changes:
            lane = moves if together.changes.appends or together.changes.entities else rest
            _extend(lane.changes, together.changes)
            lane.kept_together[len(lane.waiting)] = together.changes
            lane.then(_finish, together)

    def when_settled(self, action: Callable[[], None]) -> None:
        """Call `action` when all changes staged or under way by now are in the store, or have finally failed."""
        self._barriers.append((self._last_commit + self._is_staged, action))
        self._pass_barriers()

    def _pass_barriers(self) -> None:
        if not self._barriers:
            return
        oldest = min(self._unfinished, default=self._last_commit + 1)
        while self._barriers and self._barriers[0][0] < oldest:
            self._barriers.popleft()[1]()

    def flush(self) -> None:
        """Commit all staged changes, unless enough commits are under way. Then the end of one of them commits."""
        self._scheduled = False
        if self._in_flight < COMMITS_IN_FLIGHT:
            self._commit_staged()

    def _commit_staged(self) -> None:
        lanes = [lane for lane in (self.sends, self.moves, self.rest) if lane.waiting]
        if not lanes:
            return
        proves = bool(self.sends.waiting) or not isinstance(self.failure, StoreFull)
        self.sends, self.moves, self.rest = Lane(self._wake), Lane(self._wake), Lane(self._wake)
        self._in_flight += 1
        self._last_commit += 1
        self._unfinished.add(self._last_commit)
        self._commit(lanes, proves, self._last_commit)

    def _commit(self, lanes: list[Lane], proves: bool, number: int) -> None:
        """Commit the lanes as one. If that fails, find out which changes the store refuses."""
        # Methods, not closures: compiled closures that refer to each other are a reference cycle, which keeps all
        # waiters in memory until the garbage collector runs.
        self._store.commit(_merged(lanes), partial(self._answered, lanes, proves, number))

    def _answered(self, lanes: list[Lane], proves: bool, number: int, error: StoreError | None) -> None:
        if number > min(self._unfinished):
            self._early.append(partial(self._answered, lanes, proves, number, error))
        elif error is None or self._is_expected(error):
            self._committed(lanes, error, proves, number)
        else:
            self._store.commit(self.make_probe(), partial(self._probed, lanes, proves, number, error))

    def _probed(
        self, lanes: list[Lane], proves: bool, number: int, first: StoreError, error: StoreError | None
    ) -> None:
        if error is None or isinstance(error, StoreFull):
            self._commit_each(lanes, number)
        else:
            self._committed(lanes, first, proves, number)

    def _is_expected(self, error: StoreError) -> bool:
        """Return whether the store itself is the cause of the error: it is full, or it had failed before."""
        return isinstance(error, StoreFull) or not (self.failure is None or isinstance(self.failure, StoreFull))

    def _committed(self, lanes: list[Lane], error: StoreError | None, proves: bool, number: int) -> None:
        """The store committed the lanes, or failed. After a failure, fail the first lane and try the others again."""
        if error is not None and len(lanes) > 1:
            lanes[0].finish(self._failed(error))
            self._commit(lanes[1:], False, number)
        else:
            self._unfinished.discard(number)
            self._done(lanes, error, proves=proves)

    def _commit_each(self, lanes: list[Lane], number: int) -> None:
        """Commit the changes of each waiter alone. The store works, so only the changes that it refuses fail."""
        parts = [(waiter, part) for lane in lanes for waiter, part in zip(lane.waiting, lane.parts(), strict=True)]
        left = len(parts)

        def done(outcome: Outcome, argument: Any, error: StoreError | None) -> None:
            nonlocal left
            left -= 1
            failure: BrokerError | None = None
            if isinstance(error, StoreFull):
                failure = self._failed(error)
            elif error is not None:
                log.error("the store refused a change: %s", error)
                failure = ChangeRefused("The broker's store refused this change; nothing was changed.")
            _call(outcome, argument, failure)
            if not left:
                self._unfinished.discard(number)
                self._done([], None, proves=False)

        for (outcome, argument, _), part in parts:
            self._store.commit(part, partial(done, outcome, argument))

    def probe(self, changes: Changes) -> None:
        """Commit changes without a waiter, to test whether the store accepts messages again."""
        self._in_flight += 1
        self._store.commit(changes, lambda error: self._done([], error, proves=True))

    def _done(self, lanes: list[Lane], error: StoreError | None, *, proves: bool) -> None:
        """Finish a commit, and start the next if changes are staged.

        `proves`: success means that the store accepts messages. A commit of settlements frees space, so it does not
        prove that.
        """
        self._in_flight -= 1
        failure = None
        if error is not None:
            failure = self._failed(error)
        elif self.failure is not None and proves:
            log.warning("the store accepts messages again")
            self.failure = None
        for lane in lanes:
            lane.finish(failure)
        self._pass_barriers()
        if self._early:
            self._early.popleft()()
        if self._is_staged:
            self._wake()

    def _failed(self, error: StoreError) -> BrokerError:
        if self.failure is None:
            log.error("the store refused changes: %s", error)
        self.failure = error
        self.on_failed()
        if isinstance(error, StoreFull):
            return StorageFull("The broker has no room left to store messages.")
        return StorageFailed("The broker could not write to its store; nothing was changed.")


def _call(outcome: Outcome, argument: Any, error: BrokerError | None) -> None:
    try:
        outcome(argument, error)
    except Exception:
        log.exception("a callback after a commit failed")


def _act(action: Callable[[], None], error: BrokerError | None) -> None:
    action()


def _do_nothing() -> None:
    """Schedule no commit: the changes of the lane of `all_or_nothing` are committed with another lane."""


def _finish(lane: Lane, error: BrokerError | None) -> None:
    lane.finish(error)


def _part(changes: Changes, begins: Ends, ends: Ends) -> Changes:
    """Return the changes between two positions. Each part has all advances, because they only skip sequence numbers."""
    return Changes(
        advances=changes.advances,
        appends=changes.appends[begins[0] : ends[0]],
        removals=changes.removals[begins[1] : ends[1]],
        updates=changes.updates[begins[2] : ends[2]],
        rewrites=changes.rewrites[begins[3] : ends[3]],
        seen=changes.seen[begins[4] : ends[4]],
        session_states=changes.session_states[begins[5] : ends[5]],
        forgotten=changes.forgotten[begins[6] : ends[6]],
        entities=dict(list(changes.entities.items())[begins[7] : ends[7]]),
        dropped_entities=changes.dropped_entities[begins[8] : ends[8]],
    )


def _extend(changes: Changes, more: Changes) -> None:
    changes.entities |= more.entities
    changes.appends += more.appends
    changes.updates += more.updates
    changes.rewrites += more.rewrites
    changes.removals += more.removals
    changes.run_updates += more.run_updates
    changes.run_removals += more.run_removals
    changes.claims |= more.claims
    changes.session_states += more.session_states
    changes.seen += more.seen
    changes.forgotten += more.forgotten
    for entity, number in more.advances.items():
        changes.advances[entity] = max(number, changes.advances.get(entity, 0))
    changes.dropped_entities += more.dropped_entities


def _merged(lanes: list[Lane]) -> Changes:
    """Return the changes of all lanes as one commit."""
    if len(lanes) == 1:
        return lanes[0].changes
    merged = Changes()
    for lane in lanes:
        _extend(merged, lane.changes)
    return merged
