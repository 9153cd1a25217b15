"""Addresses of repository files on the web, for links from the site to files outside `docs`.

On GitHub a relative link such as `../examples/batch.py` works. On the site there is no such page, so the link is
replaced by the address of the file in the repository, which is declared in `pyproject.toml`.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).parents[2]
BRANCH: Final = "main"
_LINK: Final = re.compile(r"(\]\()((?:\.\./)+[^)\s]+)(\))")
_CODE: Final = re.compile(r"^(?: *)```.*?^ *```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


def repository_url() -> str:
    """Return the address of the repository, from `[project.urls]`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["urls"]["Repository"]).rstrip("/")


def with_repository_links(markdown: str, page: str, url: str, root: Path = ROOT) -> str:
    """Replace links to files outside `docs` by links to the repository. Returns the text of the page.

    `page` is the page's path below `docs`. Links to files that do not exist are kept, so that the build reports
    them as broken. Code is not changed.
    """

    def linked(match: re.Match[str]) -> str:
        path, hash_sign, anchor = match[2].partition("#")
        target = _normal(PurePosixPath("docs", page).parent / path)
        if target is None or target.parts[:1] == ("docs",) or not (root / target).exists():
            return match[0]
        kind = "tree" if (root / target).is_dir() else "blob"
        return f"{match[1]}{url}/{kind}/{BRANCH}/{target}{hash_sign}{anchor}{match[3]}"

    parts = []
    end = 0
    for code in _CODE.finditer(markdown):
        parts += [_LINK.sub(linked, markdown[end : code.start()]), code[0]]
        end = code.end()
    return "".join([*parts, _LINK.sub(linked, markdown[end:])])


def _normal(path: PurePosixPath) -> PurePosixPath | None:
    """Return the path without `..`; None if it is outside the repository."""
    found: list[str] = []
    for part in path.parts:
        if part != "..":
            found.append(part)
        elif found:
            found.pop()
        else:
            return None
    return PurePosixPath(*found)
