"""`peeklock token`: print a shared access signature, for HTTP requests without an SDK."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from peeklock.cli.connecting import LOCAL, ConnectionString, Subscription, address_of
from peeklock.cli.failing import fail
from peeklock.client import parse_endpoint, sas_token

app = typer.Typer()

_MAX_SECONDS = 10 * 366 * 86400


@app.command()
def token(
    entity: Annotated[
        str | None,
        typer.Argument(
            help="The entity that the token gives access to, with its sub-queues and subscriptions.",
            show_default="the whole namespace",
        ),
    ] = None,
    subscription: Subscription = None,
    expires_in: Annotated[
        int, typer.Option(min=1, max=_MAX_SECONDS, metavar="SECONDS", help="How long the token is valid.")
    ] = 3600,
    connection_string: ConnectionString = LOCAL,
) -> None:
    """Print a shared access signature, signed with the key of the connection string. It is a secret.

    HTTP requests send it in the Authorization header: curl -H "Authorization: $(peeklock token ENTITY)" ...
    """
    try:
        endpoint = parse_endpoint(connection_string)
    except ValueError as error:
        fail(str(error))
    if endpoint.key is None or endpoint.key_name is None:
        fail("the connection string has no SharedAccessKey, which signing a token requires")
    path = address_of(entity or "", subscription)
    print(sas_token(f"sb://{endpoint.host}/{path}", endpoint.key_name, endpoint.key, time.time() + expires_in))
