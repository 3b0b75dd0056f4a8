"""The commands: what they print, the codes they end with, and that nothing heavy is loaded."""

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from labkit.cli.main import run
from labkit.tokenizer import Tokenizer

Capture = pytest.CaptureFixture[str]


def test_encode_and_decode(capsys: Capture) -> None:
    assert run(["encode", "Hello, world!"]) == 0
    assert capsys.readouterr().out == "15496 11 995 0\n"
    assert run(["decode", "15496", "11", "995", "0"]) == 0
    assert capsys.readouterr().out == "Hello, world!"
    assert run(["decode", "[15496, 11]"]) == 0
    assert capsys.readouterr().out == "Hello,"


def test_encode_a_file_and_standard_input(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.txt").write_text("today\n ", encoding="utf-8", newline="")
    assert run(["encode", "--file", str(tmp_path / "text.txt")]) == 0
    assert capsys.readouterr().out == "40838 198 220\n"
    given = SimpleNamespace(buffer=io.BytesIO("日本".encode()), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", given)
    assert run(["encode"]) == 0
    assert capsys.readouterr().out == "33768 98 17312 105\n"


def test_special_tokens(capsys: Capture) -> None:
    text = "a<|endoftext|>b"
    for options, expected in (
        ([], "64 27 91 437 1659 5239 91 29 65\n"),
        (["--special-tokens", "huggingface"], "64 50256 65\n"),
        (["--allow", "<|endoftext|>"], "64 50256 65\n"),
    ):
        assert run(["encode", text, *options]) == 0
        assert capsys.readouterr().out == expected
    assert run(["encode", text, "--special-tokens", "tiktoken"]) == 2
    assert "holds the special token '<|endoftext|>', which is not allowed" in capsys.readouterr().err


def test_json(tmp_path: Path, capsys: Capture) -> None:
    assert run(["encode", "Hello, world!", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["ids"] == [15496, 11, 995, 0]
    assert run(["decode", "33768", "--json", str(tmp_path / "out.json")]) == 0
    assert json.loads((tmp_path / "out.json").read_text("utf-8")) == {"ids": [33768], "text": "\ufffd", "bytes": "e697"}
    capsys.readouterr()
    assert run(["merges", "don't", "--json", "-"]) == 0
    pieces = json.loads(capsys.readouterr().out)["pieces"]
    assert [piece["text"] for piece in pieces] == ["don", "'t"]
    assert pieces[1]["steps"][0]["rank"] == 470 - 256


def test_merges_and_show(capsys: Capture) -> None:
    assert run(["merges", " world"]) == 0
    out = capsys.readouterr().out
    assert "·wor + ld" in out
    assert "739" in out
    assert run(["merges", ""]) == 0
    assert capsys.readouterr().out == ""
    assert run(["encode", "日本", "--show"]) == 0
    assert "⟨e6 97⟩" in capsys.readouterr().out


def test_encode_into_a_file(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "text.txt").write_text("Hello, world!")
    target = tmp_path / "ids.npy"
    assert run(["encode", "--file", str(tmp_path / "text.txt"), "--out", str(target)]) == 0
    assert np.load(target).tolist() == [15496, 11, 995, 0]
    assert "4 ids (uint16) from 13 bytes" in capsys.readouterr().out


def test_parity(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "text.txt").write_text("Hello, world! " * 100)
    assert run(["parity", str(tmp_path / "text.txt")]) == 0
    out = capsys.readouterr().out
    assert "tiktoken: 1,400 characters, 401 tokens, same ids" in out
    assert "tokenizers: 1,400 characters" in out


def test_a_difference_ends_with_one(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = Tokenizer.encode
    monkeypatch.setattr(Tokenizer, "encode", lambda self, text: [token for token in encode(self, text) if token != 995])
    (tmp_path / "text.txt").write_text("Hello, world! " * 100)
    assert run(["parity", str(tmp_path / "text.txt"), "--json", "-"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [row["difference"]["text"] for row in rows] == [" world", " world"]


def test_train(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat\n" * 20)
    arguments = ["train-bpe", str(tmp_path / "text.txt"), "--vocab-size", "269", "-o", str(tmp_path / "out")]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert "269 tokens, 12 merges learned from 7 different pieces; the last merge, " in out
    assert "joined a pair that stood 20 times in the texts" in out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["merges.txt", "tokenizer.json", "vocab.json"]
    assert run(["encode", " the", "--tokenizer", str(tmp_path / "out")]) == 0
    assert len(capsys.readouterr().out.split()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["encode", "a", "--tokenizer", "/nowhere"], "/nowhere: there is no such folder"),
        (["encode", "a", "--file", "b"], "give a text or --file, not both"),
        (["encode", "--file", "/nowhere"], "/nowhere: there is no such file"),
        (["encode", "a", "--out", "x.npy"], "--out needs --file"),
        (["encode", "a\udcff"], "the text holds the lone surrogate U+DCFF"),
        (["merges", "so " + "x" * 1001], "the piece at character 2: is too long to show every merge of"),
        (["decode", "50257"], "position 0: no token has id 50257 (expected 0 to 50256"),
        (["decode", "-1"], "no such option"),
        (["decode", "--", "-1"], "not a list of token ids"),
        (["decode", "1.5"], "not a list of token ids"),
        (["decode", "33768", "--errors", "strict"], "the tokens' bytes are not UTF-8"),
        (["parity", "/nowhere"], "/nowhere: there is no such file"),
        (["train-bpe", "/nowhere", "--vocab-size", "300", "-o", "/tmp/x"], "/nowhere: there is no such file"),
        (["encode", "a", "--special-tokens", "other"], "'other' is not one of"),
    ],
)
def test_unusable_input_ends_with_two_and_one_line(capsys: Capture, arguments: list[str], message: str) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert message.lower() in captured.err.lower()
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err


def test_encode_loads_neither_torch_nor_matplotlib() -> None:
    check = (
        "import sys; from labkit.cli.main import run; assert run(['encode', 'a']) == 0; "
        "print([m for m in ('torch', 'matplotlib', 'tokenizers', 'tiktoken', 'regex', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["64", "[]"]


def test_bench_on_a_small_text(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every measure is made and printed; whether goals are reached is for a quiet machine, so both codes may come."""
    from labkit.bench import tokenize

    monkeypatch.setattr(tokenize, "LENGTHS", (1000, 2000, 4000, 8000))
    monkeypatch.setattr(tokenize.texts, "hostile", lambda length: {"letters": "ab" * length})
    monkeypatch.setattr(tokenize, "_two_processes", lambda text, rounds: [])
    (tmp_path / "text.txt").write_text("Hello, world! It is a truth universally acknowledged. " * 300)
    code = run(["bench", "tokenize", str(tmp_path / "text.txt"), "--rounds", "1", "--json", str(tmp_path / "out.json")])
    fields = json.loads((tmp_path / "out.json").read_text("utf-8"))
    assert code == fields["return_code"]
    assert code in (0, 1)
    assert len(fields["measures"]) == 12
    assert "text.txt, warm, array" in capsys.readouterr().out


def test_bench_texts_are_what_they_say() -> None:
    from labkit.bench import tokenize_texts as texts

    english = texts.english(100_000)
    assert 90_000 < len(english.encode()) <= 100_000
    assert english.count(" the ") > 200
    assert texts.code(50_000).count("def ") > 20
    many = texts.many_scripts(200_000)
    assert many is None or sum(not character.isascii() for character in many) > 20_000
    assert {len(text) for text in texts.hostile(1000).values()} <= {1000, 500}


def test_a_side_that_gives_other_ids_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit.bench import tokenize

    with pytest.raises(ValueError, match="english: the ids differ, so there is nothing to time"):
        tokenize._check("english", [1], [2])
