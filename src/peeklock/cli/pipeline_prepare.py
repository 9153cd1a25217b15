"""`peeklock pipeline prepare`: write an archive of Spark's classes, so that pipelines on this machine start faster."""

from __future__ import annotations

import typer

from peeklock.cli.failing import Exit, fail
from peeklock.cli.output import AsJson, note, print_json

app = typer.Typer()


@app.command()
def prepare(json: AsJson = False) -> None:
    """Write an archive of Spark's classes, about 190 MB; later pipelines on this machine then start faster.

    The archive fits only the installed versions of Java and Spark: run the command again after an update. Pipelines use
    the archive if it exists. To stop using it, delete the file.
    """
    from peeklock.spark.classes import archive, make_archive
    from peeklock.spark.session import SMALL_JAVA, missing, submitted

    requirement = missing()
    if requirement is not None:
        fail(requirement)
    file = archive()
    if file is None or submitted():
        fail("prepare requires Java on the path, and cannot run under spark-submit")
    if not json:
        note("starting Spark and writing its classes; this takes up to a minute …")
    try:
        make_archive(file, SMALL_JAVA)
    except OSError as error:
        fail(str(error), Exit.FAILED)
    if json:
        print_json({"archive": str(file), "bytes": file.stat().st_size})
    else:
        print(file)
