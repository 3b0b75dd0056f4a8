"""The page of a verification: well-formed, offline, escaped, whole; and as it looks in a browser."""

import dataclasses
import math
import re
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import pytest

import labkit
from labkit.cli.main import run
from labkit.report.html import LONG_TABLE, verification_page
from labkit.report.html_parts import Markup, element, escaped
from labkit.report.waterfall import Scale, draw_waterfall
from labkit.verification.links import Link, whole_chain
from labkit.verification.report import Report
from labkit.verification.tensor_places import tensor_places

VOID = {"meta", "br"}
HOSTILE = "<script>alert(1)</script>\"'&\x1b[31m\u202eevil"


class Balanced(HTMLParser):
    """Refuses a page whose elements are not closed in order; keeps what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _parsed(page: str) -> Balanced:
    parser = Balanced()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


@pytest.fixture(scope="module")
def same() -> Report:
    return labkit.verify(ids=[[5, 6, 7, 8]], tokens=3)


@pytest.fixture(scope="module")
def differs() -> Report:
    return labkit.verify(prompts=["It is a truth"], plant="transpose-c_proj:1", tokens=3)


def _page(report: Report, embedded: Path) -> str:
    names = [name for finding in report.findings for name in finding.tensors]
    return verification_page(report, links=whole_chain(report), places=tensor_places(embedded, names))


def test_a_page_is_well_formed_and_fetches_nothing(same: Report, differs: Report, embedded: Path) -> None:
    for report in (same, differs):
        page = _page(report, embedded)
        parsed = _parsed(page)
        assert parsed.addresses == []
        assert "script" not in parsed.tags
        assert not re.search(r"url\(|@import|https?://", page)
        assert page.count("<h1>") == 1
        assert "prefers-color-scheme: dark" in page


def test_a_page_has_everything(differs: Report, embedded: Path) -> None:
    page = _page(differs, embedded)
    finding = differs.findings[0]
    place = tensor_places(embedded, finding.tensors)[finding.tensors[0]]
    stage = next(each for each in differs.stages if each.name == finding.where)
    for text in (
        differs.headline().removeprefix("differs: "),
        "transpose-c_proj",
        f"{finding.error_right:.2e}",
        f"{finding.error_replayed:.2e}",
        f"bytes {place.begin:,} to {place.end:,}",
        "SHA-256",
        "h.1.attn.out is the first of",
        "all 61 stages in order of computation",
        "max_abs, max_rel, ulp: largest error against the truth",
        "a clean run in another summation order passes",
        "known mistakes would have shown",
        "It is a truth",
        ",".join(map(str, differs.prompts[0].ids)),
        "transformers 5.",
        "labkit verify --ids",
        "farthest from the truth",
        f"{stage.difference.actual_at_worst:.9g} instead of {stage.difference.expected_at_worst:.9g}",
        date.today().isoformat(),
    ):
        assert str(escaped(text)) in page, text
    assert page.count('class="stem over"') == 1


def test_the_command_names_the_folder_as_it_was_given(differs: Report) -> None:
    assert "labkit verify my/copy --ids" in verification_page(differs, folder="my/copy")


def test_a_page_of_a_trace_names_its_hash_and_no_command(same: Report) -> None:
    page = verification_page(dataclasses.replace(same, trace_sha256="c0ffee"))
    assert "SHA-256 c0ffee" in page
    assert "to run it again" not in page


def test_mistakes_that_could_not_show_stand_with_what_would_show_them(same: Report) -> None:
    assert same.coverage is not None
    first, second, *_ = same.coverage.unseen
    page = verification_page(same, shortest={first: "65 tokens", second: None})
    for answer, name in (("would show with 65 tokens", first), ("would show on no prompt that was tried", second)):
        assert f'<dt>{answer}</dt><dd class="names"><code>{name}</code></dd>' in page
    assert "<dt>not tried</dt>" in page


def test_the_stages_that_differ_stand_open_unless_they_are_many(same: Report, differs: Report) -> None:
    wrong = sum(bool(stage.cause) for stage in differs.stages)
    few = dataclasses.replace(differs, stages=differs.stages[: 61 - wrong + LONG_TABLE])
    assert verification_page(same).count("<table>") == 1
    assert verification_page(few).count("<table>") == (2 if wrong else 1)
    assert verification_page(differs).count("<table>") == (2 if wrong <= LONG_TABLE else 1)


def test_nothing_from_outside_is_markup(differs: Report) -> None:
    finding = dataclasses.replace(
        differs.findings[0], text=HOSTILE, where=HOSTILE, next_step=HOSTILE, span=(HOSTILE, "b")
    )
    stage = dataclasses.replace(differs.stages[30], name=HOSTILE, local_used=9.0)
    prompt = dataclasses.replace(differs.prompts[0], text=HOSTILE)
    report = dataclasses.replace(
        differs,
        checkpoint=HOSTILE,
        engine=HOSTILE,
        dtype=HOSTILE,
        findings=(finding,),
        stages=(*differs.stages, stage),
        prompts=(prompt,),
        notes=(HOSTILE,),
    )
    links = [Link(name=HOSTILE, verdict="broken", detail=HOSTILE, lines=(HOSTILE,))]
    page = verification_page(report, links=links)
    assert "script" not in _parsed(page).tags
    assert "<script" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_a_report_with_little_in_it_is_still_a_page(same: Report) -> None:
    bare = dataclasses.replace(same, agreement=None, tokens=(), coverage=None, notes=())
    page = verification_page(bare)
    _parsed(page)
    assert "What is wrong" not in page
    assert "Coverage" not in page


def test_scale_holds_nothing_at_all_and_infinity(same: Report) -> None:
    exact = dataclasses.replace(same.stages[0], used=0.0, local_used=0.0)
    endless = dataclasses.replace(same.stages[0], used=math.inf, local_used=math.inf)
    scale = Scale([exact, endless])
    assert scale.y(0.0) > scale.y(1.0) > scale.y(math.inf) > 0
    assert scale.y(1e30) == scale.y(math.inf)
    _parsed(draw_waterfall([exact, endless]))
    _parsed(draw_waterfall([]))


def test_pieces() -> None:
    assert element("p", "a<b", Markup("<i>"), id='x"y', class_=None) == '<p id="x&quot;y">a&lt;b<i></p>'


def test_the_command_writes_it_whole_or_not_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.html"
    assert run(["verify", "--ids", "5,6", "--tokens", "0", "--html", str(target)]) == 0
    _parsed(target.read_text(encoding="utf-8"))
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert run(["verify", "--ids", "5,6", "--tokens", "0", "--html", str(tmp_path / "no" / "r.html")]) == 2
    assert "no such folder" in capsys.readouterr().err
