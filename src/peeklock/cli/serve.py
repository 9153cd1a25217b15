"""`peeklock serve`, `certificate` and `version`: the broker itself, on this machine.

What only these need (the server and all below it) is imported here, so that the other commands start without it.
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
from peeklock.server.secrets import has_keys, warn_of_readers

log = logging.getLogger(__name__)

DEFAULT_DATA = Path("peeklock-data")

app = typer.Typer()


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


EMULATOR_PROFILE: Final = "emulator"
EMULATOR_HTTP_PORT: Final = 5300
EMULATOR_CONFIG: Final = Path("/ServiceBus_Emulator/ConfigFiles/Config.json")
"""Where the official emulator's image has its file mounted."""


# An option that is not given is looked for in the environment: --tls-port as PEEKLOCK_TLS_PORT.
@app.command(context_settings={"auto_envvar_prefix": "PEEKLOCK"})
def serve(
    config: Annotated[Path | None, typer.Option(help="The namespace, as the official emulator's JSON.")] = None,
    prune: Annotated[
        bool, typer.Option("--prune", help="Delete what the file does not have, at the start and at SIGHUP.")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="The data folder.", show_default=str(DEFAULT_DATA))] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Keep everything in memory; nothing survives.")] = False,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 5672,
    tls_port: Annotated[int | None, typer.Option(min=0, max=65535, help="A further port, such as 5671.")] = None,
    admin_port: Annotated[int | None, typer.Option(min=0, max=65535, help="A further port, such as 5300.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="A certificate of your own (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
    require_tls: Annotated[bool, typer.Option("--require-tls", help="Refuse connections without TLS.")] = False,
    mtls_ca: Annotated[
        Path | None, typer.Option(help="Have clients show a certificate that this authority signed (PEM).")
    ] = None,
    profile: Annotated[
        ProfileName | None, typer.Option(help="Whose limits hold.", show_default=DEFAULT_PROFILE.name)
    ] = None,
    emulator: Annotated[
        bool,
        typer.Option(
            "--emulator",
            help="Be what the official emulator is, as far as no other option says otherwise: its profile, its second "
            f"port (EMULATOR_HTTP_PORT, else {EMULATOR_HTTP_PORT}), its file (CONFIG_PATH), nothing kept.",
        ),
    ] = False,
    max_message_ids: Annotated[
        int, typer.Option(min=1, help="How many message ids an entity remembers for duplicate detection.")
    ] = MAX_MESSAGE_IDS,
    insecure_default_key: Annotated[
        bool, typer.Option("--insecure-default-key", help="Accept the well-known default key from other machines.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="A name that HTTP clients may use for the broker; several may be given.")
    ] = None,
    allowed_origin: Annotated[
        list[str] | None, typer.Option(help="The origin of a web page that may connect, such as https://app.example.")
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(help="Append administration and denied access to this file, as JSON lines.")
    ] = None,
    disk_free_low: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=MAX_COUNT,
            metavar="MIB",
            help="Refuse sends while less than this is free on the disk of the data folder; 0 for never.",
            show_default="1024, or 5 % of the disk if that is less",
        ),
    ] = None,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged to standard error.")] = LogLevel.INFO,
) -> None:
    """Start the broker. Prints its connection string when it is ready; reads its file again at SIGHUP.

    A key of your own is not printed.
    """
    if emulator:
        config = config or _emulator_config()
        memory = memory or data is None
        admin_port = _emulator_http_port() if admin_port is None else admin_port
    if memory and data is not None:
        fail("--memory and --data exclude each other")
    if (tls_cert is None) != (tls_key is None):
        fail("--tls-cert and --tls-key go together")
    if prune and config is None:
        fail("--prune needs --config, which says what stays")
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
        data=None if memory else (data or DEFAULT_DATA),
        host=host,
        port=port,
        further_ports=tuple(number for number in (tls_port, admin_port) if number is not None),
        tls_certificate=tls_cert,
        tls_key=tls_key,
        tls_folder=default_tls_folder() if memory else None,
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
        uvloop.run(_serve(options, config, prune))
    except StartError as error:
        fail(str(error))


def _emulator_config() -> Path | None:
    """The file that the official emulator would read."""
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
    # Before the start, because without a handler the signal ends the process.
    reloader = None if config is None else Reloader(broker, config, prune=prune)
    follow = _nothing_to_reload if reloader is None else reloader.request

    def reload() -> None:
        follow()
        broker.reload()

    loop.add_signal_handler(signal.SIGHUP, reload)
    await broker.start()
    reloading: asyncio.Task[None] | None = None
    if reloader is not None:
        await reloader.apply(options.namespace)
        reloading = asyncio.create_task(reloader.run())
    print(broker.shown_connection_string, flush=True)
    if broker.has_secret_key:
        print(f"The key of {broker.key_name} is not shown here: it is the PrimaryKey in {config}.", flush=True)
    await stop.wait()
    if reloading is not None:
        reloading.cancel()
    await broker.stop()


def _nothing_to_reload() -> None:
    log.warning("there is no configuration file to read again")


@app.command(context_settings={"auto_envvar_prefix": "PEEKLOCK"})
def certificate(
    data: Annotated[Path | None, typer.Option(help="The data folder.", show_default=str(DEFAULT_DATA))] = None,
    memory: Annotated[bool, typer.Option("--memory", help="The one of brokers started with --memory.")] = False,
) -> None:
    """Print where the certificate of the local authority is, for clients to trust. Makes it if it is not there yet."""
    folder = default_tls_folder() if memory else (data or DEFAULT_DATA)
    try:
        print(ensure_certificates(folder, []).authority.absolute())
    except (CertificateError, OSError) as error:
        fail(str(error))


@app.command()
def version() -> None:
    """Print the version, and whether it is a compiled one."""
    print(__version__ if (session.__file__ or "").endswith(".py") else f"{__version__} compiled")
