"""`peeklock pipeline prepare`: what lets later pipelines on this machine start faster."""

from __future__ import annotations

import typer

from peeklock.cli.failing import Exit, fail
from peeklock.cli.output import AsJson, note, print_json

app = typer.Typer()


@app.command()
def prepare(json: AsJson = False) -> None:
    """Write an archive of Spark's classes, about 190 MB, from which every later pipeline on this machine starts faster.

    It is for the Java and the Spark that are installed now: run it again after an update. Pipelines use it when it is
    there, and run without it as well. To go without it again, remove the file.
    """
    from peeklock.spark.classes import archive, make_archive
    from peeklock.spark.session import SMALL_JAVA, missing, submitted

    wanting = missing()
    if wanting is not None:
        fail(wanting)
    file = archive()
    if file is None or submitted():
        fail("prepare is for a Spark on this machine, and Java is not on its path")
    if not json:
        note("starting a Spark and writing its classes: this takes most of a minute …")
    try:
        make_archive(file, SMALL_JAVA)
    except OSError as error:
        fail(str(error), Exit.FAILED)
    if json:
        print_json({"archive": str(file), "bytes": file.stat().st_size})
    else:
        print(file)
