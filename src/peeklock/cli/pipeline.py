"""`peeklock pipeline`: the group of commands that run pipelines on Spark.

Each module in `PARTS` has an `app` with its commands. This file is also the program for `spark-submit`, with the same
arguments as `peeklock pipeline`.
"""

from __future__ import annotations

import sys
from importlib import import_module

import typer

app = typer.Typer()
pipeline = typer.Typer(help="Run pipelines on Spark, on this machine or on a cluster.", no_args_is_help=True)
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
    """Print the path of the program to submit: spark-submit … "$(peeklock pipeline file)" capture …"""
    print(__file__)


if __name__ == "__main__":
    # Python puts the folder of a script first on the path. Modules in it would hide installed modules of the same name.
    sys.path.pop(0)
    from peeklock.cli.main import main

    sys.argv[1:1] = ["pipeline"]
    main()
