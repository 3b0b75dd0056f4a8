"""config.json -> GPT2Config: every field honoured, its default taken, or refused by name; all against transformers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config as TransformersConfig

from labkit.config import ACTIVATIONS, ALIASES, GPT2Config, config_notes, parameter_shapes, parse_config
from labkit.errors import ConfigError
from labkit.model.operations import activation
from tests.oracles import numpy_gpt2, random_checkpoint


def test_defaults_are_those_of_transformers() -> None:
    peer, ours = TransformersConfig().to_dict(), parse_config({})
    assert {name: peer[name] for name in GPT2Config.__dataclass_fields__} == vars(ours)


def test_every_activation_has_a_function_and_an_oracle() -> None:
    assert set(ACTIVATIONS) == set(numpy_gpt2.ACTIVATIONS)
    assert all(callable(activation(name)) for name in ACTIVATIONS)


@pytest.mark.parametrize("alias", ALIASES)
def test_an_alias_stands_in_for_the_field_but_does_not_override_it(alias: str) -> None:
    name = ALIASES[alias]
    rest = {} if name == "n_embd" else {"n_embd": 72}
    assert getattr(parse_config({alias: 24, **rest}), name) == 24
    assert getattr(parse_config({alias: 36, name: 24, **rest}), name) == 24
    assert any(note.startswith(f"{alias} is 36 but {name} is 24") for note in config_notes({alias: 36, name: 24}))


def test_fields_that_gpt2_does_not_have_are_named() -> None:
    assert not [note for note in config_notes(TransformersConfig().to_dict()) if "no config field" in note]
    notes = config_notes({**TransformersConfig().to_dict(), "rope_theta": 1e4, "sliding_window": 512})
    assert "GPT-2 has no config field rope_theta, sliding_window: without effect here" in notes


@given(
    st.dictionaries(
        st.sampled_from([*GPT2Config.__dataclass_fields__, *ALIASES, "add_cross_attention", "dtype"]),
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-2, 2000),
            st.floats(),
            st.text(max_size=8),
            st.just("gelu_new"),
            st.lists(st.integers(), max_size=2),
        ),
    )
)
def test_any_fields_give_a_sound_config_or_one_line(fields: dict[str, Any]) -> None:
    try:
        config = parse_config(fields)
    except ConfigError as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert said.startswith("config.json: ")
        assert "\n" not in said
        return
    assert config.n_embd == config.n_head * config.head_dim
    assert 0 < config.layer_norm_epsilon < 1
    for name, value in fields.items():
        assert name not in GPT2Config.__dataclass_fields__ or getattr(config, name) == value


@pytest.mark.parametrize("seed", range(6))
def test_parameter_shapes_are_those_of_transformers(seed: int) -> None:
    fields = random_checkpoint.random_fields(seed)
    peer = random_checkpoint.build(**fields)
    shapes = {name.removeprefix("transformer."): tuple(each.shape) for name, each in peer.named_parameters()}
    assert parameter_shapes(parse_config(peer.config.to_dict())) == shapes
