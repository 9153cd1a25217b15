"""The metrics for Prometheus: message counts of every entity, and counters of the store.

This module writes the text format (0.0.4) itself, because `prometheus_client` needs 17 times the CPU for it and renders
a page in one call (docs/dependencies.md has the figures). Commits are counted once each, around the store; the other
values are read when a page is requested.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from aiohttp import web

from peeklock import __version__
from peeklock.broker.administration import Runtime
from peeklock.broker.catalogue import AnyEntity
from peeklock.broker.errors import BrokerError, Unauthorized
from peeklock.broker.namespace import Namespace
from peeklock.broker.watermark import Watermark
from peeklock.entities.authorization import Right
from peeklock.server.browsers import is_own_machine
from peeklock.server.http import TICKET, audit_denied, verify_token
from peeklock.server.loopback import is_loopback
from peeklock.store.base import Changes, Committed, Store, StoreError

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
COMMIT_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Seconds."""
ENTITIES_AT_ONCE: Final = 200
"""Entities written before the event loop gets a turn."""
STATES: Final = ("active", "deferred", "scheduled", "claimed", "dead_letter", "transfer_dead_letter", "damaged")

_MEMORY = Path("/proc/self/statm")


@dataclass(slots=True)
class Metrics:
    """Counters since the start."""

    started_at: float = field(default_factory=time.time)
    stored: int = 0
    stored_bytes: int = 0
    removed: int = 0
    removed_bytes: int = 0
    failed_commits: int = 0
    audit_failures: int = 0
    commit_seconds: float = 0.0
    commits_by_bucket: list[int] = field(default_factory=lambda: [0] * (len(COMMIT_BUCKETS) + 1))
    """By the first bucket whose bound is not exceeded; the last one is for longer commits."""

    def measured(self, store: Store) -> Store:
        """Wrap the store so that its commits are counted here."""
        return cast(Store, _MeasuredStore(store, self))

    def committed(self, changes: Changes, seconds: float, error: StoreError | None) -> None:
        self.commit_seconds += seconds
        self.commits_by_bucket[bisect_left(COMMIT_BUCKETS, seconds)] += 1
        if error is not None:
            self.failed_commits += 1
            return
        self.stored += len(changes.appends)
        self.stored_bytes += changes.appended_bytes
        self.removed += len(changes.removals)
        self.removed_bytes += changes.removed_bytes

    def lines(self) -> Iterator[str]:
        yield from _head("peeklock_build_info", "gauge", "The running version.")
        yield f'peeklock_build_info{{version="{escape_label(__version__)}"}} 1'
        yield from _gauge("process_start_time_seconds", "When the process started, in Unix time.", self.started_at)
        yield from _gauge("process_resident_memory_bytes", "Resident memory.", resident_memory())
        yield from _counter("process_cpu_seconds_total", "Processor time, user and system.", time.process_time())
        yield from _counter(
            "peeklock_messages_stored_total", "Messages written to entities, copies and moves included.", self.stored
        )
        yield from _counter("peeklock_message_bytes_stored_total", "Bytes of stored messages.", self.stored_bytes)
        yield from _counter(
            "peeklock_messages_removed_total",
            "Messages removed from entities: completed, expired or moved.",
            self.removed,
        )
        yield from _counter("peeklock_message_bytes_removed_total", "Bytes of removed messages.", self.removed_bytes)
        yield from _counter(
            "peeklock_commits_failed_total",
            "Commits that the store refused; nothing of them was stored.",
            self.failed_commits,
        )
        yield from _counter(
            "peeklock_audit_failures_total", "Lines of the audit log that could not be written.", self.audit_failures
        )
        yield from self._commit_seconds()

    def _commit_seconds(self) -> Iterator[str]:
        name = "peeklock_commit_seconds"
        yield from _head(name, "histogram", "Seconds until a commit was durable.")
        count = 0
        for bound, more in zip((*COMMIT_BUCKETS, "+Inf"), self.commits_by_bucket, strict=True):
            count += more
            yield f'{name}_bucket{{le="{bound}"}} {count}'
        yield f"{name}_sum {self.commit_seconds!r}"
        yield f"{name}_count {count}"


class MetricsPage:
    """The page `/metrics`, which Prometheus requests."""

    def __init__(
        self,
        metrics: Metrics,
        namespace: Namespace,
        count_connections: Callable[[], int],
        watermark: Watermark | None = None,
    ) -> None:
        self._metrics = metrics
        self._namespace = namespace
        self._count_connections = count_connections
        self._watermark = watermark

    async def answer(self, request: web.Request) -> web.Response:
        """Answer requests from this machine, and from other machines with a token of the namespace.

        A token is required because the page has the names of entities. A web page whose host name resolves to the
        broker's address makes its requests from this machine's browser, so without a token the `Host` header must name
        this machine too.
        """
        peer = request.transport.get_extra_info("peername") if request.transport is not None else None
        if not (peer and is_loopback(peer[0]) and is_own_machine(request.headers.get("Host"))):
            try:
                self._authorize(request)
            except BrokerError as failure:
                audit_denied(request, str(failure))
                return web.Response(status=401, text=f"{failure}\n")
        text = await self.text()
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE})

    async def text(self) -> str:
        lines = list(self._metrics.lines())
        lines += _gauge("peeklock_connections", "Open connections, of any protocol.", self._count_connections())
        if self._watermark is not None:
            lines += _disk(self._watermark)
        lines += await _entities(self._namespace)
        return "\n".join(lines) + "\n"

    def _authorize(self, request: web.Request) -> None:
        grant = verify_token(self._namespace, request.headers.get("Authorization", ""), request.path, request[TICKET])
        if grant.owner or Right.LISTEN not in grant.rights:
            raise Unauthorized(f"'{Right.LISTEN}' claim of the namespace is required.")


class _MeasuredStore:
    """A store whose commits are measured."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def commit(self, changes: Changes, done: Committed) -> None:
        began = time.perf_counter()

        def committed(error: StoreError | None) -> None:
            self._metrics.committed(changes, time.perf_counter() - began, error)
            done(error)

        self._store.commit(changes, committed)


def resident_memory() -> int:
    """Return the resident memory in bytes; on systems without `/proc` its peak."""
    try:
        return int(_MEMORY.read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


async def _entities(namespace: Namespace) -> list[str]:
    """Return the lines of all entities. The format requires the lines of a metric together, so there are two lists."""
    counts = list(_head("peeklock_messages", "gauge", "Messages in an entity, by state."))
    sizes = list(_head("peeklock_entity_size_bytes", "gauge", "Bytes of the messages in an entity and its sub-queues."))
    administration = namespace.administration
    topics = administration.topics
    subscriptions = [each for topic in topics for each in administration.subscriptions(topic.path)]
    entities: list[AnyEntity] = [*administration.queues, *topics, *subscriptions]
    for number, entity in enumerate(entities):
        if number % ENTITIES_AT_ONCE == ENTITIES_AT_ONCE - 1:
            await asyncio.sleep(0)
        labels = f'entity="{escape_label(entity.path)}",kind="{entity.kind}"'
        runtime: Runtime = administration.runtime(entity)
        counts += (f'peeklock_messages{{{labels},state="{state}"}} {getattr(runtime, state)}' for state in STATES)
        sizes.append(f"peeklock_entity_size_bytes{{{labels}}} {runtime.size_in_bytes}")
    return counts + sizes


def _disk(watermark: Watermark) -> Iterator[str]:
    if watermark.free_bytes is not None:
        yield from _gauge("peeklock_disk_free_bytes", "Free on the disk of the data folder.", watermark.free_bytes)
    if watermark.low_bytes is not None:
        yield from _gauge(
            "peeklock_disk_free_low_bytes", "The watermark: with less free, sends are refused.", watermark.low_bytes
        )
    text = "1 while sends are refused because the disk is nearly full, otherwise 0."
    yield from _gauge("peeklock_disk_refuses_sends", text, int(watermark.refuses))


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _gauge(name: str, text: str, value: float) -> Iterator[str]:
    yield from _head(name, "gauge", text)
    yield f"{name} {value!r}"


def _counter(name: str, text: str, value: float) -> Iterator[str]:
    yield from _head(name, "counter", text)
    yield f"{name} {value!r}"


def escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
