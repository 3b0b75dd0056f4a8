"""What ``labkit doctor`` found -> a table for the terminal."""

from rich.console import Group, RenderableType
from rich.text import Text

from labkit.hub.doctor import Diagnosis
from labkit.report.plain import columns, plain

_STYLES = {"ok": "green", "note": "yellow", "missing": "bold red"}


def render_diagnosis(diagnosis: Diagnosis) -> RenderableType:
    """Every finding in its group, and one line of summary."""
    table = columns(("", "what", "state", "found"))
    group = ""
    for each in diagnosis.findings:
        heading = each.group if each.group != group else ""
        group = each.group
        table.add_row(heading, plain(each.name), Text(each.state, style=_STYLES[each.state]), plain(each.detail))
    missing = [each.name for each in diagnosis.findings if each.state == "missing"]
    summary = f"missing: {', '.join(missing)}" if missing else "Nothing that labkit needs is missing."
    return Group(table, plain(summary))
