"""`peeklock serve --store`: run a node of a replicated broker.

psycopg is an extra, so the modules that import it are imported when a command needs them.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import uvloop

from peeklock.cli.failing import fail
from peeklock.cli.signals import stopping_signals
from peeklock.server.broker import Broker, Options
from peeklock.server.reload import Reloader
from peeklock.server.replication.settings import NodeSettings

log = logging.getLogger(__name__)


def run_node(
    options: Options, settings: NodeSettings, config: Path | None, prune: bool, warn_without_config: Callable[[], None]
) -> int:
    """Check the database, create missing tables, and run a node. Return its exit status. Raise StartError."""
    if create_tables(settings):
        log.info("the tables were created in the schema %s", settings.schema)
    return uvloop.run(_serve(options, settings, config, prune, warn_without_config))


def make_settings(url: str, **given: Any) -> NodeSettings:
    """Return the settings of a node, with defaults for options that are not given. Raise StartError."""
    return NodeSettings(url=url, **given)


def create_tables(settings: NodeSettings) -> bool:
    """Check the database, and create missing tables. Return whether they were created. Raise StartError."""
    created: bool = _node_module().prepare(settings)
    return created


def _node_module() -> ModuleType:
    try:
        from peeklock.server.replication import node
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "psycopg":
            raise
        fail("a store on PostgreSQL requires an extra: pip install 'peeklock[postgres]'")
    return node


async def _serve(
    options: Options, settings: NodeSettings, config: Path | None, prune: bool, warn_without_config: Callable[[], None]
) -> int:
    from peeklock.server.replication.node import Node

    loop = asyncio.get_running_loop()
    reloading: list[asyncio.Task[None]] = []

    async def start_reloading(broker: Broker) -> None:
        if reloader is not None:
            await reloader.apply(options.namespace)
            reloading.append(asyncio.create_task(reloader.run()))

    def reload() -> None:
        request_reload()
        node.broker.reload()

    node = Node(options, settings, start_reloading)
    node.bind()
    reloader = None if config is None else Reloader(node.broker, config, prune=prune)
    request_reload = warn_without_config if reloader is None else reloader.request
    for number in stopping_signals():
        loop.add_signal_handler(number, node.request_stop)
    loop.add_signal_handler(signal.SIGHUP, reload)
    print(node.broker.shown_connection_string, flush=True)
    if node.broker.has_secret_key:
        print(f"The key of {node.broker.key_name} is not printed: it is the PrimaryKey in {config}.", flush=True)
    try:
        return await node.run()
    finally:
        for task in reloading:
            task.cancel()
