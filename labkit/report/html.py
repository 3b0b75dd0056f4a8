"""Report of a verification -> one offline HTML page to attach to a bug report.

No script and nothing fetched: style and picture are inside, light and dark by the reader's setting, and every string
that came from a file or an engine is escaped.
"""

import math
import platform
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from importlib.metadata import version
from os import PathLike, fspath

from labkit.report.coverage import by_places, skipped_line
from labkit.report.html_parts import Markup, Row, code, element, joined, table
from labkit.report.html_style import STYLE
from labkit.report.verify import (
    LEGEND,
    agreement_line,
    control_line,
    pair_at_worst,
    short,
    token_line,
    ulp_text,
    unmeasured,
)
from labkit.report.waterfall import draw_waterfall
from labkit.verification.detective import Coverage
from labkit.verification.finding import Finding
from labkit.verification.links import Link
from labkit.verification.report import Report
from labkit.verification.tensor_places import TensorPlace
from labkit.verification.verdict import StageResult
from labkit.words import counted

PACKAGES = ("labkit", "torch", "transformers", "safetensors", "tokenizers")
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The page may load nothing, whatever a file's strings say."""

TONES = {"same": "same", "differs": "differs", "cannot tell": "maybe"}
MARKS = {"holds": ("✓", "ok"), "broken": ("✗", "bad"), "not checked": ("–", "off")}
LONG_TABLE = 20
"""Stages that differ above which they are shown only in the folded table of all."""


def verification_page(
    report: Report,
    *,
    links: Sequence[Link] = (),
    places: Mapping[str, TensorPlace] | None = None,
    shortest: Mapping[str, str | None] | None = None,
    folder: str | PathLike[str] | None = None,
) -> str:
    """The whole page, dated today.

    ``links``: the chain; ``places``: where the tensors that findings name lie in their files; ``shortest``: for each
    mistake that the prompts could not have shown everywhere the shortest prompt that would (``shortest_prompts``); ``folder``:
    the checkpoint as it was named, for the command that runs it again (default: the embedded one).

    >>> import labkit
    >>> page = verification_page(labkit.verify(ids=[[1, 2, 3]], tokens=0))
    >>> page.startswith("<!doctype html>"), "<script" in page
    (True, False)
    """
    title = f"{report.verdict}: {report.engine} on {report.checkpoint}"
    body = joined(
        (
            _head(report),
            _findings(report, places or {}),
            _chain(links),
            _waterfall(report.stages),
            _stages(report.stages),
            _outcome(report),
            _controls(report),
            _coverage(report.coverage, shortest or {}),
            _prompts(report),
            _circumstances(report, folder),
        )
    )
    head = joined(
        (
            Markup('<meta charset="utf-8">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
            element("title", title),
            element("style", Markup(STYLE)),
        )
    )
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>{element("main", body)}</body>\n</html>\n'


def _head(report: Report) -> Markup:
    planted = f", with {', '.join(report.planted)} planted" if report.planted else ""
    what = f"{report.engine}{planted} against transformers on {report.checkpoint}, {report.dtype}"
    verdict = element("span", report.verdict, class_=f"verdict {TONES[report.verdict]}")
    sentence = report.headline().removeprefix(f"{report.verdict}: ")
    return element(
        "header", element("div", f"labkit verify · {what}", class_="eyebrow"), element("h1", verdict, " ", sentence)
    )


def _section(title: str, *parts: object) -> Markup:
    return element("section", element("h2", title), *parts)


def _findings(report: Report, places: Mapping[str, TensorPlace]) -> Markup:
    if not report.findings:
        return Markup("")
    title = "What seems wrong" if report.verdict == "cannot tell" else "What is wrong"
    return _section(title, *(_finding(finding, report, places) for finding in report.findings))


def _finding(finding: Finding, report: Report, places: Mapping[str, TensorPlace]) -> Markup:
    rows: list[tuple[str, object]] = [("cause", finding.text)]
    rows += [("farthest from the truth", _worst(stage)) for stage in report.stages if stage.name == finding.where]
    if math.isfinite(finding.error_right):  # no shape and no NaN is off by a number
        rows.append(("against the right operation", _error(finding.error_right, finding.share_right)))
    if finding.error_replayed is not None and finding.share_replayed is not None and math.isfinite(finding.error_right):
        rows.append(("against the mistake, replayed", _error(finding.error_replayed, finding.share_replayed)))
    if len(finding.span) > 1:
        rows.append(("may lie in", joined(_spaced(code(name) for name in finding.span))))
    if finding.tensors:
        lines = (element("div", code(places.get(name, name))) for name in finding.tensors)
        rows.append(("the checkpoint's tensors", joined(lines)))
    rows.append(("next", finding.next_step))
    pairs = joined(joined((element("dt", name), element("dd", value))) for name, value in rows)
    return element(
        "div",
        element("h3", code(finding.where), f" · {finding.cause or finding.kind}"),
        element("dl", pairs),
        class_="card",
    )


def _worst(stage: StageResult) -> str:
    beside = unmeasured(stage)
    if beside is not None:
        return f"nothing to compare: {beside}" if stage.cause == "shape" else beside
    return f"{pair_at_worst(stage)} at {list(stage.difference.worst)}, what was inherited included"


def _error(error: float, share: float) -> str:
    if math.isinf(share):
        return f"off by at most {error:.2e}, where rounding explains nothing at all"
    return f"off by at most {error:.2e}, {short(share)} times what rounding explains"


def _spaced(parts: Iterator[Markup]) -> Iterator[object]:
    for number, part in enumerate(parts):
        yield " " if number else ""
        yield part


def _chain(links: Sequence[Link]) -> Markup:
    if not links:
        return Markup("")
    items = []
    for link in links:
        mark, tone = MARKS[link.verdict]
        items.append(
            element(
                "li",
                element("span", mark, class_=f"mark {tone}", aria_hidden="true"),
                element("strong", link.name),
                " ",
                element("span", f"{link.verdict}: ", class_=tone),
                element("span", link.detail, class_="quiet"),
                *(code(line) for line in link.lines),
            )
        )
    return _section("The chain, from bytes to tokens", element("ol", *items, class_="chain"))


def _waterfall(stages: Sequence[StageResult]) -> Markup:
    key = joined(
        (
            element("span", class_="key b"),
            "made by this operation, ",
            element("span", class_="key c"),
            "more than rounding explains, ",
            element("span", class_="key a"),
            "in all, with what was inherited. The dashed line is the budget.",
        )
    )
    picture = element(
        "div", draw_waterfall(stages), class_="scroll", tabindex=0, role="group", aria_label="Picture of the errors"
    )
    return _section("Error along the stages", element("figure", picture, element("figcaption", key)))


def _stages(stages: Sequence[StageResult]) -> Markup:
    wrong = [stage for stage in stages if stage.cause]
    parts: list[Markup] = []
    if 0 < len(wrong) <= LONG_TABLE:
        parts.append(_table(wrong))
    summary = element(
        "summary", f"{'all ' if len(stages) > 1 else ''}{counted(len(stages), 'stage')} in order of computation"
    )
    parts.append(element("details", summary, _table(stages)))
    legend = (element("p", line, class_="quiet") for line in LEGEND)
    return _section("Stages", *parts, *legend)


def _table(stages: Sequence[StageResult]) -> Markup:
    rows = (
        Row(
            stage.name,
            f"{stage.difference.max_abs:.1e}",
            f"{stage.difference.max_rel:.1e}",
            ulp_text(stage.difference.ulp),
            f"{stage.budget:.1e}",
            short(stage.used),
            short(stage.local_used),
            str(list(stage.worst)),
            stage.verdict + (f", {stage.cause}" if stage.cause else ""),
            kind=None if not stage.cause else "inherited" if stage.cause == "inherited" else "local",
        )
        for stage in stages
    )
    names = ("stage", "max_abs", "max_rel", "ulp", "budget", "used", "here", "worst at", "verdict")
    return table(names, rows, numeric=(1, 2, 3, 4, 5, 6))


def _outcome(report: Report) -> Markup:
    lines: list[Markup] = []
    if report.agreement is not None:
        lines.append(element("p", f"Logits {agreement_line(report.agreement)}."))
    for number, result in enumerate(report.tokens, 1):
        lines.append(element("p", f"After prompt {number}: {token_line(result)}."))
        if result.parted_at is not None:
            pair = f"this engine {list(result.actual)}\ntransformers {list(result.expected)}"
            lines.append(element("pre", pair))
    return _section("Logits and tokens", *lines) if lines else Markup("")


def _controls(report: Report) -> Markup:
    return _section("Controls: can these checks fail?", element("p", f"{control_line(report)}."))


def _coverage(coverage: Coverage | None, shortest: Mapping[str, str | None]) -> Markup:
    if coverage is None:
        return Markup("")
    told = (
        f"{len(coverage.seen)} of {counted(len(coverage.effects), 'known mistake')} would have shown on these prompts, "
        f"at every stage they {'were rehearsed' if coverage.skipped else 'can be made'} at."
    )
    parts = [element("p", told)]
    for places, names in by_places(coverage).items():
        parts.append(element("p", f"These would not have shown in {places}, so nothing is claimed about them there:"))
        parts.append(element("dl", joined(_unseen(names, shortest))))
    if coverage.unseen:
        parts.append(element("p", "These could not have shown anywhere, so nothing is claimed about them:"))
        parts.append(element("dl", joined(_unseen(coverage.unseen, shortest))))
    if coverage.skipped:
        line = skipped_line(coverage)
        parts.append(element("p", f"{line[0].upper()}{line[1:]}. Nothing is claimed about mistakes there."))
    return _section("Coverage", *parts)


def _unseen(names: Sequence[str], shortest: Mapping[str, str | None]) -> Iterator[Markup]:
    groups: dict[str, list[str]] = {}
    for name in names:
        prompt = shortest.get(name)
        nowhere = "on no prompt that was tried" if name in shortest else "not tried"
        groups.setdefault(nowhere if prompt is None else f"with {prompt}", []).append(name)
    for answer, group in groups.items():
        yield element("dt", answer if answer == "not tried" else f"would show {answer}")
        yield element("dd", *_spaced(code(name) for name in group), class_="names")


def _prompts(report: Report) -> Markup:
    parts = []
    for number, prompt in enumerate(report.prompts, 1):
        text = "" if prompt.text is None else f" {prompt.text!r}"
        ids = ",".join(map(str, prompt.ids))
        parts.append(element("p", f"Prompt {number}, {counted(len(prompt.ids), 'token')}:{text}"))
        parts.append(element("pre", ids))
    return _section("Prompts", *parts)


def _circumstances(report: Report, folder: str | PathLike[str] | None) -> Markup:
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    rows: list[tuple[str, object]] = [
        ("engine", report.engine),
        ("checkpoint", report.checkpoint),
        ("arithmetic", f"{report.dtype} on {report.device}"),
        ("versions", f"{versions}; {system}"),
        ("date", date.today().isoformat()),
    ]
    rows += [("note", note) for note in report.notes]
    if report.trace_sha256 is not None:
        rows.append(("trace", f"SHA-256 {report.trace_sha256}"))
    elif report.engine == "labkit":
        rows.append(("to run it again", code(_command(report, folder))))
    pairs = joined(joined((element("dt", name), element("dd", value))) for name, value in rows)
    return _section("Circumstances", element("dl", pairs))


def _command(report: Report, folder: str | PathLike[str] | None) -> str:
    words = ["labkit", "verify", *([] if folder is None else [fspath(folder)])]
    for prompt in report.prompts:
        words += ["--ids", ",".join(map(str, prompt.ids))]
    words += ["--dtype", report.dtype] if report.dtype != "float32" else []
    words += [word for fault in report.planted for word in ("--plant", fault)]
    return shlex.join(words)
