"""Kill matrix, and the list of faults -> terminal tables, and JSON."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from labkit.verification.faults import Fault
from labkit.verification.kill_matrix import Cell, KillMatrix

if TYPE_CHECKING:
    from rich.console import RenderableType

LETTERS = {
    "cosine 0.997": "c",
    "nmse 1e-2": "n",
    "allclose 1e-4": "4",
    "allclose 1e-3": "3",
    "top-1": "1",
    "top-5": "5",
}
"""A column of one letter for each rule, so that a row fits into 80 columns."""


def render_kill_matrix(matrix: KillMatrix) -> "RenderableType":
    """The matrix for a terminal: a row a cell; a rule's column says whether it would have objected."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from labkit.report.plain import plain_lines

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("fault", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("named", overflow="fold")
    for name in ("effect", "floor"):
        table.add_column(name, justify="right", no_wrap=True)
    for letter in LETTERS.values():
        table.add_column(letter, justify="center", no_wrap=True)
    for cell in matrix.cells:
        table.add_row(*_row(cell), style=None if cell.named_right else "dim" if not cell.killed else "red")
    rules = ", ".join(f"{letter} {rule}" for rule, letter in LETTERS.items())
    legend = (
        "effect: the fault's largest error in budgets; floor: the smallest share of the fault that is still seen",
        f"x where another tool's rule would have objected, to any stage or to the logits' order: {rules}",
    )
    style = "bold green" if matrix.return_code == 0 else "bold red"
    return Group(table, *map(Text, legend), plain_lines(matrix, style))


def _row(cell: Cell) -> list[str]:
    named = "" if not cell.killed else "tie" if cell.tied else "yes" if cell.named_right else cell.finding or "no"
    return [
        f"{cell.name}:{cell.block}",
        cell.outcome,
        named,
        f"{cell.effect:.2g}",
        "" if cell.floor is None else f"{cell.floor:.0e}",
        *("x" if cell.rules[rule] else "-" for rule in LETTERS),
    ]


def kill_matrix_json(matrix: KillMatrix) -> dict[str, Any]:
    """The matrix as plain JSON values: ``faults`` has one entry a cell."""
    return {
        "checkpoint": matrix.checkpoint,
        "summary": str(matrix).splitlines()[0],
        "survivors": [f"{cell.name}:{cell.block}" for cell in matrix.survivors],
        "misnamed": [f"{cell.name}:{cell.block}" for cell in matrix.misnamed],
        "never_killed": list(matrix.never_killed),
        "faults": [_cell_json(cell) for cell in matrix.cells],
    }


def _cell_json(cell: Cell) -> dict[str, Any]:
    return {
        "name": cell.name,
        "block": cell.block,
        "outcome": cell.outcome,
        "killed": cell.killed,
        "equivalent": cell.equivalent,
        "found_at": cell.found_at,
        "expected_at": cell.expected_at,
        "finding": cell.finding,
        "expected_finding": cell.expected_finding,
        "tied": list(cell.tied),
        "others": list(cell.others),
        "effect": cell.effect,
        "floor": cell.floor,
        "rules": dict(cell.rules),
    }


def render_faults(faults: Iterable[Fault]) -> "RenderableType":
    """The list of faults for a terminal: name, the first stage that shows it, what it does."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("fault", no_wrap=True)
    table.add_column("planted at", no_wrap=True)
    table.add_column("what it does", overflow="fold")
    for fault in faults:
        table.add_row(fault.name, _planted_at(fault), fault.mistake)
    return Group(table, Text("--plant NAME:BLOCK plants it in the block i = BLOCK (0 unless given)"))


def faults_json(faults: Iterable[Fault]) -> dict[str, Any]:
    """The list of faults as plain JSON values."""
    rows = [
        {"name": fault.name, "planted_at": _planted_at(fault), "place": fault.place, "mistake": fault.mistake}
        for fault in faults
    ]
    return {"faults": rows}


def _planted_at(fault: Fault) -> str:
    return fault.stage.replace("{b}", "{i}")
