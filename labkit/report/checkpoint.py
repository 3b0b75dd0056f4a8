"""Records of the checkpoint room -> rich renderables, HTML, and plain values for JSON.

Names come from files that anybody may have written: they are escaped before they reach a terminal or a page.
"""

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from labkit.checkpoint import LoadReport, TensorRow
from labkit.checkpoint.inventory import Count, Inventory
from labkit.checkpoint.records import Statistics
from labkit.report.plain import columns, plain
from labkit.report.storage import size_text

_RIGHT = ("bytes", "min", "max", "mean", "std")


def render_load_report(report: LoadReport) -> RenderableType:
    """Every tensor of the report in a table, and the notes under it."""
    names, rows = _table(report)
    table = columns(names, right=_RIGHT, title=plain(_title(report)))
    for row in rows:
        table.add_row(*(plain(cell) for cell in row))
    return Group(table, *(plain(f"- {note}") for note in report.notes))


def load_report_html(report: LoadReport) -> str:
    """The same as a table of HTML, every name escaped."""
    names, rows = _table(report)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{_markup(cell)}</td>" for cell in row) + "</tr>" for row in rows)
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
    parts += [plain(f"{each.name} = {each.formula}") for each in inventory.by_kind]
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


def _table(report: LoadReport) -> tuple[list[str], list[list[str]]]:
    """Column titles and cells; a column that would say nothing is left out."""
    shards = len({row.shard for row in report.rows}) > 1
    statistics = any(row.statistics is not None for row in report.rows)
    fills = [_fills(row) for row in report.rows]
    columns = ["tensor", *(["shard"] if shards else []), "bytes", "dtype", "shape", *(["fills"] if any(fills) else [])]
    columns += ["min", "max", "mean", "std"] if statistics else []
    rows = []
    for row, filled in zip(report.rows, fills, strict=True):
        span = "-" if row.begin is None else f"{row.begin:,}-{row.end:,}"
        cells = [row.name, *([row.shard] if shards else []), span, row.dtype, str(list(row.shape))]
        cells += [filled] if any(fills) else []
        rows.append(cells + (_numbers(row.statistics) if statistics else []))
    return columns, rows


def _fills(row: TensorRow) -> str:
    """The parameter that the tensor fills where its name does not tell, or why none; and what is odd about its values."""
    named = row.name.removeprefix("transformer.") == row.parameter
    parts = [
        "" if named else row.parameter or f"none ({row.use}: {row.reason})",
        "transposed" if row.transposed else "",
    ]
    if row.statistics is not None and row.statistics.nonfinite:
        parts.append(f"{row.statistics.nonfinite} values are not finite")
    return ", ".join(filter(None, parts))


def _numbers(found: Statistics | None) -> list[str]:
    if found is None:
        return ["-"] * 4
    values = (found.minimum, found.maximum, found.mean, found.std)
    return ["-" if value is None else f"{value:.4g}" for value in values]


def _markup(text: str) -> str:
    return escape(plain(text).plain)


def _count_table(title: str, counts: Sequence[Count]) -> Table:
    table = columns(("",), ("tensors", "parameters", "by formula", "bytes"), title=title)
    for each in counts:
        style = "" if each.numel == each.expected_numel or each.formula == "none" else "red"
        table.add_row(
            plain(each.name),
            f"{each.tensors:,}",
            f"{each.numel:,}",
            f"{each.expected_numel:,}",
            f"{each.nbytes:,}",
            style=style,
        )
    return table
