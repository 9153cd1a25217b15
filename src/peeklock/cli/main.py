"""`peeklock`: the command line.

Composes the commands; each module has an `app` with its own. Only the module of the command that was asked for is
imported, so that sending a message does not load a broker.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import typer

from peeklock.cli.failing import Exit, complain

# The commands and groups, and the module each is in.
COMMANDS = {
    "serve": "serve",
    "certificate": "serve",
    "version": "serve",
    "send": "sending",
    "receive": "receiving",
    "peek": "receiving",
    "purge": "purging",
    "watch": "watching",
    "token": "signing",
    "dead-letter": "dead_letters",
    "claim": "claims",
    "queue": "entities",
    "topic": "entities",
    "subscription": "entities",
    "rule": "rules",
    "config": "config",
    "pipeline": "pipeline",
    "store": "store",
}
GROUPS = {"claim", "dead-letter", "queue", "topic", "subscription", "rule", "config", "pipeline", "store"}


def compose(command: str | None) -> typer.Typer:
    """The program with the one command, or with all of them when it is no command that there is."""
    app = typer.Typer(name="peeklock", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.callback()
    def peeklock() -> None:
        """A Service Bus that you run yourself, and the commands to work with it or with the hosted one.

        Exit codes: 0 done; 1 refused or failed; 2 wrong arguments or configuration; 3 not found; 4 there already;
        5 not authorized; 6 not reachable; 7 damage found; 130 interrupted.
        """

    for module in dict.fromkeys(COMMANDS.values() if command not in COMMANDS else [COMMANDS[command]]):
        part: typer.Typer = import_module(f"peeklock.cli.{module}").app
        app.registered_commands += part.registered_commands
        app.registered_groups += part.registered_groups
    return app


def main() -> None:
    """Run the command; a mistake in its arguments is one clear sentence too."""
    arguments = sys.argv[1:]
    if not arguments or (len(arguments) == 1 and arguments[0] in GROUPS):
        arguments.append("--help")
    try:
        code = compose(arguments[0])(args=arguments, prog_name="peeklock", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        # Who read our output has gone, and Python would stumble over it once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.FAILED
    except Exception as error:
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            raise
        complain(" ".join(format_message().split()))
        code = Exit.USAGE
    sys.exit(code)


if __name__ == "__main__":
    main()
