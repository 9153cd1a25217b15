"""`peeklock store`: inspect, check, repair, back up and restore a data folder; create tables in PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from peeklock.cli.failing import Exit, fail
from peeklock.cli.output import AsJson, Yes, confirm, note, print_json, print_pairs, print_table
from peeklock.cli.replicating import create_tables, make_settings
from peeklock.cli.serve import DEFAULT_DATA
from peeklock.server.broker import StartError
from peeklock.server.replication.settings import DEFAULT_SCHEMA
from peeklock.store.base import StoreError
from peeklock.store.disk.folder import FolderLock
from peeklock.store.disk.upkeep.backup import back_up, restore
from peeklock.store.disk.upkeep.check import Checked, check
from peeklock.store.disk.upkeep.findings import Finding, Kind, Progress, no_progress
from peeklock.store.disk.upkeep.info import describe
from peeklock.store.disk.upkeep.repair import repair

app = typer.Typer()
store = typer.Typer(
    name="store", help="Inspect, check, repair, back up and restore a data folder.", no_args_is_help=True
)
app.add_typer(store)

_SHOWN = 1000
"""The most findings in a table."""

Data = Annotated[Path, typer.Option(help="The data folder.")]


@store.command(name="init")
def run_init(
    url: Annotated[str, typer.Argument(help="The connection string or URL of PostgreSQL.")],
    schema: Annotated[str, typer.Option(help="The schema of the namespace.")] = DEFAULT_SCHEMA,
) -> None:
    """Create the tables of a namespace in PostgreSQL. `peeklock serve --store` does the same if they do not exist."""
    try:
        created = create_tables(make_settings(url, schema=schema, replication="none"))
    except StartError as error:
        fail(str(error), Exit.FAILED)
    note(
        f"The tables were created in the schema {schema}."
        if created
        else f"The schema {schema} has its tables already."
    )


@store.command(name="info")
def show_info(data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Show the entities, message counts and sizes of a data folder. The broker may be running."""
    _check_folder(data)
    with _errors_to_messages():
        found = describe(data)
    if as_json:
        print_json(asdict(found))
        return
    print_pairs((name.replace("_", " "), value) for name, value in asdict(found).items() if name != "entities")
    if found.entities:
        columns = list(found.entities[0])
        print_table(columns, [list(each.values()) for each in found.entities], numbers=columns[2:])


@store.command(name="check")
def run_check(data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Read all records and messages, and compare the index with the log. The broker must not be running.

    Changes nothing. The exit code is 7 if anything is damaged.
    """
    with _errors_to_messages(), _locked(data), _progress() as progress:
        checked = check(data, progress)
    _report(checked, data, as_json)


@store.command(name="repair")
def run_repair(
    data: Data = DEFAULT_DATA,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Report the damage, and change nothing.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove damaged messages from a data folder, and save their remains in a file. The broker must not be running."""
    if not dry_run:
        confirm(f"Remove damaged messages from {data}? Copy the folder first if possible.", yes)
    with _errors_to_messages(), _locked(data), _progress() as progress:
        repaired = repair(data, dry_run=dry_run, progress=progress)
    if as_json:
        print_json(
            {
                "findings": [_as_json(each) for each in repaired.findings],
                "messages": [_as_json(each) for each in repaired.messages],
                "lost_commits": [[each.first_commit, each.last_commit] for each in repaired.lost],
                "unfit_commits": [record.commit for record, _ in repaired.unfit],
                "removed": [str(file) for file in repaired.removed],
                "sums_rewritten": repaired.sums_rewritten and not dry_run,
                "file": None if repaired.file is None else str(repaired.file),
                "changed": repaired.is_needed and not dry_run,
            }
        )
        return
    if not repaired.is_needed:
        note(f"{data} is undamaged. Nothing was changed.")
        return
    if dry_run:
        _print_findings(repaired.findings)
        note("Nothing was changed.")
        return
    _print_findings([each for each in repaired.findings if each.kind != Kind.MESSAGE])
    if repaired.sums_rewritten:
        note("The checksums of the index were rewritten; SQLite's own check found no damage in the index.")
    for lost in repaired.lost:
        note(lost.describe())
    for _, reason in repaired.unfit:
        note(reason)
    for file in repaired.removed:
        note(f"{file} was removed; its undamaged content was moved.")
    if repaired.file is not None:
        _print_messages(repaired.messages)
        lost_commits = sum(each.last_commit - each.first_commit + 1 for each in repaired.lost) + len(repaired.unfit)
        note(
            f"{_count(len(repaired.messages), 'message')} and {_count(lost_commits, 'commit')} were removed. "
            f"Their remains are in {repaired.file}."
        )
    note(f"{data} is repaired.")


@store.command(name="backup")
def run_backup(
    target: Annotated[Path, typer.Argument(help="The folder to copy to. It must not exist, or be empty.")],
    data: Data = DEFAULT_DATA,
    verify: Annotated[bool, typer.Option(help="Check the copy for damage.")] = True,
    as_json: AsJson = False,
) -> None:
    """Copy a data folder, with everything that was acknowledged before the start. The broker may be running.

    The exit code is 7 if the folder, and so the copy, has damaged messages.
    """
    _check_folder(data)
    with _errors_to_messages(), _progress() as progress:
        made = back_up(data, target, verify=verify, progress=progress)
    if as_json:
        checked = None if made.checked is None else _checked_as_json(made.checked, target)
        print_json({"target": str(target), "commit": made.commit, "bytes": made.bytes, "checked": checked})
    else:
        note(f"Copied {data} through commit {made.commit} to {target}: {made.bytes:,} bytes.")
    if made.checked is not None and not made.checked.is_sound:
        if not as_json:
            _print_findings(made.checked.findings)
        fail(f"{data} is damaged, and so is the copy {target}: run `peeklock store check`", Exit.DAMAGED)


@store.command(name="restore")
def run_restore(
    backup: Annotated[Path, typer.Argument(help="A folder made by `peeklock store backup`.")],
    data: Data = DEFAULT_DATA,
    force: Annotated[
        bool, typer.Option("--force", help="Rename an existing data folder: the current time is added to its name.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a backup and copy it to the data folder. The broker must not be running."""
    _check_folder(backup)
    with _errors_to_messages(), _progress() as progress:
        made = restore(backup, data, replace=force, progress=progress)
    is_sound = made.checked is not None and made.checked.is_sound
    if as_json:
        moved = None if made.moved_to is None else str(made.moved_to)
        checked = None if made.checked is None else _checked_as_json(made.checked, backup)
        print_json(
            {
                "data": str(data),
                "commit": made.commit,
                "restored": is_sound,
                "moved_to": moved,
                "checked": checked,
            }
        )
    elif is_sound:
        if made.moved_to is not None:
            note(f"Renamed the existing {data} to {made.moved_to}.")
        note(f"Restored {backup} through commit {made.commit} to {data}.")
    elif made.checked is not None:
        _print_findings(made.checked.findings)
    if not is_sound:
        fail(
            f"{backup} is damaged and was not restored: `peeklock store repair --data {backup}` removes the damage",
            Exit.DAMAGED,
        )


def _report(checked: Checked, folder: Path, as_json: bool) -> None:
    if as_json:
        print_json(_checked_as_json(checked, folder))
    else:
        _print_findings(checked.findings)
        if checked.torn_bytes:
            note(
                f"The last {checked.torn_bytes} bytes of the log are incomplete, and no file records that they were "
                f"synced; the next start removes them."
            )
        read = ", ".join(
            (
                _count(checked.segments, "segment"),
                f"{checked.log_bytes:,} bytes",
                _count(checked.records, "commit"),
                _count(checked.messages, "message"),
            )
        )
        note(f"Read {read}.")
    if not checked.is_sound:
        fail(f"{folder} is damaged: {_count(len(checked.findings), 'finding')}", Exit.DAMAGED)
    if not as_json:
        note(f"{folder} is undamaged.")


def _print_findings(findings: list[Finding]) -> None:
    rows = [
        (each.kind, each.path or each.file.name, each.sequence_number or each.commit, each.text)
        for each in findings[:_SHOWN]
    ]
    if rows:
        print_table(("What", "Where", "Number", "Finding"), rows, numbers=("Number",))
    if len(findings) > _SHOWN:
        note(f"{len(findings) - _SHOWN:,} more are not shown; --json has all.")


def _print_messages(messages: list[Finding]) -> None:
    if messages:
        rows = [(each.path, each.sequence_number, each.text) for each in messages[:_SHOWN]]
        print_table(("Removed from", "Number", "Reason"), rows, numbers=("Number",))
    if len(messages) > _SHOWN:
        note(f"{len(messages) - _SHOWN:,} more are not shown; --json has all.")


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _checked_as_json(checked: Checked, folder: Path) -> dict[str, Any]:
    totals = asdict(checked) | {"findings": [_as_json(each) for each in checked.findings]}
    return {"folder": str(folder), "sound": checked.is_sound, **totals}


def _as_json(finding: Finding) -> dict[str, Any]:
    return asdict(finding) | {"file": str(finding.file)}


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        fail(f"{folder} is not a folder", Exit.NOT_FOUND)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a data folder, so that no broker can use it."""
    _check_folder(folder)
    lock = FolderLock(folder)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _errors_to_messages() -> Iterator[None]:
    """End the command with a message for errors of the store and of files."""
    try:
        yield
    except StoreError as error:
        fail(str(error), Exit.FAILED)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", Exit.FAILED)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show a progress bar for each step if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield no_progress
        return
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

    from peeklock.cli.output import console

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def step(doing: str, steps: int, total: int) -> None:
            if doing not in tasks:
                tasks[doing] = bars.add_task(doing, total=total)
            bars.advance(tasks[doing], steps)

        yield step
