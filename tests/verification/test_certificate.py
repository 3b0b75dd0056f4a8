"""Certificates: what was verified and what not, kept in a file and run again."""

import json
from pathlib import Path

import pytest
import torch

import labkit
from labkit.cli.main import run
from labkit.errors import MissingFileError, TraceError
from labkit.load import embedded
from labkit.report.json import json_text
from labkit.verification.certificate import certify, read_certificate, recheck, shortest_prompts
from labkit.verification.detective import Coverage
from labkit.verification.precision import Precision
from labkit.verification.trace import write_trace
from labkit.verification.trace_record import record_trace
from labkit.verification.verify_trace import verify_trace
from tests.oracles import random_checkpoint

Capture = pytest.CaptureFixture[str]
IDS = [[5, 17, 3, 90, 42, 7, 11, 60]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("random")
    random_checkpoint.write(path, seed=4, n_positions=80)
    return path


def test_a_certificate_runs_again_as_it_was(folder: Path, tmp_path: Path) -> None:
    report = labkit.verify(folder, ids=IDS, tokens=3)
    path = tmp_path / "certificate.json"
    path.write_text(json_text(certify(report, folder)))
    stated = read_certificate(path)
    assert (stated.verdict, stated.greedy_tokens) == ("same", 3)
    assert [list(prompt.ids) for prompt in stated.prompts] == IDS
    assert len(stated.checkpoint.sha256["model.safetensors"]) == 64
    result = recheck(path, folder)
    assert result.differences == ()
    assert str(result).startswith("as certified: same")


def test_another_file_and_another_verdict_are_said(folder: Path, tmp_path: Path) -> None:
    report = labkit.verify(folder, ids=IDS, tokens=0, plant="relu:1")
    certificate = certify(report, folder)
    assert certificate["findings"][0]["cause"] == "relu"
    path = tmp_path / "certificate.json"
    path.write_text(
        json_text({**certificate, "verdict": "same", "planted": None, "findings": [], "first_divergence": None})
    )
    assert recheck(path, folder).return_code == 0
    path.write_text(json_text({**certificate, "planted": None}))
    result = recheck(path, folder)
    assert result.return_code == 1
    assert "the verdict is same, it was differs" in str(result)
    other = tmp_path / "other"
    random_checkpoint.write(other, seed=5, n_positions=80)
    path.write_text(json_text(certificate))
    assert "model.safetensors is another file" in str(recheck(path, other))


def test_a_certificate_of_several_planted_faults_runs_again_with_all(folder: Path, tmp_path: Path) -> None:
    plant = ("relu:1", "no-mask:0")
    report = labkit.verify(folder, ids=IDS, tokens=0, plant=plant)
    path = tmp_path / "certificate.json"
    path.write_text(json_text(certify(report, folder)))
    assert read_certificate(path).planted == plant
    assert recheck(path, folder).report.planted == plant
    assert recheck(path, folder).differences == ()


def test_the_shortest_prompt_that_would_show_a_mistake(folder: Path) -> None:
    names = ("no-mask", "positions-wrap-64", "padding-attended", "head-tied", "mask-finite-1e4")
    assert shortest_prompts(folder, Coverage({name: {} for name in names}), Precision()) == {
        "no-mask": "2 tokens",
        "positions-wrap-64": "65 tokens",
        "padding-attended": "a batch of two prompts with padding on the left",
        "head-tied": None,
        "mask-finite-1e4": None,
    }


def test_a_prompt_is_offered_only_where_it_shows_the_mistake_at_each_missing_stage_in_the_engine_s_dtype() -> None:
    at = {f"h.{block}.ln_1": 0.5 for block in range(4)}
    coverage = Coverage({"epsilon-1e-6": at, "epsilon-1e-3": at})
    assert shortest_prompts(embedded(), coverage, Precision()) == {"epsilon-1e-6": None, "epsilon-1e-3": "2 tokens"}
    first = Coverage({"epsilon-1e-6": {**at, **{f"h.{block}.ln_1": 2.0 for block in range(1, 4)}}})
    assert shortest_prompts(embedded(), first, Precision()) == {"epsilon-1e-6": "2 tokens"}
    narrow = Precision.of(torch.bfloat16)
    assert shortest_prompts(embedded(), coverage, narrow) == dict.fromkeys(coverage.effects)


def test_a_mistake_that_shows_in_the_first_block_only_is_not_claimed_for_the_others(
    tmp_path: Path, capsys: Capture
) -> None:
    """With epsilon 1e-6 in block 3 the verdict is same: no place may claim that it would have been seen there."""
    paths = {name: tmp_path / f"certificate.{name}" for name in ("json", "html")}
    targets = ["--certificate", str(paths["json"]), "--html", str(paths["html"])]
    assert run(["verify", "--plant", "epsilon-1e-6:3", "--tokens", "0", *targets]) == 0
    stated = json.loads(paths["json"].read_text())
    coverage = stated["coverage"]
    assert "epsilon-1e-6" not in coverage["seen"]
    assert "epsilon-1e-6" not in coverage["unseen"]
    assert "h.0.ln_1" in coverage["partly"]["epsilon-1e-6"]["seen"]
    assert {"h.2.ln_1", "h.3.ln_1", "h.3.ln_2"} <= set(coverage["partly"]["epsilon-1e-6"]["unseen"])
    assert coverage["partly"]["epsilon-1e-6"]["shortest_prompt"] is None
    assert "it lies below rounding" in stated["notes"][0]
    said = " ".join(capsys.readouterr().out.split())
    assert "epsilon-1e-12 not in ln_2 of blocks 1 to 3, ln_1 of blocks 2 and 3, ln_f)" in said
    assert "of 96 known mistakes 84 would have shown at every stage of theirs, 3 at some only (epsilon-1e-6," in said
    assert "the planted epsilon-1e-6:3 was not seen: it lies below rounding" in said
    assert "would not have shown in ln_2 of blocks 1 to 3, ln_1 of blocks 2 and 3, ln_f" in paths["html"].read_text()


def test_what_is_no_certificate_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no such certificate"):
        read_certificate(tmp_path / "none.json")
    for text, message in (
        ("{", "not JSON"),
        ("[" * 100_000, "nests too deep"),
        ('{"device": 1' + "0" * 30 + "}", "the number 10000000… has 31 characters"),
        ("[]", "not a certificate"),
        ('{"format": "x"}', "not a certificate"),
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(TraceError, match=message):
            read_certificate(tmp_path / "bad.json")
    (tmp_path / "bad.json").write_text(json.dumps({"format": "labkit-certificate", "engine": "labkit"}))
    with pytest.raises(TraceError, match="missing required field `verdict`"):
        read_certificate(tmp_path / "bad.json")


SOUND: dict[str, object] = {
    "format": "labkit-certificate",
    "version": 1,
    "verdict": "same",
    "first_divergence": None,
    "findings": [],
    "engine": "labkit",
    "planted": None,
    "trace_sha256": None,
    "dtype": "float32",
    "device": "cpu",
    "greedy_tokens": 1,
    "prompts": [{"text": None, "ids": [5]}],
    "checkpoint": {"sha256": {}},
}
ODD: dict[str, tuple[object, ...]] = {
    "prompts": (None, "x", 0, [], [1], [{}], [{"ids": None}], [{"ids": []}], [{"ids": ["a"]}], [{"ids": [True]}]),
    "findings": (None, "x", 1, [1], [{}], [{"where": "h", "cause": 1}], [{"where": None, "cause": None}]),
    "checkpoint": (None, [], {}, "x", {"sha256": None}, {"sha256": []}, {"sha256": {"a": 1}}),
    "greedy_tokens": (None, "x", [], {}, -1, 1.5, True),
    "planted": (0, [1], True),
    "dtype": (None, 1, [], {}),
    "device": (None, 1, []),
    "engine": (1, []),
    "verdict": (None, 1, "perhaps", []),
    "version": (None, 2, "1"),
    "first_divergence": (1, []),
    "trace_sha256": (1, [], {}),
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in ODD.items() for value in values])
def test_a_field_of_another_kind_is_told_by_its_name(
    field: str, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(SOUND))
    assert read_certificate(path).greedy_tokens == 1
    path.write_text(json.dumps({**SOUND, field: value}))
    assert run(["verify", "--recheck", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{path}, field {field}" in said


def test_on_the_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "certificate.json"
    common = [str(folder), "--ids", "5,6,7,8"]
    assert run(["verify", *common, "--tokens", "0", "--certificate", str(path), "--json", "-"]) == 0
    assert json.loads(path.read_text())["coverage"]["unseen"]["positions-wrap-64"] == "65 tokens"
    capsys.readouterr()
    assert run(["verify", str(folder), "--recheck", str(path)]) == 0
    assert "as certified" in capsys.readouterr().out
    assert run(["verify", *common, "--recheck", str(path)]) == 2


def test_a_certificate_of_a_trace_is_run_again_with_the_trace(tmp_path: Path) -> None:
    paths = []
    for name, ids in (("one", [[5, 6, 7]]), ("two", [[5, 6, 8]])):
        recorded = record_trace(engine="labkit", ids=ids, taps=["h.*.resid_post", "logits"])
        paths.append(tmp_path / f"{name}.safetensors")
        write_trace(paths[-1], recorded.tensors, recorded.metadata)
    certificate = tmp_path / "certificate.json"
    certificate.write_text(json.dumps(certify(verify_trace(paths[0]), embedded())))
    assert recheck(certificate, trace=paths[0]).differences == ()
    assert "the trace is another file" in recheck(certificate, trace=paths[1]).differences
    with pytest.raises(TraceError, match=r"is of a trace.*--trace"):
        recheck(certificate)
    own = tmp_path / "own.json"
    own.write_text(json.dumps(certify(labkit.verify(ids=[[5, 6]], tokens=0), embedded())))
    with pytest.raises(TraceError, match="not of a trace"):
        recheck(own, trace=paths[0])
