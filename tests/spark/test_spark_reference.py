"""The page on Spark tells the truth: its tables are those of the code, and its programs name options that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from peeklock.spark.options import OPTIONS
from peeklock.spark.reference import MEANINGS, TABLES, page
from peeklock.spark.rows import COLUMNS

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"


def test_the_tables_in_the_documentation_are_those_of_the_code() -> None:
    """If not: python -m peeklock.spark.reference docs/spark.md"""
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall("<!-- made: (.*?) -->", text) == list(TABLES)
    assert page(text) == text


def test_every_column_is_explained() -> None:
    assert tuple(MEANINGS) == COLUMNS


def test_every_table_is_valid_markdown() -> None:
    for table in TABLES.values():
        text = re.sub(r"`[^`]*`", "", table())
        assert "<" not in text
        assert len({line.replace("\\|", "").count("|") for line in text.splitlines()}) == 1


def test_the_programs_can_be_parsed_and_name_options_that_there_are() -> None:
    of_spark = {"checkpointLocation", "path"}
    known = {option.name for option in OPTIONS.values()} | of_spark
    programs = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    named: set[str] = set()
    for program in programs:
        for node in ast.walk(ast.parse(program)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "option":
                (name, _) = node.args
                assert isinstance(name, ast.Constant)
                named.add(str(name.value))
    assert named
    assert named <= known


def test_options_that_the_text_names_with_a_value_are_there() -> None:
    known = {option.name for option in OPTIONS.values()}
    text = PAGE.read_text(encoding="utf-8")
    assert set(re.findall(r"`(\w+)=[^`]*`", text)) <= known
