"""A node of a replicated broker: it carries out what `roles` decides.

The node binds its ports once. While it is not active, the relay accepts their connections; while it is active, the
broker does. The lease thread reports to the event loop, where everything here runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import psycopg

from peeklock.broker.namespace import CallSoon
from peeklock.server.admission import Admission
from peeklock.server.broker import Broker, Options, StartError
from peeklock.server.logs import event
from peeklock.store.base import Store, StoreError
from peeklock.store.postgres.checks import check_engine
from peeklock.store.postgres.engine import Engine, connect_or_refuse
from peeklock.store.postgres.failures import CommitsLost, Fenced
from peeklock.store.postgres.lease import Lease
from peeklock.store.postgres.schema import create
from peeklock.store.postgres.store import PostgresStore

from .lease_thread import (
    Disconnected,
    LeaseLost,
    LeaseThread,
    NotTaken,
    Outcome,
    PollFailed,
    RenewalFailed,
    Renewed,
    Seen,
    Taken,
    lease_time,
)
from .relay import Relay, Target
from .roles import EXIT_DONE, EXIT_FENCED, POLL_SECONDS, Action, Input, Role, Roles
from .settings import NodeSettings, parse_address

log = logging.getLogger(__name__)

TICK_SECONDS: Final = 0.1
"""Between checks whether the lease is overdue."""
RELEASE_SECONDS: Final = 5.0
"""Time for releasing the lease at the end."""
SUSPENDED: Final = "The broker has lost its database, and closes its connections until it is reached again."


class Node:
    """A node in this process and event loop. It is run once."""

    def __init__(
        self,
        options: Options,
        settings: NodeSettings,
        on_active: Callable[[Broker], Awaitable[None]] | None = None,
    ) -> None:
        """`on_active` is called when the broker has started."""
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self._engine = make_engine(settings)
        self.broker = Broker(replace(options, data=None, make_store=self._make_store))
        self._on_active = on_active
        self._roles = Roles(settings.owner, settings.lease_seconds)
        self._epoch = 0
        self._address = ""
        self._is_serving = False
        """Whether the broker has started."""
        self._failure: StartError | None = None
        """Why the broker could not be started."""
        self._thread_ended = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        """The next request to the lease thread."""
        self._ticker: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting: asyncio.Task[None] | None = None
        self._active: tuple[int, str | None] | None = None
        """Epoch and owner of the lease when this node last logged that it is a standby."""
        self._problem: str | None = None
        """The last problem with the lease that was logged."""

    @property
    def role(self) -> Role:
        return self._roles.role

    def bind(self) -> None:
        """Bind the ports. StartError if that fails."""
        self.broker.bind()
        self._address = self._settings.address(self.broker.options.host, self.broker.port)

    async def run(self) -> int:
        """Run until the node is stopped or fenced, and return the exit status. StartError if it cannot start.

        The ports must be bound.
        """
        # Copies: the broker's own listener and the relay use different descriptors of the same socket.
        sockets = [sock.dup() for sock in self.broker.sockets]
        options = self.broker.options
        self._relay = Relay(sockets, Admission(options.limits, options.clock), options.limits.hold_seconds)
        self._thread = LeaseThread(
            self._engine, self._settings.owner, self._address, self._report, self._on_thread_ended
        )
        self._thread.start()
        try:
            self._relay.open()
            self._tick()
            self._thread.poll()
            status = await self._exit
        finally:
            self._cancel_timers()
            self._relay.close()
            for sock in sockets:
                sock.close()
        await self._end(status)
        if self._failure is not None:
            raise self._failure
        return status

    def request_stop(self) -> None:
        """Stop in good order, and let another node take over."""
        self._handle(Input.STOP)

    # --- inputs ---

    def _report(self, outcome: Outcome) -> None:
        """Called by the lease thread."""
        try:
            self._loop.call_soon_threadsafe(self._on_outcome, outcome)
        except RuntimeError:  # the event loop is closed
            log.debug("the node has ended before %s", outcome)

    def _on_thread_ended(self) -> None:
        with suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._thread_ended.set)

    def _on_outcome(self, outcome: Outcome) -> None:
        if self._exit.done():
            return
        match outcome:
            case Seen(lease, at):
                self._note_success("read")
                self._relay.set_target(lease.epoch, self._target(lease))
                self._act(self._roles.lease_seen(lease, at))
                self._note_standby(lease)
            case PollFailed(reason):
                self._note_problem("read", reason)
                self._act(self._roles.poll_failed())
            case Taken(epoch, began_at):
                self._epoch = epoch
                self._relay.set_target(epoch, None)
                event(log, logging.INFO, "lease taken over", epoch=epoch, node=self._settings.owner)
                self._act(self._roles.taken(began_at))
            case NotTaken(reason):
                self._note_problem("taken over", reason)
                self._act(self._roles.not_taken())
            case Renewed(began_at):
                self._note_success("renewed")
                self._act(self._roles.renewed(began_at))
            case RenewalFailed(reason):
                self._note_problem("renewed", reason)
                self._handle(Input.RENEWAL_FAILED)
            case LeaseLost():
                log.error("another node has the lease: epoch %d of this node is over", self._epoch)
                self._handle(Input.LEASE_LOST)
            case Disconnected():
                self._later(0.0, self._thread.renew)

    def _note_standby(self, lease: Lease) -> None:
        """Log that this node is a standby, once for each active node."""
        if self.role is Role.STANDBY and (lease.epoch, lease.owner) != self._active:
            self._active = lease.epoch, lease.owner
            event(log, logging.INFO, "node standby", epoch=lease.epoch, active=lease.owner, address=lease.address)

    def _note_problem(self, what: str, reason: str) -> None:
        """Log a problem with the lease, once until it changes: it is tried again several times a second."""
        problem = f"the lease could not be {what}: {reason}"
        if problem != self._problem:
            self._problem = problem
            log.warning("%s", problem)

    def _note_success(self, what: str) -> None:
        if self._problem is not None and self._problem.startswith(f"the lease could not be {what}:"):
            self._problem = None
            log.info("the lease was %s again", what)

    def _on_fatal(self, error: StoreError) -> None:
        """Called with Fenced and CommitsLost; the store has logged the error."""
        self._handle(Input.STORE_FAILED)

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_SECONDS, self._tick)
        self._act(self._roles.tick(lease_time()))

    def _handle(self, what: Input) -> None:
        self._act(self._roles.handle(what))

    # --- actions ---

    def _act(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            match action:
                case Action.POLL:
                    self._later(POLL_SECONDS, self._thread.poll)
                case Action.TAKE:
                    seen = self._roles.seen
                    assert isinstance(seen, Lease)
                    self._thread.take(seen)
                case Action.START:
                    self._starting = self._spawn(self._start())
                case Action.RENEW:
                    self._later(self._roles.renewal_seconds, self._thread.renew)
                case Action.RENEW_SOON:
                    self._later(POLL_SECONDS, self._thread.renew)
                case Action.SUSPEND:
                    self._suspend()
                case Action.RESUME:
                    self._resume()
                case Action.STOP:
                    self._spawn(self._stop())
                case Action.EXIT | Action.EXIT_FENCED:
                    if not self._exit.done():
                        self._exit.set_result(EXIT_DONE if action is Action.EXIT else EXIT_FENCED)

    def _later(self, seconds: float, request: Callable[[], None]) -> None:
        """Make the next request to the lease thread. There is one at a time."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, request)

    async def _start(self) -> None:
        """Start the broker. It serves the held connections, and all further ones."""
        try:
            await self.broker.start()
        except StartError as error:
            if isinstance(error.__cause__, Fenced | CommitsLost):
                log.error("%s", error)
                self._handle(Input.STORE_FAILED)
            else:
                self._failure = error
                self._handle(Input.STOP)
            return
        self._is_serving = True
        if self.role is Role.ACTIVE:
            self._adopt_held()
        elif self.role is Role.SUSPENDED:
            self.broker.suspend(SUSPENDED)
        event(log, logging.INFO, "node active", epoch=self._epoch, address=self._address)
        if self._on_active is not None:
            await self._on_active(self.broker)

    def _suspend(self) -> None:
        event(log, logging.WARNING, "node suspended", epoch=self._epoch, lease_seconds=self._settings.lease_seconds)
        if self._is_serving:
            self.broker.suspend(SUSPENDED)
            self._relay.open()

    def _resume(self) -> None:
        event(log, logging.INFO, "node resumed", epoch=self._epoch)
        if self._is_serving:
            self.broker.resume()
            self._adopt_held()

    def _adopt_held(self) -> None:
        for connection in self._relay.hand_over():
            self.broker.adopt(connection)

    async def _stop(self) -> None:
        """Stop the broker in good order."""
        self._relay.close()
        if self._starting is not None:
            await asyncio.wait([self._starting])
        if self._is_serving and not self._exit.done():
            self._is_serving = False
            await self.broker.stop()
        if not self._exit.done():
            self._handle(Input.STOPPED)

    async def _end(self, status: int) -> None:
        """Stop what still runs, and release the lease at an orderly end."""
        if self._is_serving:
            self._is_serving = False
            await self.broker.stop(drain=False)
        for sock in self.broker.sockets:  # those of a broker that was never started
            sock.close()
        self._thread.finish(release=status == EXIT_DONE)
        try:
            await asyncio.wait_for(self._thread_ended.wait(), RELEASE_SECONDS)
        except TimeoutError:
            self._thread.interrupt()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if not task.cancelled() and (failure := task.exception()) is not None and not self._exit.done():
                self._exit.set_exception(failure)

        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(ended)
        return task

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._ticker):
            if timer is not None:
                timer.cancel()

    def _target(self, lease: Lease) -> Target | None:
        """Return where the active node accepts connections; None if there is none, or if it would be this node."""
        if lease.owner is None or lease.address is None or lease.address == self._address:
            return None
        try:
            return parse_address(lease.address)
        except StartError:
            log.error("the active node has an invalid address: %s", lease.address)
            return None

    def _make_store(self, call: CallSoon) -> Store:
        return PostgresStore(self._engine, self._epoch, call, self._on_fatal)


def make_engine(settings: NodeSettings) -> Engine:
    """Return the database. StartError for an invalid setting."""
    try:
        return Engine(url=settings.url, schema=settings.schema, replication=settings.replication)
    except (ValueError, psycopg.Error) as error:
        raise StartError(str(error)) from error


def prepare(settings: NodeSettings) -> bool:
    """Check the database, and create the tables if they do not exist. Return whether they were created. StartError.

    Nodes that do this at the same time take turns.
    """
    engine = make_engine(settings)
    try:
        for warning in check_engine(engine):
            log.warning("%s", warning)
        with connect_or_refuse(engine, "init") as connection:
            return create(connection, engine)
    except (StoreError, psycopg.Error) as error:
        raise StartError(" ".join(str(error).split())) from error
