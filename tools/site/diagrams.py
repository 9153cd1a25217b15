"""Mermaid diagrams as SVG files.

GitHub renders Mermaid blocks itself. On the site a browser would load Mermaid from another host, so the build renders
the diagrams. A diagram that cannot be rendered fails the build.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Final

import mermaidx

_BLOCK: Final = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TITLE: Final = re.compile(r"^\s*accTitle: *(.+?) *$", re.MULTILINE)


def with_pictures(markdown: str, page: Path, folder: Path) -> str:
    """Replace each Mermaid block of a page by an image, which is written to the folder. Returns the text."""

    def picture(match: re.Match[str]) -> str:
        title = _TITLE.search(match[1])
        if title is None:
            raise ValueError(
                f"{page.name}: a diagram requires a line 'accTitle: …', which becomes the image's alternative text"
            )
        file = folder / f"{hashlib.sha256(match[1].encode()).hexdigest()[:16]}.svg"
        folder.mkdir(exist_ok=True)
        file.write_text(_drawn(match[1]))
        return f"![{title[1]}]({Path(os.path.relpath(file, page.parent)).as_posix()})"

    return _BLOCK.sub(picture, markdown)


def _drawn(source: str) -> str:
    svg: str = mermaidx.render(source).svg()
    size = re.search(r' viewBox="\S+ \S+ (\S+) (\S+)"', svg)
    assert size is not None, "every diagram has a viewBox"
    # Its natural size, and a white background also on dark pages, because its lines are dark.
    svg = svg.replace(' width="100%"', f' width="{size[1]}" height="{size[2]}"', 1)
    return svg.replace("background-color: transparent", "background-color: white", 1)
