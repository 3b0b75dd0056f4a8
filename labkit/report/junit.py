"""A verification -> JUnit's XML, which build servers show test by test.

One suite each for the chain, the stages, the greedy tokens and the controls. What differs is a failure; what keeps the
verdict from being told is an error. The form is that of the Jenkins schema ``junit-10.xsd``: name, classname,
failure or error with a message and a text.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from labkit.outside import safe
from labkit.report.verify import pair_at_worst, unmeasured
from labkit.verification.links import Link
from labkit.verification.report import Report
from labkit.verification.tokens import TokenResult
from labkit.verification.verdict import StageResult

Outcome = Literal["passed", "failure", "error", "skipped"]
COUNTS = {"failure": "failures", "error": "errors", "skipped": "skipped"}
"""What did not pass, and the attribute that counts it."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One test of a suite: passed, or what went wrong."""

    name: str
    outcome: Outcome = "passed"
    message: str = ""
    text: str = ""


def verification_junit(report: Report, links: Sequence[Link]) -> str:
    """The whole report as one XML document."""
    suites = {
        "chain": [_link(link) for link in links],
        "stages": [_stage(stage, report) for stage in report.stages],
        "tokens": [_tokens(number, result) for number, result in enumerate(report.tokens, 1)],
        "controls": [Case(name="controls", outcome="error", message=each) for each in report.controls.failures]
        or [Case(name="controls")],
    }
    root = ElementTree.Element("testsuites", name=_text(f"labkit verify {report.checkpoint}, {report.engine}"))
    root.set("tests", str(sum(map(len, suites.values()))))
    for name, cases in suites.items():
        _add(root, name, cases)
    for count in COUNTS.values():
        root.set(count, str(sum(int(suite.get(count, "0")) for suite in root)))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add(root: ElementTree.Element, name: str, cases: Sequence[Case]) -> None:
    suite = ElementTree.SubElement(root, "testsuite", name=name, tests=str(len(cases)))
    for outcome, count in COUNTS.items():
        suite.set(count, str(sum(case.outcome == outcome for case in cases)))
    for case in cases:
        element = ElementTree.SubElement(suite, "testcase", name=_text(case.name), classname=f"labkit.{name}")
        if case.outcome != "passed":
            problem = ElementTree.SubElement(element, case.outcome, message=_text(case.message))
            problem.text = _text(case.text)


def _link(link: Link) -> Case:
    if link.verdict == "holds":
        return Case(name=link.name)
    outcome: Outcome = "failure" if link.verdict == "broken" else "skipped"
    return Case(name=link.name, outcome=outcome, message=str(link), text="\n".join(link.lines))


def _stage(stage: StageResult, report: Report) -> Case:
    if stage.verdict == "same":
        return Case(name=stage.name)
    found = [str(finding) for finding in report.findings if finding.where == stage.name]
    own = f"differs, {stage.cause}" if stage.cause else "differs"
    return Case(name=stage.name, outcome="failure", message=f"{own}: {_figures(stage)}", text="\n".join(found))


def _figures(stage: StageResult) -> str:
    """How far off, each figure with the place it was read at."""
    difference = stage.difference
    beside = unmeasured(stage)
    if beside is not None:
        return beside
    return (
        f"max_abs {difference.max_abs:.3g} at {list(difference.worst)} ({pair_at_worst(stage)}); {_budgets(stage.used)} at "
        f"{list(stage.worst)}; the operation itself {_budgets(stage.local_used)} at {list(stage.local_worst)}"
    )


def _budgets(used: float) -> str:
    return "beyond a budget of zero" if math.isinf(used) else f"{used:.3g} times its budget"


def _tokens(number: int, result: TokenResult) -> Case:
    name = f"prompt {number}"
    if result.verdict == "not run":
        return Case(name=name, outcome="error", message=f"greedy tokens were not run: {result.reason}")
    if result.verdict != "differs":
        return Case(name=name)
    texts = f"engine: {list(result.actual)}\ntransformers: {list(result.expected)}"
    return Case(name=name, outcome="failure", message=f"greedy tokens part at {result.parted_at}", text=texts)


def _text(text: str) -> str:
    """As every reader takes it: what XML cannot hold is spelled out."""
    return safe(text, keep="\n")
