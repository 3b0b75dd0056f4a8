"""What a report shows as the worst element is one: it differs, by the most, and its values are its own."""

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor

from labkit.cli.main import run
from labkit.verification.trace import write_trace
from labkit.verification.trace_record import Recorded, record_trace
from labkit.verification.verify_trace import verify_trace
from tests.oracles.random_checkpoint import write

IDS = [[5, 17, 3, 96, 42, 7, 80, 9]]
PLACES = {"wte": (0, 6, 5), "wpe": (4, 7), "h.1.resid_mid": (0, 7, 20)}
SMALLER = {"wte": (0, 2, 3), "wpe": (1, 2), "h.1.resid_mid": (0, 1, 2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("worst") / "small"
    write(place)
    return place


@pytest.fixture(scope="module")
def clean(folder: Path) -> Recorded:
    return record_trace(folder, engine="labkit", ids=IDS)


def changed(clean: Recorded, tap: str, *changes: tuple[tuple[int, ...], Callable[[float], float]]) -> dict[str, Tensor]:
    tensor = clean.tensors[tap].clone()
    for place, change in changes:
        tensor[place] = change(float(tensor[place]))
    return {**clean.tensors, tap: tensor}


@pytest.mark.parametrize("tap", PLACES)
def test_every_form_shows_the_element_that_is_farthest_off(
    folder: Path, clean: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str], tap: str
) -> None:
    """A gather and a sum: where rounding explains nothing every error is beyond all bounds, the first no more than the last."""
    place = PLACES[tap]
    tensors = changed(clean, tap, (SMALLER[tap], lambda x: x + 0.25), (place, lambda x: x + 2))
    trace, page, junit = (tmp_path / name for name in ("t.safetensors", "page.html", "junit.xml"))
    write_trace(trace, tensors, clean.metadata)
    options = ["--html", str(page), "--junit", str(junit), "--json", "-"]
    assert run(["verify", str(folder), "--trace", str(trace), *options]) == 1
    stage = next(each for each in json.loads(capsys.readouterr().out)["stages"] if each["name"] == tap)
    actual, expected = float(tensors[tap][place]), float(clean.tensors[tap][place])
    assert (stage["at"], stage["used_at"], stage["local_used_at"]) == (list(place),) * 3
    assert (stage["actual"], stage["expected"]) == (pytest.approx(actual), pytest.approx(expected, abs=1e-5))
    pair = f"{stage['actual']:.9g} instead of {stage['expected']:.9g}"
    assert f"{pair} at {list(place)}" in page.read_text()
    suite = ElementTree.parse(junit).find("testsuite[@name='stages']")
    assert suite is not None
    failure = suite.find(f"testcase[@name='{tap}']/failure")
    assert failure is not None
    assert f"max_abs 2 at {list(place)} ({pair})" in failure.attrib["message"]
    assert "inf" not in failure.attrib["message"] + str(verify_trace(trace, folder))


def test_a_budget_of_zero_is_told_in_words(folder: Path, clean: Recorded, tmp_path: Path) -> None:
    trace = tmp_path / "t.safetensors"
    write_trace(trace, changed(clean, "wte", (PLACES["wte"], lambda x: x + 2)), clean.metadata)
    headline = verify_trace(trace, folder).headline()
    assert "(off by 2 at [0, 6, 5], where rounding explains nothing)" in headline


def test_of_two_prompts_the_place_is_that_of_the_largest_error(folder: Path) -> None:
    """Both prompts exceed a budget of zero; figures and place are of one of them."""
    import labkit

    report = labkit.verify(folder, ids=[[5, 17, 3], [3, 42, 8, 9, 11]], tokens=0, plant="ids-off-by-one")
    wte = report.stages[0]
    assert wte.used == wte.local_used == float("inf")
    assert wte.worst == wte.local_worst == wte.difference.worst


def test_nan_is_shown_where_it_is(folder: Path, clean: Recorded, tmp_path: Path) -> None:
    tensors = changed(clean, "h.1.resid_mid", ((0, 3, 4), lambda _x: float("nan")), ((0, 5, 6), lambda x: x + 9))
    trace, page, junit = (tmp_path / name for name in ("t.safetensors", "page.html", "junit.xml"))
    write_trace(trace, tensors, clean.metadata)
    assert run(["verify", str(folder), "--trace", str(trace), "--html", str(page), "--junit", str(junit)]) == 1
    told = "1 element NaN or infinite, the first at [0, 3, 4]"
    assert told in page.read_text()
    assert told in junit.read_text()
    report = verify_trace(trace, folder)
    assert "it holds NaN or infinity, first at [0, 3, 4]" in report.headline()
    assert "inf" not in str(report.findings[0]).replace("infinity", "").replace("finite", "")


def test_the_worst_of_many_elements_beyond_a_budget_of_zero(folder: Path, clean: Recorded, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    off = torch.rand(clean.tensors["wpe"].shape, generator=generator)  # [pos, n_embd]
    trace = tmp_path / "t.safetensors"
    write_trace(trace, {**clean.tensors, "wpe": clean.tensors["wpe"] + off}, clean.metadata)
    stage = next(each for each in verify_trace(trace, folder).stages if each.name == "wpe")
    assert stage.worst == divmod(int(off.argmax()), off.shape[1])
