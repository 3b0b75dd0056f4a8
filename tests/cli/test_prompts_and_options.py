"""A checkpoint of a small vocabulary and no tokenizer, as transformers saves one: ids in, and errors that name options."""

import inspect
import json
import logging
from pathlib import Path

import pytest

from labkit.cli.main import app, run
from labkit.cli.options import PHRASES
from tests.oracles import random_checkpoint

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 ids, GPT-2's own 50256 as end of text, no tokenizer."""
    place = tmp_path_factory.mktemp("small")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    random_checkpoint.write(place, vocab_size=500, n_layer=2, bos_token_id=50256, eos_token_id=50256)
    return place


def test_a_stop_id_of_the_checkpoint_beyond_its_vocabulary_is_a_note(folder: Path, capsys: Capture) -> None:
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 50256
    assert run(["generate", "--ids", "1,2,3", "--model", str(folder), "--tokens", "3"]) == 0
    out, err = capsys.readouterr()
    assert len(out.split()) == 3
    note = "generation_config.json states eos_token_id 50256, which is beyond the vocabulary of 500 ids: left out"
    assert note in err
    assert run(["inventory", str(folder)]) == 0
    assert note in capsys.readouterr().out


def test_a_stop_id_given_beyond_the_vocabulary_is_an_error(folder: Path, capsys: Capture) -> None:
    assert run(["generate", "--ids", "1", "--model", str(folder), "--stop-id", "600"]) == 2
    assert (
        capsys.readouterr().err == "labkit: --stop-id: the id is beyond the vocabulary (expected 0 to 499, got 600)\n"
    )


def test_inventory_tells_what_generating_would_refuse(tmp_path: Path, capsys: Capture) -> None:
    random_checkpoint.write(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": "x"}')
    assert run(["inventory", str(tmp_path)]) == 0
    assert "generation_config.json: eos_token_id is of the wrong kind (expected an id" in capsys.readouterr().out


def test_stop_strings_of_the_checkpoint_without_a_tokenizer_are_a_note(tmp_path: Path, capsys: Capture) -> None:
    random_checkpoint.write(tmp_path, vocab_size=500, n_layer=1)
    (tmp_path / "generation_config.json").write_text('{"stop_strings": ["a", "b"]}')
    assert run(["generate", "--ids", "1,2,3", "--model", str(tmp_path), "--tokens", "3"]) == 0
    out, err = capsys.readouterr()
    assert len(out.split()) == 3
    assert "generation_config.json states stop_strings 'a' and 'b': left out, as there is no tokenizer" in err
    assert run(["generate", "--ids", "1", "--model", str(tmp_path), "--stop", "a"]) == 2
    assert "a text needs a tokenizer" in capsys.readouterr().err


def test_links_that_lead_nowhere_are_not_passed_over(tmp_path: Path, capsys: Capture) -> None:
    random_checkpoint.write(tmp_path, vocab_size=500, n_layer=1)
    told = {"generation_config.json": "there is no such", "vocab.json": "got vocab.json only"}
    for name, words in told.items():
        (tmp_path / name).unlink(missing_ok=True)
        (tmp_path / name).symlink_to("not-there")
        assert run(["generate", "--ids", "1", "--model", str(tmp_path), "--tokens", "3"]) == 2
        assert words in capsys.readouterr().err
        (tmp_path / name).unlink()


def test_generate_takes_ids(folder: Path, embedded: Path, capsys: Capture) -> None:
    assert run(["generate", "--ids", "5,6", "--ids", "7", "--model", str(folder), "--tokens", "4"]) == 0
    first, one, second, two = capsys.readouterr().out.splitlines()
    assert (first, second) == ("==> row 1 <==", "==> row 2 <==")
    assert [len(line.split()) for line in (one, two)] == [4, 4]
    assert run(["generate", "The", "--tokens", "3"]) == 0
    text = capsys.readouterr().out
    run(["encode", "The", "--tokenizer", str(embedded)])
    assert run(["generate", "--ids", capsys.readouterr().out, "--tokens", "3"]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    "arguments",
    [["faults", "--only", "relu", "--no-floors"], ["dtype-study", "--tokens", "3"], ["invariants"], ["trace", "-o"]],
    ids=lambda arguments: str(arguments[0]),
)
def test_without_a_tokenizer_ids_are_drawn_and_told(
    arguments: list[str], folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    target = [str(tmp_path / "trace.safetensors")] if arguments[-1] == "-o" else []
    assert run([*arguments, *target, str(folder)]) == 0
    assert "ids drawn at random (seed 0) were used" in "".join(capsys.readouterr())


def test_dtype_study_takes_ids(folder: Path, capsys: Capture) -> None:
    assert run(["dtype-study", str(folder), "--ids", "1,2,3,4", "--tokens", "3"]) == 0
    out, err = capsys.readouterr()
    assert "4 positions" in out
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "Hi", "--model", "{folder}"], "none is beside the checkpoint; give --ids in place of the text"),
        (["dtype-study", "{folder}", "--text", "Hi"], "give --ids in place of the text"),
        (["faults", "{folder}", "--prompt", "Hi"], "give --ids instead"),
        (["faults", "--prompt", "Hi", "--ids", "1"], "--prompt and --ids were both given"),
        (["dtype-study", "--text", "Hi", "--ids", "1"], "--text and --ids were both given"),
        (["generate", "Hi", "--ids", "1"], "a prompt and --ids were both given"),
        (["generate"], "no prompt; give one"),
        (["generate", "--ids", "a"], "not a list of token ids"),
        (["generate", "Hi", "--temperature", "-1"], "--temperature: out of range"),
        (["generate", "Hi", "--tokens", "900"], "or add --window slide to go on"),
        (["generate", "Hi", "--lookup", "--no-cache"], "--lookup: look-up decoding goes on"),
        (["dtype-study", "--ids", "1"], "--text: too short to study"),
        (["generate", "--ids", "4000"], "come from its own vocabulary: `labkit encode -t FOLDER`"),
        (["verify", "--ids", "4000"], "come from its own vocabulary: `labkit encode -t FOLDER`"),
        (["dtype-study", "--ids", "5,4000"], "come from its own vocabulary: `labkit encode -t FOLDER`"),
        (["encode", "\udcff"], "; give a text that is UTF-8"),
        (["encode", "a<|endoftext|>", "--special-tokens", "tiktoken"], "take it as text with --special-tokens plain"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_name_options(arguments: list[str], message: str, folder: Path, capsys: Capture) -> None:
    assert run([word.format(folder=folder) for word in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_the_phrases_that_are_put_into_options_are_the_library_s(root: Path) -> None:
    sources = [path for path in (root / "labkit").rglob("*.py") if path.parent.name != "cli"]
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    assert [phrase for phrase in PHRASES if phrase not in text] == []


DTYPED = {
    "verify": ["--ids", "5,6,7", "--tokens", "0"],
    "trace": ["-o", "{target}"],
    "generate": ["Hi", "--tokens", "1"],
    "dtype-study": ["--tokens", "1"],
    "convert": ["{embedded}", "{target}", "--no-check"],
    "invariants": ["--ids", "5,6,7"],
    "golden": ["-o", "{target}", "--ids", "5,6,7"],
}


@pytest.mark.parametrize("command", DTYPED)
def test_a_dtype_goes_by_any_of_its_names(command: str, embedded: Path, tmp_path: Path, capsys: Capture) -> None:
    for number, name in enumerate(("bf16", "bfloat16", "BF16")):
        words = [word.format(embedded=embedded, target=tmp_path / str(number)) for word in DTYPED[command]]
        assert run([command, *words, "--dtype", name]) == 0
        capsys.readouterr()
    assert run([command, *words, "--dtype", "bf61"]) == 2
    assert "--dtype: no dtype named 'bf61'; did you mean 'bf16'" in capsys.readouterr().err


def test_every_command_with_a_dtype_is_tried() -> None:
    commands = {
        each.name or each.callback.__name__.replace("_", "-"): each.callback
        for each in app.registered_commands
        if each.callback is not None
    }
    assert {name for name, call in commands.items() if "dtype" in inspect.signature(call).parameters} == set(DTYPED)
