"""JUnit's XML of a verification: read back by a parser, each kind of outcome where it belongs."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

import labkit
from labkit.cli.main import run
from labkit.report.junit import verification_junit
from labkit.verification.links import Link
from labkit.verification.report import Report
from labkit.verification.tokens import TokenResult
from tests.oracles.random_checkpoint import write

LINKS = (Link(name="file bytes", verdict="holds", detail="148 tensors"),)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("junit") / "small"
    write(place)
    return place


@pytest.fixture(scope="module")
def wrong(folder: Path) -> Report:
    return labkit.verify(folder, ids=[[5, 17, 3, 42, 8]], tokens=3, plant="relu:1")


def cases(root: ElementTree.Element, suite: str, kind: str) -> dict[str, ElementTree.Element]:
    """Name of the test -> its failure, error or skip."""
    found = root.find(f"testsuite[@name='{suite}']")
    assert found is not None
    return {case.attrib["name"]: each for case in found for each in case if each.tag == kind}


def test_stages_that_differ_fail_and_tell_the_finding(wrong: Report) -> None:
    root = ElementTree.fromstring(verification_junit(wrong, LINKS))
    stages = cases(root, "stages", "failure")
    assert list(stages) == [stage.name for stage in wrong.stages if stage.verdict == "differs"]
    assert "relu" in (stages["h.1.mlp.post"].text or "")
    assert stages["h.1.mlp.post"].attrib["message"].startswith("differs, local: max_abs")
    assert stages["h.1.mlp.out"].attrib["message"].startswith("differs, inherited")
    assert root.attrib["tests"] == str(len(wrong.stages) + len(wrong.tokens) + 2)
    assert root.attrib["failures"] == str(len(root.findall(".//failure")))
    assert (root.attrib["errors"], root.attrib["skipped"]) == ("0", "0")
    suite = root.find("testsuite[@name='stages']")
    assert suite is not None
    assert (suite.attrib["tests"], suite.attrib["failures"]) == (str(len(wrong.stages)), str(len(stages)))


def test_controls_are_errors_broken_links_failures_and_what_was_not_checked_is_skipped(wrong: Report) -> None:
    report = replace(wrong, controls=replace(wrong.controls, planted_missed=("h.0.ln_1",)))
    links = (
        Link(name="file bytes", verdict="broken", detail="torn", lines=("model.safetensors: 3 bytes short",)),
        Link(name="header", verdict="not checked", detail="the file is torn"),
    )
    root = ElementTree.fromstring(verification_junit(report, links))
    assert "planted" in cases(root, "controls", "error")["controls"].attrib["message"]
    assert cases(root, "chain", "failure")["file bytes"].text == "model.safetensors: 3 bytes short"
    assert list(cases(root, "chain", "skipped")) == ["header"]
    assert (root.attrib["errors"], root.attrib["skipped"]) == ("1", "1")


def test_tokens_that_part_fail_and_a_coin_flip_does_not(wrong: Report) -> None:
    parted = TokenResult(actual=(1, 2), expected=(1, 3), verdict="differs", parted_at=1)
    report = replace(wrong, tokens=(replace(parted, verdict="coin flip"), parted))
    found = cases(ElementTree.fromstring(verification_junit(report, LINKS)), "tokens", "failure")
    assert list(found) == ["prompt 2"]
    assert found["prompt 2"].text == "engine: [1, 2]\ntransformers: [1, 3]"


@pytest.mark.parametrize("name", ["a\x1b[31m<b>&\"'", "\x00\ud800\ufffe", "日本"])
def test_names_of_any_characters_leave_it_readable(wrong: Report, name: str) -> None:
    text = verification_junit(replace(wrong, checkpoint=name, engine=name), LINKS)
    root = ElementTree.fromstring(text.encode("utf-8"))
    assert root.attrib["name"].startswith("labkit verify ")


def test_the_command_writes_it_beside_the_rest(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "junit.xml"
    line = ["verify", str(folder), "--ids", "5,17,3,42,8", "--tokens", "2", "--junit", str(target)]
    assert run(line) == 0
    root = ElementTree.parse(target).getroot()
    assert (root.attrib["failures"], root.attrib["errors"]) == ("0", "0")
    assert run([*line, "--plant", "relu:1"]) == 1
    assert int(ElementTree.parse(target).getroot().attrib["failures"]) > 0
    assert run([*line[:-1], str(folder / "config.json")]) == 2
    assert run([*line[:-1], "-"]) == 2


def test_tokens_that_were_not_run_are_an_error_with_the_reason(wrong: Report) -> None:
    report = replace(wrong, tokens=(TokenResult.not_run("the logits of position 4 are not finite"),))
    errors = cases(ElementTree.fromstring(verification_junit(report, LINKS)), "tokens", "error")
    assert errors["prompt 1"].attrib["message"] == "greedy tokens were not run: the logits of position 4 are not finite"
