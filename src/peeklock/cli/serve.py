"""`peeklock serve`, `peeklock certificate` and `peeklock version`: run the broker on this machine.

Only this module imports the server and the packages below it, so that the other commands start without them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop

from peeklock import __version__
from peeklock.admin.service import administer
from peeklock.cli.failing import fail
from peeklock.cli.profiles import ProfileName
from peeklock.cli.replicating import make_settings, run_node
from peeklock.cli.signals import stopping_signals
from peeklock.engine import session
from peeklock.entities.settings import DEFAULT_PROFILE, PROFILES
from peeklock.limits.broker import MAX_MESSAGE_IDS
from peeklock.rest.service import serve_messages
from peeklock.server.broker import Broker, Options, StartError, default_tls_folder
from peeklock.server.certificates import CertificateError, ensure_certificates, ensure_certificates_in_process
from peeklock.server.config import ConfigError, Configuration, default_namespace, load_configuration
from peeklock.server.config_keys import MAX_COUNT
from peeklock.server.config_server import ServerSettings
from peeklock.server.logs import configure_logging
from peeklock.server.reload import Reloader
from peeklock.server.replication.settings import DEFAULT_SCHEMA
from peeklock.server.secrets import has_keys, warn_of_readers

log = logging.getLogger(__name__)

DEFAULT_DATA = Path("peeklock-data")

app = typer.Typer()


class LogLevel(StrEnum):
    """The choices of --log-level."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class ReplicationChoice(StrEnum):
    """The choices of --replication."""

    REQUIRE = "require"
    EXTERNAL = "external"
    NONE = "none"


EMULATOR_PROFILE: Final = "emulator"
EMULATOR_HTTP_PORT: Final = 5300
EMULATOR_CONFIG: Final = Path("/ServiceBus_Emulator/ConfigFiles/Config.json")
"""The path of the configuration file in the official emulator's image."""


# typer reads an option that is not given from the environment: --tls-port from PEEKLOCK_TLS_PORT.
@app.command(context_settings={"auto_envvar_prefix": "PEEKLOCK"})
def serve(
    config: Annotated[
        Path | None,
        typer.Option(help="The configuration file of the namespace, in the official emulator's JSON format."),
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="Delete entities that the configuration file does not have, at the start and at SIGHUP."
        ),
    ] = False,
    data: Annotated[Path | None, typer.Option(help="The data folder.", show_default=str(DEFAULT_DATA))] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Store everything in memory; nothing survives a restart.")
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Store everything in PostgreSQL, in place of a data folder, as one of several nodes. Creates the "
            "tables if they do not exist.",
        ),
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="With --store: the schema of the namespace.", show_default=DEFAULT_SCHEMA)
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="With --store: the name of this node.", show_default="the host name")
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="With --store: where the other nodes reach this one.",
            show_default="--host and --port, or the host name if --host is a wildcard",
        ),
    ] = None,
    lease_seconds: Annotated[
        float | None,
        typer.Option(
            help="With --store: after so long without the active node another one takes over.", show_default="6"
        ),
    ] = None,
    replication: Annotated[
        ReplicationChoice | None,
        typer.Option(
            help="With --store: require a synchronous standby of PostgreSQL, or rely on replication that is external "
            "to it, or accept none.",
            show_default="require",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 for a free port.")] = 5672,
    tls_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="A further port, such as 5671 for TLS; every port accepts every protocol."),
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="A further port, such as 5300 for administration; every port accepts every protocol."
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="The certificate for TLS (PEM); without it the broker makes one.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The private key of --tls-cert (PEM).")] = None,
    require_tls: Annotated[bool, typer.Option("--require-tls", help="Refuse connections without TLS.")] = False,
    mtls_ca: Annotated[
        Path | None, typer.Option(help="Require client certificates signed by this authority (PEM).")
    ] = None,
    profile: Annotated[
        ProfileName | None,
        typer.Option(help="The profile, which sets limits and defaults.", show_default=DEFAULT_PROFILE.name),
    ] = None,
    emulator: Annotated[
        bool,
        typer.Option(
            "--emulator",
            help="Use the official emulator's defaults: its profile, its administration port (EMULATOR_HTTP_PORT, else "
            f"{EMULATOR_HTTP_PORT}), its configuration file (CONFIG_PATH), and storage in memory. The other options "
            "override them.",
        ),
    ] = False,
    max_message_ids: Annotated[
        int, typer.Option(min=1, help="The most message ids that an entity stores for duplicate detection.")
    ] = MAX_MESSAGE_IDS,
    insecure_default_key: Annotated[
        bool, typer.Option("--insecure-default-key", help="Accept the well-known default key from other machines.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="A host name that HTTP clients may use for the broker. Repeatable.")
    ] = None,
    allowed_origin: Annotated[
        list[str] | None,
        typer.Option(help="The origin of a web page that may connect, such as https://app.example. Repeatable."),
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(help="The audit log: append administration and denied access to this file, as JSON lines."),
    ] = None,
    disk_free_low: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_COUNT,
            metavar="MIB",
            help="Refuse sends while the disk of the data folder has less free space than this; 0 for never.",
            show_default="1024, or 5 % of the disk if that is less",
        ),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="The lowest level to log on standard error.")] = LogLevel.INFO,
) -> None:
    """Start the broker. Prints its connection string when it is ready, and reloads its configuration file at SIGHUP.

    A key from the configuration file is not printed.
    """
    if emulator:
        config = config or _emulator_config()
        memory = memory or (data is None and store is None)
        admin_port = _emulator_http_port() if admin_port is None else admin_port
    if memory and data is not None:
        fail("--memory and --data exclude each other")
    if store is not None and (memory or data is not None):
        fail(f"--store and {'--memory' if memory else '--data'} exclude each other")
    node_options = {
        "schema": schema,
        "name": node,
        "advertise": advertise,
        "lease_seconds": lease_seconds,
        "replication": None if replication is None else replication.value,
    }
    given = {name: value for name, value in node_options.items() if value is not None}
    if store is None and given:
        option = "node" if "name" in given else next(iter(given)).replace("_", "-")
        fail(f"--{option} requires --store")
    if (tls_cert is None) != (tls_key is None):
        fail("--tls-cert and --tls-key require each other")
    if prune and config is None:
        fail("--prune requires --config: it deletes the entities that the file does not have")
    configure_logging(log_level)
    limits = PROFILES[profile or (EMULATOR_PROFILE if emulator else DEFAULT_PROFILE.name)]
    try:
        configured = (
            Configuration(default_namespace(limits), ServerSettings())
            if config is None
            else load_configuration(config, limits)
        )
    except ConfigError as error:
        fail(str(error))
    if config is not None and has_keys(configured.namespace):
        warn_of_readers(config, "keys")
    if tls_key is not None:
        warn_of_readers(tls_key, "a private key")
    server = configured.server
    options = Options(
        namespace=configured.namespace,
        profile=limits,
        data=None if memory or store is not None else (data or DEFAULT_DATA),
        host=host,
        port=port,
        further_ports=tuple(number for number in (tls_port, admin_port) if number is not None),
        tls_certificate=tls_cert,
        tls_key=tls_key,
        tls_folder=default_tls_folder() if memory or store is not None else None,
        make_certificates=ensure_certificates_in_process,
        require_tls=require_tls or server.require_tls,
        mtls_ca=mtls_ca or server.mtls_ca,
        audit=audit or server.audit,
        allowed_hosts=(*server.allowed_hosts, *(allowed_host or ())),
        allowed_origins=(*server.allowed_origins, *(allowed_origin or ())),
        limits=server.limits,
        max_message_ids=max_message_ids,
        disk_free_low=server.disk_free_low if disk_free_low is None else disk_free_low << 20,
        insecure_default_key=insecure_default_key,
        administration=administer,
        messaging=serve_messages,
    )
    try:
        if store is None:
            uvloop.run(_serve(options, config, prune))
            return
        status = run_node(options, make_settings(store, **given), config, prune, _warn_without_config)
    except StartError as error:
        fail(str(error))
    raise typer.Exit(status)


def _emulator_config() -> Path | None:
    """The configuration file that the official emulator reads, if there is one."""
    named = os.environ.get("CONFIG_PATH")
    if named:
        return Path(named)
    return EMULATOR_CONFIG if EMULATOR_CONFIG.exists() else None


def _emulator_http_port() -> int:
    text = os.environ.get("EMULATOR_HTTP_PORT") or str(EMULATOR_HTTP_PORT)
    if not text.isdecimal() or int(text) > 65535:
        fail(f"EMULATOR_HTTP_PORT must be a port from 0 to 65535, not '{text}'")
    return int(text)


async def _serve(options: Options, config: Path | None, prune: bool) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in stopping_signals():
        loop.add_signal_handler(number, stop.set)
    broker = Broker(options)
    # Set before the start: without a handler, SIGHUP ends the process.
    reloader = None if config is None else Reloader(broker, config, prune=prune)
    request_reload = _warn_without_config if reloader is None else reloader.request

    def reload() -> None:
        request_reload()
        broker.reload()

    loop.add_signal_handler(signal.SIGHUP, reload)
    await broker.start()
    reloading: asyncio.Task[None] | None = None
    if reloader is not None:
        await reloader.apply(options.namespace)
        reloading = asyncio.create_task(reloader.run())
    print(broker.shown_connection_string, flush=True)
    if broker.has_secret_key:
        print(f"The key of {broker.key_name} is not printed: it is the PrimaryKey in {config}.", flush=True)
    await stop.wait()
    if reloading is not None:
        reloading.cancel()
    await broker.stop()


def _warn_without_config() -> None:
    log.warning("SIGHUP: there is no configuration file to reload; start with --config to have one")


@app.command(context_settings={"auto_envvar_prefix": "PEEKLOCK"})
def certificate(
    data: Annotated[Path | None, typer.Option(help="The data folder.", show_default=str(DEFAULT_DATA))] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Use the certificate of brokers started with --memory.")
    ] = False,
) -> None:
    """Print the path of the local authority's certificate, for clients to trust. Makes it if it does not exist."""
    folder = default_tls_folder() if memory else (data or DEFAULT_DATA)
    try:
        print(ensure_certificates(folder, []).authority.absolute())
    except (CertificateError, OSError) as error:
        fail(str(error))


@app.command()
def version() -> None:
    """Print the version, and whether the package is compiled."""
    print(__version__ if (session.__file__ or "").endswith(".py") else f"{__version__} compiled")
