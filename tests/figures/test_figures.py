"""Every figure: drawn without pyplot, titled, the same bytes for the same record, readable on any page."""

import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import torch

from labkit.figures.errors import draw_error_map, draw_kill_matrix, draw_ulp_histogram, draw_waterfall
from labkit.figures.inside import draw_attention, draw_lens
from labkit.figures.ladder import draw_ladder
from labkit.figures.rounding import draw_growth, draw_sum_errors
from labkit.figures.style import INK, PAPER, to_png
from labkit.verification import verify
from labkit.verification.kill_matrix import Cell, KillMatrix


def ladder() -> object:
    return draw_ladder(verify(prompts=["It is a truth"], plant="qkv-order:1", tokens=0))


FIGURES: dict[str, Callable[[], object]] = {
    "attention": lambda: draw_attention(torch.eye(5).repeat(8, 1, 1), list("abcde"), title="eight heads"),
    "error map": lambda: draw_error_map(torch.zeros(4, 9), torch.eye(9)[:4] * 1e-5, title="four rows"),
    "ulps": lambda: draw_ulp_histogram(torch.ones(100), torch.ones(100) + 2.0**-23, title="one ULP"),
    "growth": lambda: draw_growth({"float32": {"embed": 1e-8, "logits": 1e-6}}, title="growth"),
    "lens": lambda: draw_lens({"embed": ["$x", "\n"]}, {"embed": [0.1, 0.9]}, ["a", "$"], title="lens"),
    "sums": lambda: draw_sum_errors([1e-6, -1e-6, 0.0], probable=1e-5, title="sums"),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_titled_and_drawn_alike(name: str) -> None:
    first, second = FIGURES[name](), FIGURES[name]()
    assert first.get_suptitle()  # type: ignore[attr-defined]
    png = to_png(first)  # type: ignore[arg-type]
    assert png.startswith(b"\x89PNG")
    assert png == to_png(second)  # type: ignore[arg-type]


def test_the_ladder_names_the_stage_in_its_title() -> None:
    figure = ladder()
    assert figure.get_suptitle() == "First stage beyond rounding: h.1.attn.q"  # type: ignore[attr-defined]
    began = time.monotonic()
    to_png(figure)  # type: ignore[arg-type]
    assert (
        time.monotonic() - began < 30
    )  # a bound against runaway drawing; the goal is measured in `labkit bench notebooks`


def test_the_waterfall_marks_what_is_beyond_its_budget() -> None:
    figure = draw_waterfall(verify(prompts=["It is a truth"], plant="qkv-order:1", tokens=0).stages)
    bars = {tuple(patch.get_facecolor()) for patch in figure.axes[0].patches}  # type: ignore[attr-defined]
    assert len(bars) == 3  # within rounding, inherited, wrong by itself


def test_the_kill_matrix_has_a_mark_a_cell() -> None:
    cells = tuple(
        Cell(
            name=name,
            block=block,
            outcome=outcome,
            found_at=None,
            expected_at="h.0.ln_1",
            finding=None,
            expected_finding=name,
            tied=(),
            others=(),
            effect=0.0,
            floor=None,
            rules={},
        )
        for name, block, outcome in (
            ("a", 0, "killed"),
            ("a", 3, "equivalent"),
            ("b", 0, "below floor"),
            ("b", 3, "survived"),
        )
    )
    figure = draw_kill_matrix(KillMatrix(checkpoint="tiny", cells=cells))
    assert [text.get_text() for text in figure.axes[0].texts] == ["X", "=", "~", "?"]
    assert figure.get_suptitle() == "1 of 4 planted faults killed, 1 survived"


def test_ink_on_paper_is_legible() -> None:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    assert (luminance(PAPER) + 0.05) / (luminance(INK) + 0.05) > 7


def test_no_figure_imports_pyplot() -> None:
    code = (
        "import sys\n"
        "from labkit.figures import errors, inside, ladder, merges, rounding, storage, style\n"
        "style.to_png(rounding.draw_sum_errors([1e-6], probable=1e-5, title='x'))\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
