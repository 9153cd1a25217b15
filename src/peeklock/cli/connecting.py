"""Connect commands to a namespace: their common options, the two clients, and error messages.

All commands that do not run a broker use `peeklock.client`, so that they work with the hosted service too.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peeklock.cli.failing import Exit, fail
from peeklock.cli.output import printable
from peeklock.entities.names import subscription_path

if TYPE_CHECKING:
    from peeklock.client import ClientError, Connection
    from peeklock.client.administration import AdministrationClient

LOCAL = (
    "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;"
    "UseDevelopmentEmulator=true;"
)
"""The connection string of a broker started without options, and of the official emulator."""

_PREFIX = re.compile(r"(SubCode=\d+\.\s*)?(Bad Request|Conflict|Forbidden|Not Found|Unauthorized)\.\s+")
"""The prefix of the error descriptions of the administration API."""

ConnectionString = Annotated[
    str,
    typer.Option(
        "--connection-string",
        envvar="PEEKLOCK_CONNECTION_STRING",
        show_default="a broker on this machine, port 5672, with the well-known key",
        show_envvar=True,
        help="The connection string of the namespace: its address and a key.",
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        envvar="PEEKLOCK_CA_FILE",
        show_envvar=True,
        help="A certificate authority (PEM) to trust besides the public ones, for connections with TLS; "
        "`peeklock certificate` prints the path of a broker's own.",
    ),
]
Entity = Annotated[str, typer.Argument(help="A queue, a topic, or a subscription as topic/Subscriptions/name.")]
QueueOrSubscription = Annotated[
    str, typer.Argument(metavar="ENTITY", help="A queue, or a subscription as topic/Subscriptions/name.")
]
Subscription = Annotated[str | None, typer.Option("--subscription", help="A subscription of the topic ENTITY.")]
FromDeadLetters = Annotated[bool, typer.Option("--dead-letter", help="Use the dead-letter queue of the entity.")]


def address_of(entity: str, subscription: str | None, sub_queue: str | None = None) -> str:
    """The address of an entity, of a subscription of it, or of a sub-queue."""
    address = entity if subscription is None else subscription_path(entity, subscription)
    return address if sub_queue is None else f"{address}/{sub_queue}"


@contextmanager
def messaging(connection_string: str, ca_file: Path | None) -> Iterator[Connection]:
    """Open an AMQP connection. A client error in the block ends the command with a message."""
    from peeklock.client import connect

    with _errors_to_messages(), connect(connection_string, tls=tls_context(ca_file)) as connection:
        yield connection


@contextmanager
def administering(connection_string: str, ca_file: Path | None) -> Iterator[AdministrationClient]:
    """Open a client of the administration API. A client error in the block ends the command with a message."""
    from peeklock.client.administration import AdministrationClient

    with (
        _errors_to_messages(),
        AdministrationClient.from_connection_string(connection_string, tls=tls_context(ca_file)) as client,
    ):
        yield client


@contextmanager
def clear_error_if_exists(title: str) -> Iterator[None]:
    """Report that an entity or rule exists in a clear error; the service's error text does not name the cause."""
    from peeklock.client import RequestRefused

    try:
        yield
    except RequestRefused as refused:
        if exit_code(refused) is Exit.EXISTS:
            fail(f"{title} already exists", Exit.EXISTS)
        raise


def error_text(error: ClientError) -> str:
    """The description of an error on one line, without the tracking id, which only the service's operators can use.

    Line breaks are kept if a caret below a line marks a place in it.
    """
    text = re.sub(r"[\s(]*TrackingId:.*", "", error.description, flags=re.DOTALL)
    text = _PREFIX.sub("", text.strip())
    if not re.search(r"^ *\^ *$", text, flags=re.MULTILINE):
        text = " ".join(text.split())
    return printable(text) or error.condition


def exit_code(error: ClientError) -> Exit:
    """The exit code for a client error."""
    from peeklock.amqp.errors import Condition
    from peeklock.client import ConnectionLost, Timeout

    codes = {
        Condition.NOT_FOUND: Exit.NOT_FOUND,
        Condition.MESSAGE_NOT_FOUND: Exit.NOT_FOUND,
        Condition.SESSION_NOT_FOUND: Exit.NOT_FOUND,
        Condition.ENTITY_ALREADY_EXISTS: Exit.EXISTS,
        Condition.UNAUTHORIZED_ACCESS: Exit.UNAUTHORIZED,
        Condition.AUTH_FAILED: Exit.UNAUTHORIZED,
    }
    if isinstance(error, ConnectionLost | Timeout):
        return Exit.UNREACHABLE
    return next((code for condition, code in codes.items() if condition == error.condition), Exit.FAILED)


@contextmanager
def _errors_to_messages() -> Iterator[None]:
    from peeklock.client import ClientError

    try:
        yield
    except ClientError as error:
        fail(error_text(error), exit_code(error))
    except ValueError as error:  # raised by the client for an invalid address or value
        fail(str(error))


def tls_context(ca_file: Path | None) -> ssl.SSLContext | None:
    """A context that also trusts the authority in a file; None without a file, which means the system's authorities."""
    if ca_file is None:
        return None
    try:
        context = ssl.create_default_context()
        context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        fail(f"--ca-file: {ca_file} cannot be loaded: {error.strerror or error}")
    return context
