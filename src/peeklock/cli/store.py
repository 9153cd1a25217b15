"""`peeklock store`: look into a data folder, check it, repair it, copy it and put a copy back."""

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
from peeklock.cli.serve import DEFAULT_DATA
from peeklock.store.base import StoreError
from peeklock.store.disk.folder import FolderLock
from peeklock.store.disk.upkeep.backup import back_up, restore
from peeklock.store.disk.upkeep.check import Checked, check
from peeklock.store.disk.upkeep.findings import Finding, Kind, Progress, no_progress
from peeklock.store.disk.upkeep.info import describe
from peeklock.store.disk.upkeep.repair import repair

app = typer.Typer()
store = typer.Typer(name="store", help="Look after a data folder.", no_args_is_help=True)
app.add_typer(store)

_SHOWN = 1000
"""Findings in a table."""

Data = Annotated[Path, typer.Option(help="The data folder.")]


@store.command(name="info")
def show_info(data: Data = DEFAULT_DATA, as_json: AsJson = False) -> None:
    """Show what a data folder holds, also while a broker uses it."""
    _check_folder(data)
    with _refusals():
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
    """Read every record and every message, and compare the index with the log. The broker must not run.

    Changes nothing. The exit code is 7 if anything is damaged.
    """
    with _refusals(), _held(data), _progress() as progress:
        checked = check(data, progress)
    _report(checked, data, as_json)


@store.command(name="repair")
def run_repair(
    data: Data = DEFAULT_DATA,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what is damaged; change nothing.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Take damaged messages out of a data folder and keep what is left of them in a file. The broker must not run."""
    if not dry_run:
        confirm(f"Take what is damaged out of {data}? Copy the folder first if you can.", yes)
    with _refusals(), _held(data), _progress() as progress:
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
        note(f"{data} is sound. Nothing was changed.")
        return
    if dry_run:
        _print_findings(repaired.findings)
        note("Nothing was changed.")
        return
    _print_findings([each for each in repaired.findings if each.kind != Kind.MESSAGE])
    if repaired.sums_rewritten:
        note("The checksums of the index were made anew: SQLite finds the index itself sound.")
    for lost in repaired.lost:
        note(lost.describe())
    for _, reason in repaired.unfit:
        note(reason)
    for file in repaired.removed:
        note(f"{file} was removed; what was sound in it was moved.")
    if repaired.file is not None:
        _print_messages(repaired.messages)
        lost_commits = sum(each.last_commit - each.first_commit + 1 for each in repaired.lost) + len(repaired.unfit)
        note(
            f"{_count(len(repaired.messages), 'message')} and {_count(lost_commits, 'commit')} were taken out. "
            f"What is left of them is in {repaired.file}."
        )
    note(f"{data} is repaired.")


@store.command(name="backup")
def run_backup(
    target: Annotated[Path, typer.Argument(help="A folder that does not exist, or is empty.")],
    data: Data = DEFAULT_DATA,
    verify: Annotated[bool, typer.Option(help="Check the copy.")] = True,
    as_json: AsJson = False,
) -> None:
    """Copy a data folder, also while a broker uses it. All that was acknowledged before is in the copy.

    The exit code is 7 if the copy has damaged messages, as the folder has.
    """
    _check_folder(data)
    with _refusals(), _progress() as progress:
        made = back_up(data, target, verify=verify, progress=progress)
    if as_json:
        checked = None if made.checked is None else _checked_as_json(made.checked, target)
        print_json({"target": str(target), "commit": made.commit, "bytes": made.bytes, "checked": checked})
    else:
        note(f"{target} has {data} through commit {made.commit}: {made.bytes:,} bytes.")
    if made.checked is not None and not made.checked.is_sound:
        if not as_json:
            _print_findings(made.checked.findings)
        fail(f"{data} has damage, and so has {target}: see `peeklock store check`", Exit.DAMAGED)


@store.command(name="restore")
def run_restore(
    backup: Annotated[Path, typer.Argument(help="A folder made by `peeklock store backup`.")],
    data: Data = DEFAULT_DATA,
    force: Annotated[
        bool, typer.Option("--force", help="Move what is in the data folder aside, under a name with the time.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a backup to a data folder, and check it before it is put in place. The broker must not run."""
    _check_folder(backup)
    with _refusals(), _progress() as progress:
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
            note(f"What was in {data} is in {made.moved_to} now.")
        note(f"{data} has {backup} through commit {made.commit}.")
    elif made.checked is not None:
        _print_findings(made.checked.findings)
    if not is_sound:
        fail(
            f"{backup} is damaged, and was not restored: `peeklock store repair --data {backup}` takes out what is",
            Exit.DAMAGED,
        )


def _report(checked: Checked, folder: Path, as_json: bool) -> None:
    if as_json:
        print_json(_checked_as_json(checked, folder))
    else:
        _print_findings(checked.findings)
        if checked.torn_bytes:
            note(
                f"The last {checked.torn_bytes} bytes of the log were never acknowledged: the next start removes them."
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
        note(f"{folder} is sound.")


def _print_findings(findings: list[Finding]) -> None:
    rows = [
        (each.kind, each.path or each.file.name, each.sequence_number or each.commit, each.text)
        for each in findings[:_SHOWN]
    ]
    if rows:
        print_table(("What", "Where", "Number", "Finding"), rows, numbers=("Number",))
    if len(findings) > _SHOWN:
        note(f"{len(findings) - _SHOWN:,} more are not shown: --json has them all.")


def _print_messages(messages: list[Finding]) -> None:
    if messages:
        rows = [(each.path, each.sequence_number, each.text) for each in messages[:_SHOWN]]
        print_table(("Taken out of", "Number", "Reason"), rows, numbers=("Number",))
    if len(messages) > _SHOWN:
        note(f"{len(messages) - _SHOWN:,} more are not shown: --json has them all.")


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
def _held(folder: Path) -> Iterator[None]:
    """No broker uses it meanwhile."""
    _check_folder(folder)
    lock = FolderLock(folder)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        fail(str(error), Exit.FAILED)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}", Exit.FAILED)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Bars on standard error, one for each thing that is done, if that is a terminal."""
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
