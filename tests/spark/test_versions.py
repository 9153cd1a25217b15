"""What is run on older versions of Spark is there, and the page says which versions those are."""

from __future__ import annotations

import re

from versions import CORE, PROJECT, TESTS, TOOLS, VERSIONS, requirements


def test_every_test_of_the_core_is_there() -> None:
    for test in CORE:
        module, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in (PROJECT / TESTS / module).read_text(), test


def test_the_page_names_the_versions() -> None:
    page = (PROJECT / "docs" / "spark.md").read_text()
    section = page.partition("## Versions of Spark")[2].partition("\n## ")[0]
    assert re.findall(r"4\.\d\.\d", section) == list(VERSIONS)


def test_the_tools_are_bounded_as_the_project_bounds_them() -> None:
    declared = ["azure-servicebus>=7", "hypothesis>=6,<7", "pytest-xdist>=3", "pytest>=8", "websocket-client>=1"]
    assert requirements(declared) == ["hypothesis>=6,<7", "pytest>=8", "websocket-client>=1"]
    assert len(requirements(declared)) == len(TOOLS)
