"""Build the site of the documentation, strictly: `python -m tools.site`, or `make docs`.

The pages are copied, with their links to the rest of the repository rewritten and their diagrams drawn. The site is
generated and then checked: a broken link fails the build, and so does any resource that a browser would load from
another host.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tools.site.check import problems
from tools.site.diagrams import with_pictures
from tools.site.repository import ROOT, repository_url, with_repository_links

PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"


def main() -> int:
    for folder in (PAGES, SITE):
        shutil.rmtree(folder, ignore_errors=True)
    _copy_pages(ROOT / "docs", PAGES)
    generator = Path(sys.executable).with_name("zensical")
    built = subprocess.run(
        [generator, "build", "--strict", "--clean"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if built.returncode != 0:
        print(built.stdout + built.stderr, file=sys.stderr)
        return 1
    found = list(problems(SITE))
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    return 1 if found else 0


def _copy_pages(source: Path, target: Path) -> None:
    shutil.copytree(source, target)
    url = repository_url()
    for page in target.rglob("*.md"):
        text = with_pictures(page.read_text(), page, target / "diagrams")
        page.write_text(with_repository_links(text, page.relative_to(target).as_posix(), url))


if __name__ == "__main__":
    sys.exit(main())
