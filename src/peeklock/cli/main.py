"""`peeklock`: the command line.

Each module of commands has an `app`. Only the module of the given command is imported, so that sending a message does
not load the broker.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

import typer

from peeklock.cli.failing import Exit, print_error

# Commands and groups by name, each with its module.
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
    """Make the program with one command, or with all commands if there is none of that name."""
    app = typer.Typer(name="peeklock", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.callback()
    def peeklock() -> None:
        """A Service Bus broker, and commands that work with it and with the hosted service.

        Exit codes: 0 done; 1 refused or failed; 2 invalid arguments or configuration; 3 not found; 4 already exists;
        5 not authorized; 6 not reachable; 7 damage found; 75 replaced by another node; 130 interrupted.
        """

    for module in dict.fromkeys(COMMANDS.values() if command not in COMMANDS else [COMMANDS[command]]):
        part: typer.Typer = import_module(f"peeklock.cli.{module}").app
        app.registered_commands += part.registered_commands
        app.registered_groups += part.registered_groups
    return app


def main() -> None:
    """Run the command. Invalid arguments also end it with one error message and exit code 2."""
    arguments = sys.argv[1:]
    if not arguments or (len(arguments) == 1 and arguments[0] in GROUPS):
        arguments.append("--help")
    try:
        code = compose(arguments[0])(args=arguments, prog_name="peeklock", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of the output closed the pipe. Python would fail again when it flushes standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = Exit.FAILED
    except Exception as error:
        format_message = getattr(error, "format_message", None)
        if format_message is None:
            raise
        print_error(" ".join(format_message().split()))
        code = Exit.USAGE
    sys.exit(code)


if __name__ == "__main__":
    main()
