"""Where the commands find a namespace: their common options, the two clients, and failures as sentences.

All commands but those that run a broker speak to a namespace through `peeklock.client`, so that they work with the
hosted service too.
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

if TYPE_CHECKING:
    from peeklock.client import ClientError, Connection
    from peeklock.client.administration import AdministrationClient

LOCAL = (
    "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;"
    "UseDevelopmentEmulator=true;"
)
"""What a broker that was started without options takes; the official emulator's is the same."""
DEAD_LETTERS = "$DeadLetterQueue"
TRANSFER_DEAD_LETTERS = "$Transfer/$DeadLetterQueue"

_PREFIX = re.compile(r"(SubCode=\d+\.\s*)?(Bad Request|Conflict|Forbidden|Not Found|Unauthorized)\.\s+")
"""What the administration API says before it says something."""

ConnectionString = Annotated[
    str,
    typer.Option(
        "--connection-string",
        envvar="PEEKLOCK_CONNECTION_STRING",
        show_default="a broker on this machine, port 5672, with the well-known key",
        show_envvar=True,
        help="Where the namespace is, and with which key.",
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca-file",
        envvar="PEEKLOCK_CA_FILE",
        show_envvar=True,
        help="An authority to trust (PEM), such as `peeklock certificate` names; for connections with TLS.",
    ),
]
Entity = Annotated[str, typer.Argument(help="A queue, a topic, or a subscription as topic/Subscriptions/name.")]
Subscription = Annotated[str | None, typer.Option("--subscription", help="A subscription of the topic.")]
FromDeadLetters = Annotated[bool, typer.Option("--dead-letter", help="Its dead-letter queue.")]


def address_of(entity: str, subscription: str | None, sub_queue: str | None = None) -> str:
    """The address of what the options name together."""
    address = entity if subscription is None else f"{entity}/Subscriptions/{subscription}"
    return address if sub_queue is None else f"{address}/{sub_queue}"


@contextmanager
def messaging(connection_string: str, ca_file: Path | None) -> Iterator[Connection]:
    """A connection over AMQP. What goes wrong while it is used ends the command."""
    from peeklock.client import connect

    with _sentences(), connect(connection_string, tls=tls_context(ca_file)) as connection:
        yield connection


@contextmanager
def administering(connection_string: str, ca_file: Path | None) -> Iterator[AdministrationClient]:
    """A client of the administration API. What goes wrong while it is used ends the command."""
    from peeklock.client.administration import AdministrationClient

    with (
        _sentences(),
        AdministrationClient.from_connection_string(connection_string, tls=tls_context(ca_file)) as client,
    ):
        yield client


@contextmanager
def told_when_there(what: str) -> Iterator[None]:
    """Creating something that exists, in words of ours: the service's are not about that."""
    from peeklock.client import RequestRefused

    try:
        yield
    except RequestRefused as refused:
        if exit_code(refused) is Exit.EXISTS:
            fail(f"{what} is there already", Exit.EXISTS)
        raise


def sentence(error: ClientError) -> str:
    """What went wrong without what only the service's operators can use; on one line, unless a caret points at it."""
    said = re.sub(r"[\s(]*TrackingId:.*", "", error.description, flags=re.DOTALL)
    said = _PREFIX.sub("", said.strip())
    if not re.search(r"^ *\^ *$", said, flags=re.MULTILINE):
        said = " ".join(said.split())
    return printable(said) or error.condition


def exit_code(error: ClientError) -> Exit:
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
def _sentences() -> Iterator[None]:
    from peeklock.client import ClientError

    try:
        yield
    except ClientError as error:
        fail(sentence(error), exit_code(error))
    except ValueError as error:  # an address or a value that the client cannot use
        fail(str(error))


def tls_context(ca_file: Path | None) -> ssl.SSLContext | None:
    """What trusts the authority; None for those of the system."""
    if ca_file is None:
        return None
    try:
        context = ssl.create_default_context()
        context.load_verify_locations(ca_file)
    except (OSError, ssl.SSLError) as error:
        fail(f"the authority {ca_file} cannot be used: {error.strerror or error}")
    return context
