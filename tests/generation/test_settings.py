"""Options, the checkpoint's defaults under them, and what is refused."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import GenerationConfig
from transformers.generation.utils import GenerationMixin

from labkit.errors import ArgumentError, ArgumentTypeError, ConfigError
from labkit.generation.fields import KINDS, NOT_FOLLOWED
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
    with pytest.raises(ConfigError, match=r"generation_config.json: repetition_penalty: out of range .*got 0"):
        checkpoint_settings(folder_with(tmp_path, repetition_penalty=0))


WRONG_KINDS: dict[str, tuple[Any, ...]] = {
    "do_sample": ("false", 1),
    "temperature": ("hot", True, [0.7]),
    "top_k": (-1, 2.5, "50"),
    "top_p": ("0.9", False),
    "min_p": ("x",),
    "repetition_penalty": ("1.0", [1.0]),
    "max_new_tokens": (0, "x", 2.0),
    "min_new_tokens": (-1, True),
    "max_length": ("x", -1, 1e3),
    "eos_token_id": ("x", -1, [3, "5"], [[3]], True, {"id": 3}),
    "stop_strings": (5, "", ["a", ""], {"a": 1}),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG_KINDS for value in WRONG_KINDS[name]])
def test_a_field_of_the_wrong_kind_is_refused_by_its_own_name(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"generation_config.json: {name} is of the wrong kind \(expected "):
        checkpoint_settings(folder_with(tmp_path, **{name: value}))


def test_every_field_that_is_followed_is_checked_and_null_is_nothing(tmp_path: Path) -> None:
    assert WRONG_KINDS.keys() == KINDS.keys()
    assert checkpoint_settings(folder_with(tmp_path, **dict.fromkeys(KINDS))).settings == Settings()


def test_every_field_that_transformers_changes_logits_by_is_followed_or_told() -> None:
    read = re.findall(r"generation_config\.(\w+)", inspect.getsource(GenerationMixin._get_logits_processor))
    without_effect = {"use_cache", "renormalize_logits", "_eos_token_tensor"}
    refused_anyway = {"remove_invalid_values"}  # logits that are not finite end a text with an error
    assert len(set(read)) > 25
    assert set(read) <= KINDS.keys() | NOT_FOLLOWED.keys() | without_effect | refused_anyway
    assert NOT_FOLLOWED.keys() - set(GenerationConfig().to_dict()) == set()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"typical_p": 0.9, "top_h": 0.5, "epsilon_cutoff": 1e-4, "eta_cutoff": 1e-4}, []),
        ({"typical_p": 0.9, "top_h": 0.5, "do_sample": True}, ["top_h", "typical_p"]),
        ({"epsilon_cutoff": 0.0, "eta_cutoff": 1e-4, "do_sample": True}, ["eta_cutoff"]),
        ({"penalty_alpha": 0.6}, []),
        ({"penalty_alpha": 0.6, "top_k": 4}, ["penalty_alpha"]),
        ({"num_beam_groups": 2, "diversity_penalty": 0.5}, []),
        ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}, list(NOT_FOLLOWED)[:3]),
        ({"bad_words_ids": [], "suppress_tokens": [], "guidance_scale": 1, "num_return_sequences": 1}, []),
        ({"bad_words_ids": [[5]], "suppress_tokens": [5]}, ["bad_words_ids", "suppress_tokens"]),
        ({"max_time": 2.0, "token_healing": True}, ["token_healing", "max_time"]),
    ],
)
def test_a_field_is_told_where_it_would_change_the_text(
    tmp_path: Path, fields: dict[str, Any], told: list[str]
) -> None:
    notes = checkpoint_settings(folder_with(tmp_path, **fields)).notes
    assert [note.split()[2] for note in notes] == told


def test_a_long_value_is_told_short(tmp_path: Path) -> None:
    (note,) = checkpoint_settings(folder_with(tmp_path, bad_words_ids=[[5]] * 4000)).notes
    assert len(note) < 200


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("tokens", 2.5), ("top_k", True), ("temperature", "hot"), ("seed", 1.0)),
        *(("stop", "."), ("stop", 5), ("stop_ids", 5), ("stop_ids", {5}), ("stop_ids", (2.0,))),
    ],
)
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
