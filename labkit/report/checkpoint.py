"""Records of the checkpoint room -> rich renderables, HTML, and plain values for JSON.

Names come from files that anybody may have written: they are escaped before they reach a terminal or a page.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from labkit.checkpoint import LoadReport, TensorRow
from labkit.checkpoint.inventory import Count, Inventory
from labkit.report.storage import plain, size_text

_COLUMNS = ("parameter", "tensor", "shard", "bytes", "dtype", "shape", "note")
_STATISTICS = ("min", "max", "mean", "std")


def render_load_report(report: LoadReport) -> RenderableType:
    """Every tensor of the report in a table, and the notes under it."""
    table = Table(title=plain(_title(report)), title_justify="left")
    statistics = _has_statistics(report)
    for column in (*_COLUMNS, *(_STATISTICS if statistics else ())):
        table.add_column(column, justify="right" if column == "bytes" or column in _STATISTICS else "left")
    for row in report.rows:
        table.add_row(*(plain(cell) for cell in _cells(row, statistics=statistics)))
    return Group(table, *(plain(f"- {note}") for note in report.notes))


def load_report_html(report: LoadReport) -> str:
    """The same as a table of HTML, every name escaped."""
    statistics = _has_statistics(report)
    head = "".join(f"<th>{escape(each)}</th>" for each in (*_COLUMNS, *(_STATISTICS if statistics else ())))
    body = "".join(
        "<tr>" + "".join(f"<td>{_markup(cell)}</td>" for cell in _cells(row, statistics=statistics)) + "</tr>"
        for row in report.rows
    )
    notes = "".join(f"<li>{_markup(note)}</li>" for note in report.notes)
    return (
        f'<div class="labkit-load-report"><p>{_markup(_title(report))}</p><ul>{notes}</ul>'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def load_report_json(report: LoadReport) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "folder": report.folder,
        "mode": report.mode,
        "notes": list(report.notes),
        "tensors": [asdict(row) | {"numel": row.numel} for row in report.rows],
    }


def render_inventory(inventory: Inventory) -> RenderableType:
    """Counts by kind, by block and of extra tensors, beside the formula."""
    parts: list[RenderableType] = [plain(str(inventory))]
    parts.append(_count_table("By kind", inventory.by_kind))
    parts.append(_count_table("By block", inventory.by_block))
    if inventory.extra:
        parts.append(_count_table("Beyond the parameters", inventory.extra))
    stored = ", ".join(f"{code} {size_text(nbytes)}" for code, nbytes in inventory.dtypes.items())
    parts.append(plain(f"stored: {stored}"))
    parts += [plain(f"- {note}") for note in inventory.notes]
    if inventory.problem is not None:
        parts.append(Text("This would not load: ", style="bold red") + plain(inventory.problem))
    return Group(*parts)


def inventory_json(inventory: Inventory) -> dict[str, Any]:
    """The inventory as plain values, with its totals."""
    return asdict(inventory) | {
        "numel": inventory.numel,
        "expected_numel": inventory.expected_numel,
        "nbytes": inventory.nbytes,
        "return_code": inventory.return_code,
    }


def _title(report: LoadReport) -> str:
    return str(report).split("\n")[0] + f", {report.mode}"


def _has_statistics(report: LoadReport) -> bool:
    return any(row.statistics is not None for row in report.rows)


def _cells(row: TensorRow, *, statistics: bool) -> list[str]:
    note = " ".join(filter(None, ["transposed" if row.transposed else "", row.reason]))
    cells = [
        row.parameter or f"({row.use})",
        row.name,
        row.shard,
        "-" if row.begin is None else f"{row.begin:,}-{row.end:,}",
        row.dtype,
        str(list(row.shape)),
        note,
    ]
    if statistics:
        found = row.statistics
        values: Iterable[float | None] = (
            (found.minimum, found.maximum, found.mean, found.std) if found is not None else (None,) * 4
        )
        cells += ["-" if value is None else f"{value:.4g}" for value in values]
        if found is not None and found.nonfinite:
            cells[6] = f"{note} {found.nonfinite} values are not finite".strip()
    return cells


def _markup(text: str) -> str:
    return escape(plain(text).plain)


def _count_table(title: str, counts: Sequence[Count]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("", "tensors", "parameters", "by formula", "bytes"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_column("formula")
    for each in counts:
        style = "" if each.numel == each.expected_numel or each.formula == "none" else "red"
        table.add_row(
            plain(each.name),
            f"{each.tensors:,}",
            f"{each.numel:,}",
            f"{each.expected_numel:,}",
            f"{each.nbytes:,}",
            each.formula,
            style=style,
        )
    return table
