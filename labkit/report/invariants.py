"""Results of invariants -> a terminal table, and JSON."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.verification.invariants import InvariantResult, return_code
from labkit.words import counted, listed

if TYPE_CHECKING:
    from rich.console import RenderableType

STYLES = {"held": "green", "broken": "bold red", "not applicable": "dim"}


def render_invariants(
    engine: str, results: Sequence[InvariantResult], *, planted: Sequence[str] = ()
) -> "RenderableType":
    """One row an invariant, and the outcome; ``planted``: faults of which a broken one is the proof that they are seen."""
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
    style = "bold red" if return_code(results) == 1 and not planted else "bold"
    outcome = plain(headline(results, planted=planted), style)
    return Group(title, table, outcome)


def headline(results: Sequence[InvariantResult], *, planted: Sequence[str] = ()) -> str:
    """The outcome in one sentence.

    >>> held = InvariantResult(name="causality", verdict="held", detail="")
    >>> headline([held]), headline([held], planted=["relu:1"])
    ('1 of 1 invariant holds', 'relu:1, planted on purpose, breaks none of them: 1 of 1 invariant holds')
    """
    broken = [result.name for result in results if result.verdict == "broken"]
    held = sum(result.verdict == "held" for result in results)
    verb = "holds" if held == 1 else "hold"
    away = len(results) - held - len(broken)
    more = f", {away} not applicable" if away else ""
    faults, breaks = listed(planted, most=len(planted) + 1), "breaks" if len(planted) == 1 else "break"
    if broken and planted:
        return f"{faults}, planted on purpose, {breaks} {', '.join(broken)}, as a fault should ({held} {verb}{more})"
    if broken:
        return f"broken: {', '.join(broken)} ({held} {verb}{more})"
    told = f"{held} of {counted(len(results), 'invariant')} {verb}{more}"
    return f"{faults}, planted on purpose, {breaks} none of them: {told}" if planted else told


def invariants_json(engine: str, results: Sequence[InvariantResult], *, planted: Sequence[str] = ()) -> dict[str, Any]:
    """The results as plain JSON values."""
    return {
        "engine": engine,
        "planted": list(planted),
        "headline": headline(results, planted=planted),
        "return_code": return_code(results),
        "invariants": [dataclasses.asdict(result) for result in results],
    }
