"""docs/storage.md says what the code does: every rule, every dtype, and what was measured of other readers."""

import re
from pathlib import Path

import pytest

from labkit.storage import DTYPES, RULES
from labkit.storage.battery import crafted_files
from labkit.storage.loaders import LOADERS, behaviours_of


@pytest.fixture(scope="module")
def text(root: Path) -> str:
    return (root / "docs" / "storage.md").read_text(encoding="utf-8")


def test_every_rule_is_in_the_table_in_order(text: str) -> None:
    table = text.split("## Rules, by code")[1].split("\n## ")[0]
    assert dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", table, re.MULTILINE)) == dict(RULES)


def test_every_dtype_is_in_the_table(text: str) -> None:
    table = text.split("## Dtypes")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (\d+) \| ([^|]+) \|", table, re.MULTILINE)
    assert rows == [(dtype.code, str(dtype.bits), dtype.meaning) for dtype in DTYPES.values()]


def test_what_other_readers_do_is_in_the_table(text: str) -> None:
    table = text.split("## What other readers do")[1].split("\n## ")[0]
    assert f"| code | {' | '.join(LOADERS)} |" in table
    accepted = [code for code in RULES if any(each.accepted for each in behaviours_of(code))]
    assert re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE) == accepted


def test_the_size_of_the_battery(text: str) -> None:
    assert f"on {len(crafted_files())} crafted files" in text
