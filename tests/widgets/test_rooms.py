"""The widgets' room: what it exports, what it loads, and what its scripts may not do."""

import re
import subprocess
import sys

import pytest

import labkit.widgets
from labkit.widgets.base import ASSETS

SCRIPTS = sorted(ASSETS.glob("*.js"))


def test_every_name_is_there() -> None:
    for name in labkit.widgets.__all__:
        assert callable(getattr(labkit.widgets, name))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = labkit.widgets.Nothing


def test_the_merge_stepper_loads_without_torch_and_matplotlib() -> None:
    code = "import sys, labkit.widgets; labkit.widgets.MergeStepper('a'); print({'torch', 'matplotlib.pyplot'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("path", [*SCRIPTS, ASSETS / "lab.css"], ids=lambda path: path.name)
def test_assets_ask_nothing_of_the_network_and_parse_no_markup(path: "object") -> None:
    text = path.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    assert not re.search(r"https?:|import\s*\(|@import|\burl\(|innerHTML|insertAdjacentHTML|\beval\b", text)


def test_motion_is_only_for_those_who_did_not_ask_for_less() -> None:
    style = (ASSETS / "lab.css").read_text(encoding="utf-8")
    before, _query, _after = style.partition("@media (prefers-reduced-motion: no-preference)")
    assert "transition" not in before
    assert "animation" not in before
