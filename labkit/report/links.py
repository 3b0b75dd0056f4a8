"""The chain of links -> a line for a terminal, and JSON."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.verification.links import Link, first_broken

if TYPE_CHECKING:
    from rich.console import RenderableType


def chain_line(links: Sequence[Link]) -> str:
    """The chain in one line, with the first broken link.

    >>> chain_line([Link(name="header", verdict="holds", detail=""), Link(name="taps", verdict="broken", detail="embed")])
    'header > taps: broken at taps (embed)'
    """
    checked = [link for link in links if link.verdict != "not checked"]
    broken = first_broken(checked)
    if broken is not None:
        until = checked[: checked.index(broken) + 1]
        return f"{' > '.join(link.name for link in until)}: broken at {broken.name} ({broken.detail})"
    left = [link.name for link in links if link.verdict == "not checked"]
    rest = f"; not checked: {', '.join(left)}" if left else ""
    return f"{' > '.join(link.name for link in checked)}: every link holds{rest}"


def render_chain(links: Sequence[Link]) -> "RenderableType":
    """The line for a terminal."""
    from labkit.report.plain import plain

    return plain(f"chain    {chain_line(links)}", "red" if first_broken(links) else "")


def chain_json(links: Sequence[Link]) -> list[dict[str, Any]]:
    """The links as plain JSON values."""
    return [dataclasses.asdict(link) for link in links]
