"""Counts agree with their nouns and verbs in what the commands print."""

import dataclasses
from pathlib import Path

import pytest

import labkit
from labkit.cli.main import run
from labkit.report.verify import control_line, headline, token_line
from labkit.verification.invariants import InvariantResult

Capture = pytest.CaptureFixture[str]


def test_a_trace_of_some_stages_says_of_how_many(tmp_path: Path, capsys: Capture) -> None:
    for taps, told in (
        (["ln_f"], "same: the 1 stage recorded, of 61, is within rounding"),
        (["ln_f", "wte"], "same: the 2 stages recorded, of 61, are within rounding"),
    ):
        trace = tmp_path / f"{len(taps)}.safetensors"
        chosen = [word for tap in taps for word in ("--taps", tap)]
        assert run(["trace", "-o", str(trace), "--ids", "5,6,7", *chosen]) == 0
        assert run(["verify", "--trace", str(trace)]) == 0
        assert told in capsys.readouterr().out
    assert run(["trace", "-o", str(trace), "--ids", "5,6,7"]) == 0
    assert run(["verify", "--trace", str(trace)]) == 0
    assert "same: all 61 stages within rounding" in capsys.readouterr().out


def test_one_of_each_in_a_report() -> None:
    report = labkit.verify(ids=[[5]], tokens=1)
    assert token_line(report.tokens[0]) == "1 of 1 greedy token equal (1 distinct)"
    assert control_line(report).endswith("61 small planted faults, one a stage, all seen")
    one = dataclasses.replace(report, controls=dataclasses.replace(report.controls, planted=1))
    assert control_line(one).endswith("1 small planted fault, one a stage, seen")
    assert headline(report) == report.headline()


def test_one_defect_in_one_file(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0[]")
    assert run(["check", str(tmp_path / "a.safetensors")]) == 1
    assert "1 file, 1 defect, 0 cautions" in capsys.readouterr().out


def test_one_token_in_one_piece(capsys: Capture) -> None:
    assert run(["encode", "a", "--show"]) == 0
    assert "1 token in 1 piece\n" in "".join(f"{line.rstrip()}\n" for line in capsys.readouterr().out.splitlines())


def test_one_invariant_holds() -> None:
    from labkit.report.invariants import headline as of_invariants

    held = InvariantResult(name="a", verdict="held", detail="")
    away = InvariantResult(name="b", verdict="not applicable", detail="")
    assert of_invariants([held, away]) == "1 of 2 invariants holds, 1 not applicable"
    assert of_invariants([held, held]) == "2 of 2 invariants hold"


@pytest.mark.parametrize(
    "arguments", [["inventory", "--tensors"], ["doctor"], ["encode", "a b", "--show"], ["merges", "ab"]]
)
def test_tables_have_no_frame(arguments: list[str], capsys: Capture) -> None:
    assert run(arguments) in (0, 1)
    out = capsys.readouterr().out
    assert not {*out} & {*"┏┃┡│└─━╭╰"} - ({"│"} if arguments[0] == "merges" else set())  # between a piece's symbols


def test_no_tokens_asked_for_make_no_line(capsys: Capture) -> None:
    """None was compared, so none is said to be equal."""
    report = labkit.verify(ids=[[5, 6]], tokens=0)
    assert report.tokens == ()
    assert run(["verify", "--ids", "5,6", "--tokens", "0"]) == 0
    out = capsys.readouterr().out
    assert "0 of 0" not in out
    assert "not checked" in out
    assert "greedy" not in out
    assert run(["generate", "It", "--tokens", "0"]) == 0
    assert "no token was generated, float32 on cpu" in capsys.readouterr().err


def test_coverage_leaves_out_what_is_none() -> None:
    from labkit.report.coverage import coverage_line
    from labkit.verification.detective import Coverage

    assert (
        coverage_line(Coverage({"a": {"wte": 2.0}})) == "of 1 known mistake 1 would have shown at every stage of theirs"
    )
    nowhere = Coverage({"a": {"wte": 0.5}, "b": {}, "c": {"wte": float("nan")}})
    assert coverage_line(nowhere).startswith(
        "of 3 known mistakes 2 would have shown at none, 1 not rehearsed; not rehearsed"
    )


@pytest.mark.parametrize("steps", ["0", "1"])
def test_a_trace_of_one_tap(steps: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "one.safetensors"
    assert run(["trace", "-o", str(file), "--ids", "5", "--taps", "logits", "--steps", steps]) == 0
    assert run(["lint-trace", str(file)]) == 0
    held = "1 tap" + (", 1 decode step" if steps == "1" else "")
    assert f"{held} from transformers: clean" in capsys.readouterr().out
    assert run(["verify", "--trace", str(file)]) == 0
    out = capsys.readouterr().out
    assert ("the prompt and 1 decode step were judged" in out) == (steps == "1")
    assert " 0 would have shown" not in out


def test_an_empty_text_has_no_table(capsys: Capture) -> None:
    assert run(["encode", "", "--show"]) == 0
    assert capsys.readouterr().out.strip() == "the text is empty, and so are its tokens"


def test_one_position_and_one_token(capsys: Capture) -> None:
    assert run(["invariants", "--ids", "5"]) == 0
    assert "1 token with 3 positions of padding in front" in capsys.readouterr().out
    assert run(["dtype-study", "--ids", "5,6", "--tokens", "1", "--dtype", "bfloat16"]) == 0
    assert "greedy text: the same 1 token\n" in capsys.readouterr().out


def test_one_tensor(tmp_path: Path, capsys: Capture) -> None:
    import torch

    file = tmp_path / "a.safetensors"
    labkit.save_safetensors({"a": torch.ones(2)}, file)
    with labkit.open_safetensors(file) as opened:
        assert "1 tensor," in repr(opened)
    assert run(["diff", str(file), str(file)]) == 0
    assert "the one tensor is the same, bit for bit" in capsys.readouterr().out
    other = tmp_path / "b.safetensors"
    labkit.save_safetensors({"a": torch.zeros(2)}, other)
    assert run(["diff", str(file), str(other)]) == 1
    assert "1 of 1 tensor differs" in capsys.readouterr().out
