"""An explanation of one element -> text for a terminal, and JSON."""

import dataclasses
from typing import TYPE_CHECKING, Any

from labkit.verification.explanation import Explanation, Term

if TYPE_CHECKING:
    from rich.console import RenderableType


def render_explanation(made: Explanation, *, top: int) -> "RenderableType":
    """The formula, what comes before it, the ``top`` largest terms with the bytes of their weights, and the sum."""
    from rich.console import Group

    from labkit.report.plain import plain

    lines: list[RenderableType] = [
        plain(f"{made.element}, axes {', '.join(made.axes)}", "bold"),
        plain(f"  = {made.formula}"),
        *(plain(f"  {factor.value:+.9g}  {factor.label}") for factor in made.before),
    ]
    if made.terms:
        lines.append(_table(made, top))
    lines.append(plain(f"{made.value:+.9g}  the sum, in float64, of terms whose sizes add up to {made.magnitude:.3g}"))
    if made.held is None:
        lines.append(plain(f"{made.engine} does not hold {made.element}"))
    else:
        lines.append(plain(f"{made.held:+.9g}  what {made.engine} holds: {_difference(made)}", "bold"))
    return Group(*lines)


def _difference(made: Explanation) -> str:
    assert made.held is not None
    off = abs(made.held - made.value)
    if off == 0:
        return "the same"
    step = made.unit * made.magnitude
    return f"{off:.2e} from it" + (f", {off / step:.2g} of one rounding of those sizes" if step > 0 else "")


def _table(made: Explanation, top: int) -> "RenderableType":
    from rich.table import Table

    from labkit.report.plain import plain_lines

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("term", justify="right", no_wrap=True)
    table.add_column("factors", overflow="fold")
    table.add_column("byte offset", overflow="fold")
    shown = made.largest(top)
    for term in shown:
        factors = "\n".join(f"{factor.value:+.6g} {factor.label}" for factor in term.factors)
        places = "\n".join("" if factor.place is None else str(factor.place) for factor in term.factors)
        table.add_row(f"{term.value:+.6g}", plain_lines(factors), plain_lines(places))
    left = len(made.terms) - len(shown)
    if left:
        rest = made.value - sum(term.value for term in shown)
        table.add_row(f"{rest:+.6g}", plain_lines(f"{left} more"), "")
    return table


def explanation_json(made: Explanation) -> dict[str, Any]:
    """The whole explanation as plain JSON values, every term in order of the sum."""
    return {
        **dataclasses.asdict(dataclasses.replace(made, terms=())),
        "terms": [_term(term) for term in made.terms],
        "value": made.value,
        "magnitude": made.magnitude,
    }


def _term(term: Term) -> dict[str, Any]:
    return {"value": term.value, **dataclasses.asdict(term)}
