"""`peeklock serve`, `certificate` and `version`: the broker itself, on this machine.

What only these need (the server and all below it) is imported here, so that the other commands start without it.
"""

from __future__ import annotations

import asyncio
import signal
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from peeklock import __version__
from peeklock.broker.settings import DEFAULT_PROFILE, PROFILES
from peeklock.cli.failing import fail
from peeklock.server.broker import Broker, Options, StartError, default_tls_folder
from peeklock.server.certificates import CertificateError, ensure_certificates, ensure_certificates_apart
from peeklock.server.config import ConfigError, default_namespace, load_config
from peeklock.server.logs import configure_logging

DEFAULT_DATA = Path("peeklock-data")

app = typer.Typer()


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


ProfileName = StrEnum("ProfileName", {name.upper(): name for name in PROFILES})  # type: ignore[misc]
DEFAULT_PROFILE_NAME = ProfileName(DEFAULT_PROFILE.name)


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(help="The namespace, as the official emulator's JSON.")] = None,
    data: Annotated[Path | None, typer.Option(help="The data folder.", show_default=str(DEFAULT_DATA))] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Keep everything in memory; nothing survives.")] = False,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 5672,
    tls_port: Annotated[int | None, typer.Option(min=0, max=65535, help="A further port, such as 5671.")] = None,
    admin_port: Annotated[int | None, typer.Option(min=0, max=65535, help="A further port, such as 5300.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="A certificate of your own (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
    profile: Annotated[ProfileName, typer.Option(help="Whose limits hold.")] = DEFAULT_PROFILE_NAME,
    insecure_default_key: Annotated[
        bool, typer.Option("--insecure-default-key", help="Accept the well-known default key from other machines.")
    ] = False,
    log_level: Annotated[LogLevel, typer.Option(help="What is logged to standard error.")] = LogLevel.INFO,
) -> None:
    """Start the broker. Prints its connection string when it is ready."""
    if memory and data is not None:
        fail("--memory and --data exclude each other")
    if (tls_cert is None) != (tls_key is None):
        fail("--tls-cert and --tls-key go together")
    configure_logging(log_level)
    limits = PROFILES[profile]
    try:
        namespace = default_namespace(limits) if config is None else load_config(config, limits)
    except ConfigError as error:
        fail(str(error))
    options = Options(
        namespace=namespace,
        profile=limits,
        data=None if memory else (data or DEFAULT_DATA),
        host=host,
        port=port,
        further_ports=tuple(number for number in (tls_port, admin_port) if number is not None),
        tls_certificate=tls_cert,
        tls_key=tls_key,
        tls_folder=default_tls_folder() if memory else None,
        make_certificates=ensure_certificates_apart,
        insecure_default_key=insecure_default_key,
    )
    try:
        uvloop.run(_serve(options))
    except StartError as error:
        fail(str(error))


async def _serve(options: Options) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    broker = Broker(options)
    await broker.start()
    print(broker.connection_string, flush=True)
    await stop.wait()
    await broker.stop()


@app.command()
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
    """Print the version."""
    print(__version__)
