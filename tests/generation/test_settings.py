"""Options, the checkpoint's defaults under them, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from labkit.errors import ArgumentError, ArgumentTypeError, ConfigError
from labkit.generation.settings import Settings, checkpoint_settings, resolve


def folder_with(tmp_path: Path, **fields: Any) -> Path:
    (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    return tmp_path


def test_no_file_is_plain_greedy(tmp_path: Path) -> None:
    sourced = checkpoint_settings(tmp_path)
    assert sourced.settings == Settings()
    assert sourced.settings.plain
    assert str(sourced) == "greedy"


def test_the_file_s_sampling_is_honoured_and_named(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path, do_sample=True, temperature=0.7, top_p=0.9, eos_token_id=[3, 5], max_new_tokens=7, top_k=0
    )
    sourced = checkpoint_settings(folder)
    assert sourced.settings == Settings(temperature=0.7, top_p=0.9, stop_ids=(3, 5), tokens=7)
    assert "temperature 0.7 (generation_config.json)" in str(sourced)


def test_sampling_without_top_k_cuts_to_fifty_as_transformers_does(tmp_path: Path) -> None:
    sourced = checkpoint_settings(folder_with(tmp_path, do_sample=True))
    assert (sourced.settings.top_k, sourced.settings.temperature) == (50, 1.0)
    assert "top_k 50 (transformers' default" in str(sourced)


def test_without_do_sample_temperature_and_cuts_are_idle(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, temperature=0.7, top_k=5, eos_token_id=9)
    assert checkpoint_settings(folder).settings == Settings(stop_ids=(9,))


def test_options_win_over_the_file(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, do_sample=True, temperature=0.7, eos_token_id=9)
    sourced = resolve({"temperature": 0.0, "stop_ids": (1,), "seed": None}, folder=folder)
    assert not sourced.settings.sampled
    assert sourced.settings.stop_ids == (1,)
    assert sourced.origins["temperature"] == "given"


def test_max_length_counts_the_prompt(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, max_length=50)
    sourced = resolve({}, folder=folder, longest_prompt=12)
    assert sourced.settings.tokens == 38
    assert "max_length 50" in str(sourced)
    assert resolve({"tokens": 4}, folder=folder, longest_prompt=12).settings.tokens == 4


def test_fields_that_are_not_followed_are_told(tmp_path: Path) -> None:
    notes = checkpoint_settings(folder_with(tmp_path, num_beams=4, no_repeat_ngram_size=0)).notes
    assert notes == ("generation_config.json states num_beams 4, which labkit does not follow",)


def test_stop_ids_of_the_file_beyond_the_vocabulary_are_left_out_with_a_note(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, eos_token_id=[3, 50256])
    assert checkpoint_settings(folder).settings.stop_ids == (3, 50256)
    sourced = checkpoint_settings(folder, vocab_size=500)
    assert (sourced.settings.stop_ids, sourced.origins["stop_ids"]) == ((3,), "generation_config.json")
    told = "generation_config.json states eos_token_id 50256, which is beyond the vocabulary of 500 ids: left out"
    assert sourced.notes == (told,)
    nothing = resolve({}, folder=folder_with(tmp_path, eos_token_id=50256), vocab_size=500)
    assert (nothing.settings, str(nothing), nothing.notes) == (Settings(), "greedy", (told,))


def test_a_wrong_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"generation_config.json: temperature: out of range .*got -1"):
        checkpoint_settings(folder_with(tmp_path, do_sample=True, temperature=-1))
    with pytest.raises(ConfigError, match="stop_ids: not a whole number"):
        checkpoint_settings(folder_with(tmp_path, eos_token_id="x"))
    with pytest.raises(ConfigError, match="max_length: not a whole number"):
        checkpoint_settings(folder_with(tmp_path, max_length="x"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokens", -1),
        ("min_tokens", -1),
        ("temperature", -0.5),
        ("temperature", float("nan")),
        ("top_k", 0),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("min_p", 1.01),
        ("repetition_penalty", 0.0),
        ("stop_ids", (-1,)),
        ("stop", ("",)),
        ("seed", -3),
        ("seed", 2**63),
        ("temperature", 10**4000),
        ("repetition_penalty", 1e-300),
        ("tokens", -(10**4000)),
    ],
)
def test_options_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"^{name}: "):
        Settings(**{name: value})


@pytest.mark.parametrize(("name", "value"), [("tokens", 2.5), ("top_k", True), ("temperature", "hot"), ("seed", 1.0)])
def test_options_of_the_wrong_type(name: str, value: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=f"^{name}: "):
        Settings(**{name: value})


IDLE = "because tokens are drawn only at a temperature above 0"


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ({"top_k": 40}, f"without effect: top_k 40, {IDLE}"),
        ({"top_p": 0.9, "temperature": 0}, f"without effect: top_p 0.9, {IDLE}"),
        ({"min_p": 0.1}, f"without effect: min_p 0.1, {IDLE}"),
        ({"seed": 4, "top_k": 3}, f"without effect: top_k 3, seed 4, {IDLE}"),
        ({"min_tokens": 5}, "without effect: min_tokens 5, because no stop is set that it could hold back"),
        (
            {"min_tokens": 5, "tokens": 2, "stop": ("a",)},
            "min_tokens 5 is more than tokens 2: the text ends after 2 tokens, and no stop acts before",
        ),
        (
            {"top_k": 1, "temperature": 0.5},
            "top_k 1 leaves only the likeliest id to draw, so that nothing is drawn by chance",
        ),
        (
            {"min_p": 1.0, "temperature": 0.5},
            "min_p 1 leaves only the likeliest id to draw, so that nothing is drawn by chance",
        ),
    ],
)
def test_an_option_without_effect_is_told(given: dict[str, Any], note: str) -> None:
    assert resolve(given, folder=None).notes == (note,)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.1, "seed": 4},
        {"min_tokens": 5, "stop": ("a",)},
        {"min_tokens": 5, "tokens": 5, "stop_ids": (3,)},
        {"repetition_penalty": 1.2},
        {"top_k": None, "seed": None},
    ],
)
def test_an_option_with_effect_is_not(given: dict[str, Any]) -> None:
    assert resolve(given, folder=None).notes == ()


def test_stops_that_take_the_place_of_the_checkpoint_s_are_told(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, eos_token_id=[3, 5, 9], stop_strings=["x"])
    told = "the checkpoint's own stop_ids 3 and 9 end nothing now: give them too to keep them"
    assert resolve({"stop_ids": (5,)}, folder=folder).notes == (told,)
    assert resolve({"stop_ids": (9, 5, 3), "stop": ("x", "y")}, folder=folder).notes == ()
    told = "the checkpoint's own stop 'x' end nothing now: give them too to keep them"
    assert resolve({"stop": ("y",)}, folder=folder).notes == (told,)


def test_settings_are_told_without_python_s_brackets(tmp_path: Path) -> None:
    sourced = resolve({"stop": ("a", "\n")}, folder=folder_with(tmp_path, eos_token_id=9))
    assert str(sourced) == "stop_ids 9 (generation_config.json), stop 'a' and '\\n' (given)"
