"""Signatures of commands that share arguments and options: typer makes a command's options from its signature."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from peeklock.cli.connecting import LOCAL, CaFile, ConnectionString
from peeklock.cli.output import AsJson, Yes

Command = Callable[..., None]


def with_signature(*parameters: Parameter) -> Callable[[Command], Command]:
    """Set the signature of a command that takes keyword arguments."""

    def decorate(command: Command) -> Command:
        command.__signature__ = Signature(list(parameters))  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def argument(name: str, help: str) -> Parameter:
    """A required argument."""
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[str, typer.Argument(help=help)])


def option(name: str, annotation: Any, default: Any = None) -> Parameter:
    """An option, declared by its annotation."""
    return Parameter(name, Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


COMMON = (
    option("connection_string", ConnectionString, LOCAL),
    option("ca_file", CaFile),
    option("json", AsJson, False),
)
"""The options of all commands that administer entities and rules."""
YES = option("yes", Yes, False)
