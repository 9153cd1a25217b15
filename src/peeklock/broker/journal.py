"""The way to the store: changes of one turn gathered into one commit, and who waits for it (group commit).

They are gathered on lanes, because they fail apart: on a full disk sends are refused first, then what moves messages,
while settlements, which make room, are tried again without them. What the store refuses for another reason while it
works is the fault of one change: each is then committed alone, and only the guilty one fails.
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
"""Called with the argument it was staged with, after the commit: without an error, or because it failed."""

COMMITS_IN_FLIGHT = 2
"""One that syncs and one that is ready to follow; more would only make each of them smaller."""

HURRY_MESSAGES = 100
"""So many are worth a commit of their own; fewer wait for what others send in the same turn."""


Ends = tuple[int, int, int, int, int, int, int, int, int]
"""How many entries the lists of a lane's changes had when somebody began to wait, in the order of `_part`."""


class Lane:
    """What is staged and who waits for it."""

    __slots__ = ("_wake", "changes", "waiting", "wholes")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        """Has the lane committed at the end of this turn."""
        self.changes = Changes()
        self.waiting: list[tuple[Outcome, Any, Ends]] = []
        self.wholes: dict[int, Changes] = {}
        """Changes that stay together whatever happens, by the index of who waits for them."""

    def then(self, outcome: Outcome, argument: Any) -> None:
        """Commit what was staged since the last call, and call the outcome when that is done or has failed."""
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
        for outcome, argument, _ in self.waiting:
            _tell(outcome, argument, error)

    def parts(self) -> list[Changes]:
        """The changes of each who waits, alone."""
        found: list[Changes] = []
        begins = _NOTHING
        for index, (_, _, ends) in enumerate(self.waiting):
            whole = self.wholes.get(index)
            found.append(_part(self.changes, begins, ends) if whole is None else whole)
            begins = ends
        return found


_NOTHING: Ends = (0, 0, 0, 0, 0, 0, 0, 0, 0)


class Journal:
    """Stage changes on a lane and say what is to follow them (`Lane.then`): they are committed by themselves."""

    def __init__(self, store: Store, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.sends = Lane(self._wake)
        """Messages from clients."""
        self.moves = Lane(self._wake)
        """What takes room as well as it gives some: dead letters, messages that are due, transactions."""
        self.rest = Lane(self._wake)
        """Settlements and all else that takes no room."""
        self.failure: StoreError | None = None
        """Why the store does not take messages; None when it does, as far as we know."""
        self.on_failed: Callable[[], None] = lambda: None
        """Called whenever the store failed."""
        self.make_probe: Callable[[], Changes] = Changes
        """What the store is asked to keep when it has refused something, to learn whether it works."""
        self.refusal: BrokerError | None = None
        """Why nothing that makes the store grow is taken, although it works; None when it is."""
        self.unsaved_bytes = 0
        """What senders gave us that is not durable yet, about, of all connections together."""
        self._store = store
        self._call_soon = call_soon
        self._in_flight = 0
        self._scheduled = False
        self._last_commit = 0
        """Commits of staged changes are counted; one that is tried again without a lane keeps its number."""
        self._unfinished: set[int] = set()
        """The numbers of those that are on their way."""
        self._early: deque[Callable[[], None]] = deque()
        """Answers of the store to commits that came while an older one is tried again: they wait for it, or messages
        of a sender would overtake those before them."""
        self._barriers: deque[tuple[int, Callable[[], None]]] = deque()
        """What to call when all commits up to that number are finished."""

    @property
    def idle(self) -> bool:
        """Nothing is staged and nothing on its way."""
        return not self._in_flight and not self._is_staged

    @property
    def _is_staged(self) -> bool:
        return bool(self.sends.waiting or self.moves.waiting or self.rest.waiting)

    def check_growth(self) -> None:
        """Raise why a message from a client is not taken, whichever entity it is for."""
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)  # raised often: each time would add to the trace

    def after_commit(self, action: Callable[[], None]) -> None:
        """Call `action` when all that is staged by now for settlements is in the store, or has failed."""
        self.rest.then(_act, action)

    def charge(self, size: int) -> None:
        """So many bytes came from a sender and are not durable yet."""
        self.unsaved_bytes += size

    def discharge(self, size: int) -> None:
        """They are durable, or were refused."""
        self.unsaved_bytes -= size

    def _wake(self) -> None:
        """Something was staged: commit at the end of this turn, or when a commit under way is done."""
        if not self._scheduled and self._in_flight < COMMITS_IN_FLIGHT:
            self._scheduled = True
            self._call_soon(self.flush)

    def hurry(self) -> None:
        """A connection has handed over what it read. If that is much and the store has too little to do, do not wait
        for the end of the turn, which may read much more: the store works while we read."""
        if self._in_flight < COMMITS_IN_FLIGHT:
            staged = len(self.sends.changes.appends) + len(self.rest.changes.removals)
            if staged >= HURRY_MESSAGES:
                self._commit_staged()

    def all_or_nothing(self, stage: Callable[[], None]) -> None:
        """What `stage` puts on `moves` and `rest` stays together. If it raises, what it had staged fails at once."""
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
            lane.wholes[len(lane.waiting)] = together.changes
            lane.then(_finish, together)

    def when_settled(self, action: Callable[[], None]) -> None:
        """Call `action` when everything that is staged or on its way by now is in the store or has failed for good."""
        self._barriers.append((self._last_commit + self._is_staged, action))
        self._pass_barriers()

    def _pass_barriers(self) -> None:
        if not self._barriers:
            return
        oldest = min(self._unfinished, default=self._last_commit + 1)
        while self._barriers and self._barriers[0][0] < oldest:
            self._barriers.popleft()[1]()

    def flush(self) -> None:
        """Commit what is staged, unless enough is on its way: then when one of those is done."""
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
        """Commit the lanes as one; find out what has failed if that fails."""
        # Methods and no closures: compiled, closures that name each other are a cycle, which keeps all that waited
        # until the garbage collector comes.
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
        """Whether the refusal is the store's own, as far as is known without trying."""
        return isinstance(error, StoreFull) or not (self.failure is None or isinstance(self.failure, StoreFull))

    def _committed(self, lanes: list[Lane], error: StoreError | None, proves: bool, number: int) -> None:
        """The store took them or failed. Without the first lane the others may fit, until they are all told."""
        if error is not None and len(lanes) > 1:
            lanes[0].finish(self._failed(error))
            self._commit(lanes[1:], False, number)
        else:
            self._unfinished.discard(number)
            self._done(lanes, error, proves=proves)

    def _commit_each(self, lanes: list[Lane], number: int) -> None:
        """The store works and refused these together: one by one, in order, only the guilty ones fail."""
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
                failure = ChangeRefused("The broker's store does not take this change; nothing was changed.")
            _tell(outcome, argument, failure)
            if not left:
                self._unfinished.discard(number)
                self._done([], None, proves=False)

        for (outcome, argument, _), part in parts:
            self._store.commit(part, partial(done, outcome, argument))

    def probe(self, changes: Changes) -> None:
        """Commit changes that nobody waits for, to learn whether the store takes messages again."""
        self._in_flight += 1
        self._store.commit(changes, lambda error: self._done([], error, proves=True))

    def _done(self, lanes: list[Lane], error: StoreError | None, *, proves: bool) -> None:
        """`proves`: that it worked means that the store takes messages. A settlement makes room, where one needs it."""
        self._in_flight -= 1
        failure = None
        if error is not None:
            failure = self._failed(error)
        elif self.failure is not None and proves:
            log.warning("the store takes messages again")
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


def _tell(outcome: Outcome, argument: Any, error: BrokerError | None) -> None:
    try:
        outcome(argument, error)
    except Exception:
        log.exception("what followed a commit failed")


def _act(action: Callable[[], None], error: BrokerError | None) -> None:
    action()


def _do_nothing() -> None:
    """What is staged to stay together is committed with the lane it goes to."""


def _finish(lane: Lane, error: BrokerError | None) -> None:
    lane.finish(error)


def _part(changes: Changes, begins: Ends, ends: Ends) -> Changes:
    """What was staged in between. All parts have all the advances, which are no more than numbers to leave out."""
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
    """One commit for all of them."""
    if len(lanes) == 1:
        return lanes[0].changes
    merged = Changes()
    for lane in lanes:
        _extend(merged, lane.changes)
    return merged
