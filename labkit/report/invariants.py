"""Results of invariants -> a terminal table, and JSON."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.verification.invariants import InvariantResult, return_code
from labkit.words import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

STYLES = {"held": "green", "broken": "bold red", "not applicable": "dim"}


def render_invariants(engine: str, results: Sequence[InvariantResult]) -> "RenderableType":
    """One row an invariant, and the outcome."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from labkit.report.plain import plain

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for result in results:
        table.add_row(plain(result.name), Text(result.verdict, style=STYLES[result.verdict]), plain(result.detail))
    title = plain(f"{engine}: properties that hold whatever the weights", "bold")
    outcome = Text(headline(results), style="bold red" if return_code(results) == 1 else "bold")
    return Group(title, table, outcome)


def headline(results: Sequence[InvariantResult]) -> str:
    """The outcome in one sentence.

    >>> headline([InvariantResult(name="causality", verdict="held", detail="")])
    '1 of 1 invariant holds'
    """
    broken = [result.name for result in results if result.verdict == "broken"]
    held = sum(result.verdict == "held" for result in results)
    verb = "holds" if held == 1 else "hold"
    away = len(results) - held - len(broken)
    more = f", {away} not applicable" if away else ""
    if broken:
        return f"broken: {', '.join(broken)} ({held} {verb}{more})"
    return f"{held} of {counted(len(results), 'invariant')} {verb}{more}"


def invariants_json(engine: str, results: Sequence[InvariantResult]) -> dict[str, Any]:
    """The results as plain JSON values."""
    return {
        "engine": engine,
        "headline": headline(results),
        "return_code": return_code(results),
        "invariants": [dataclasses.asdict(result) for result in results],
    }
