"""What the pages of the documentation print: their code blocks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
README = ROOT / "README.md"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def block_with(page: Path, language: str, text: str) -> str:
    """The one block that has the text."""
    (block,) = [block for block in blocks(page, language) if text in block]
    return block


def commands(block: str) -> list[str]:
    """The lines that a reader types, without what is printed in answer and without remarks."""
    lines = block.splitlines()
    typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")] or lines
    return [command for line in typed if (command := line.partition(" #")[0].strip())]
