"""`peeklock pipeline`: the pipelines on Spark.

Each part has an `app` with its commands, which this puts into one group. The file is a program as well, for
`spark-submit`: its arguments are what follows `peeklock pipeline`.
"""

from __future__ import annotations

import sys
from importlib import import_module

import typer

app = typer.Typer()
pipeline = typer.Typer(help="Pipelines on Spark: here, or on a cluster.", no_args_is_help=True)
app.add_typer(pipeline, name="pipeline")

# The modules with the commands.
PARTS = (
    "pipeline_capture",
    "pipeline_replay",
    "pipeline_dead_letters",
    "pipeline_report",
    "pipeline_prepare",
)

for _part in PARTS:
    _commands: typer.Typer = import_module(f"peeklock.cli.{_part}").app
    pipeline.registered_commands += _commands.registered_commands
    pipeline.registered_groups += _commands.registered_groups


@pipeline.command("file")
def file() -> None:
    """Print the path of the program for spark-submit: spark-submit … "$(peeklock pipeline file)" capture …"""
    print(__file__)


if __name__ == "__main__":
    # As a script its folder comes first on the path, where `peeklock` is not, and other names hide those of others.
    sys.path.pop(0)
    from peeklock.cli.main import main

    sys.argv[1:1] = ["pipeline"]
    main()
