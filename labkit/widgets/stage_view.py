"""Report of a verification -> the view record of a grid of stages, and the record -> its static twin.

Rows are the stages of a block, columns the blocks; the stages before and after the blocks stand apart. The twin holds
words and signs only: they are the same on every machine, while errors below the budget are not.
"""

import math
from html import escape
from typing import Any, Literal, TypedDict

from labkit.report.verify import stage_json
from labkit.verification.report import Report
from labkit.verification.verdict import StageResult

Sign = Literal["same", "local", "inherited"]
SIGNS: dict[Sign, str] = {"same": "✓", "inherited": "→", "local": "✗"}
MEANINGS: dict[Sign, str] = {
    "same": "within rounding",
    "inherited": "off, but only because its inputs were",
    "local": "this operation itself is wrong",
}


class Cell(TypedDict):
    """One stage: its sign, a short figure, and everything known about it."""

    name: str
    sign: Sign
    mark: str
    used: str
    heat: int
    """Strength of the cell's colour, in percent; grows with the error."""
    detail: dict[str, Any]


class GridRow(TypedDict):
    """One stage in every block, or one stage outside the blocks."""

    label: str
    cells: list[Cell]


class GridView(TypedDict):
    """The whole grid and the verdict over it."""

    verdict: str
    headline: str
    blocks: int
    before: list[GridRow]
    inside: list[GridRow]
    after: list[GridRow]


def grid_view(report: Report) -> GridView:
    """Where every stage stands."""
    cells = {stage.name: _cell(stage) for stage in report.stages}
    blocks = 1 + max((int(name.split(".")[1]) for name in cells if name.startswith("h.")), default=-1)
    labels = [name.removeprefix("h.0.") for name in cells if name.startswith("h.0.")]
    outside = [name for name in cells if not name.startswith("h.")]
    first_after = outside.index("ln_f") if "ln_f" in outside else len(outside)
    return GridView(
        verdict=report.verdict,
        headline=report.headline(),
        blocks=blocks,
        before=[GridRow(label=name, cells=[cells[name]]) for name in outside[:first_after]],
        inside=[GridRow(label=label, cells=[cells[f"h.{i}.{label}"] for i in range(blocks)]) for label in labels],
        after=[GridRow(label=name, cells=[cells[name]]) for name in outside[first_after:]],
    )


def _cell(stage: StageResult) -> Cell:
    sign: Sign = "same" if stage.verdict == "same" else "inherited" if stage.cause == "inherited" else "local"
    return Cell(
        name=stage.name,
        sign=sign,
        mark=SIGNS[sign],
        used=short_ratio(stage.used),
        heat=heat(stage.used),
        detail=plain(stage_json(stage)),
    )


def heat(used: float) -> int:
    """Strength of colour for an error in units of its budget: up to 26 within rounding, 30 to 56 beyond.

    >>> heat(0.0), heat(1.0), heat(1000.0), heat(float("inf"))
    (6, 26, 43, 56)
    """
    if used <= 1:
        return round(6 + 20 * used)
    return round(30 + 26 * min(math.log10(used) / 6, 1)) if math.isfinite(used) else 56


def plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Infinities and NaN as words: a page cannot read them as JSON numbers.

    >>> plain({"used": float("inf"), "shape": [1, 2]})
    {'used': 'inf', 'shape': [1, 2]}
    """
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields.items()
    }


def short_ratio(value: float) -> str:
    """An error in units of its budget, in at most five characters.

    >>> short_ratio(0.034), short_ratio(7.23), short_ratio(81234.0), short_ratio(float("inf"))
    ('0.03', '7.2', '8e4', 'inf')
    """
    if value == float("inf"):
        return "inf"
    if value < 1:
        return f"{value:.2f}"
    if value < 100:
        return f"{value:.2g}"
    return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")


def grid_twin(view: GridView) -> str:
    """The grid as HTML: a sign for every stage, and what the signs mean."""
    head = "".join(f'<th scope="col">block {i}</th>' for i in range(view["blocks"]))
    wide = view["blocks"]
    rows = [_twin_row(row, wide) for row in view["before"]]
    rows += [_twin_row(row, 1) for row in view["inside"]]
    rows += [_twin_row(row, wide) for row in view["after"]]
    legend = ", ".join(f"{SIGNS[sign]} {meaning}" for sign, meaning in MEANINGS.items())
    return (
        f"<table><caption>Verdict: <b>{escape(view['verdict'])}</b>. {escape(legend)}</caption>"
        f'<thead><tr><th scope="col">stage</th>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _twin_row(row: GridRow, span: int) -> str:
    wide = f' colspan="{span}"' if span > 1 else ""
    marks = [f"<b>{cell['mark']}</b>" if cell["sign"] == "local" else cell["mark"] for cell in row["cells"]]
    cells = "".join(f'<td{wide} style="text-align:center">{mark}</td>' for mark in marks)
    return f'<tr><th scope="row">{escape(row["label"])}</th>{cells}</tr>'
