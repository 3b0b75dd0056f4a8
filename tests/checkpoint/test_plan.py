"""The mapping from tensors to parameters, on headers alone: every row of the matrix loads or is refused by name."""

import dataclasses
import re
from collections.abc import Callable

import pytest

from labkit.checkpoint.names import parse_name
from labkit.checkpoint.plan import Plan, Stored, plan_parameters
from labkit.config import GPT2Config, parameter_shapes
from labkit.errors import CheckpointError

CONFIG = GPT2Config(vocab_size=97, n_positions=32, n_embd=24, n_layer=2, n_head=3)
UNTIED = dataclasses.replace(CONFIG, tie_word_embeddings=False)
Tensors = dict[str, tuple[str, tuple[int, ...]]]


def good(config: GPT2Config = CONFIG, prefix: str = "transformer.") -> Tensors:
    return {
        (name if name == "lm_head.weight" else prefix + name): ("F32", shape)
        for name, shape in parameter_shapes(config).items()
    }


def plan(tensors: Tensors, config: GPT2Config = CONFIG, *, untie: bool = False) -> Plan:
    stored = [Stored(name=n, dtype=d, shape=s, shard="model.safetensors") for n, (d, s) in tensors.items()]
    return plan_parameters(stored, config, where="folder", untie=untie)


def refused(tensors: Tensors, *said: str, config: GPT2Config = CONFIG) -> None:
    with pytest.raises(CheckpointError, match=re.escape(said[0])) as raised:
        plan(tensors, config)
    for each in said:
        assert each in str(raised.value)
    assert "\n" not in str(raised.value)


def renamed(change: Callable[[str], str]) -> Tensors:
    return {change(name): each for name, each in good().items()}


def without(*names: str, tensors: Tensors | None = None) -> Tensors:
    return {name: each for name, each in (tensors or good()).items() if name not in names}


NAMES: dict[str, tuple[Callable[[str], str], tuple[str, ...]]] = {
    "prefixed": (lambda name: name, ()),
    "bare": (lambda name: name.removeprefix("transformer."), ()),
    "module": (lambda name: "module." + name, ("'module.'",)),
    "compiled": (lambda name: "_orig_mod." + name, ("'_orig_mod.'",)),
    "model": (lambda name: "model." + name, ("'model.'",)),
    "both": (lambda name: "_orig_mod.module." + name, ("'_orig_mod.module.'",)),
    "module around bare names": (lambda name: "module." + name.removeprefix("transformer."), ("'module.'",)),
    "compiled blocks": (
        lambda name: name.replace("h.0.", "h.0._orig_mod."),
        ("'_orig_mod.' was stripped from 12 of 28",),
    ),
    "mixed": (lambda name: name.removeprefix("transformer.") if "ln_" in name else name, ("names are mixed",)),
}


@pytest.mark.parametrize("case", NAMES)
def test_names_of_every_form_are_read_and_said(case: str) -> None:
    change, said = NAMES[case]
    result = plan(renamed(change))
    assert list(result.sources) == list(parameter_shapes(CONFIG))
    assert all(name == change("transformer." + parameter) for parameter, name in result.sources.items())
    notes = "\n".join(result.notes)
    assert all(each in notes for each in said)
    assert said or "wrapper" not in notes


def test_causal_mask_buffers_of_any_size_are_counted_and_left() -> None:
    buffers: Tensors = {}
    for i, size in enumerate((32, 7)):
        buffers[f"transformer.h.{i}.attn.bias"] = ("F32" if i else "BOOL", (1, 1, size, size))
        buffers[f"transformer.h.{i}.attn.masked_bias"] = ("F32", ())
    result = plan({**good(), **buffers})
    assert {each.name for each in result.left_out} == set(buffers)
    assert {each.use for each in result.left_out} == {"causal mask"}
    assert any(note.startswith("causal mask: 4 tensors left out") for note in result.notes)
    assert parse_name("h.0.attn.c_attn.bias").kind == "parameter"


def test_heads_of_other_classes_are_named_and_left() -> None:
    extra: Tensors = {
        "multiple_choice_head.summary.weight": ("F32", (1, 24)),
        "score.weight": ("F32", (2, 24)),
        "v_head.summary.bias": ("F32", (1,)),
        "transformer.h.0.crossattention.q_attn.weight": ("F32", (24, 24)),
        "transformer.h.0.crossattention.bias": ("U8", (1, 1, 32, 32)),
        "transformer.h.1.ln_cross_attn.bias": ("F32", (24,)),
    }
    result = plan({**good(), **extra})
    assert {each.name for each in result.left_out} == set(extra)
    notes = "\n".join(result.notes)
    assert "other head: 3 tensors left out (multiple_choice_head.summary.weight, " in notes
    assert "cross-attention: 3 tensors left out" in notes


@pytest.mark.parametrize(
    "name", ["h.00.ln_1.weight", "lm_head.bias", "transformer.transformer.wte.weight", "h.0.attn.c_attn.qweight", "wte"]
)
def test_a_tensor_that_no_rule_knows_is_refused(name: str) -> None:
    refused({**good(), name: ("F32", (24,))}, "GPT-2 has no parameter for this tensor", f"tensor {name!r}")


def test_the_near_names_are_offered() -> None:
    refused({**good(), "transformer.h.0.attn.c_attn.wieght": ("F32", (1,))}, "did you mean 'h.0.attn.c_attn.weight'")


def test_two_tensors_for_one_parameter_are_refused() -> None:
    refused(
        {**good(), "module.wte.weight": ("F32", (97, 24))},
        "two tensors for the parameter wte.weight",
        "'transformer.wte.weight' and 'module.wte.weight'",
    )


def test_every_missing_parameter_is_refused_by_name() -> None:
    for parameter in parameter_shapes(CONFIG):
        refused(without(f"transformer.{parameter}"), parameter, "no tensor fills this parameter")


def test_blocks_and_n_layer_that_disagree_are_refused() -> None:
    one, three = (dataclasses.replace(CONFIG, n_layer=n) for n in (1, 3))
    refused(good(), "block h.1. but n_layer is 1", config=one)
    refused(good(), "block h.2. is missing while n_layer is 3", "got h.0., h.1.", config=three)
    gap = renamed(lambda name: name.replace("h.1.", "h.2."))
    refused(gap, "block h.1. is missing while n_layer is 3", config=three)


def test_every_wrong_shape_is_refused_with_both_shapes() -> None:
    for name, (dtype, shape) in good().items():
        wrong = (*shape[:-1], shape[-1] + 1)
        refused({**good(), name: (dtype, wrong)}, "the shape is wrong", name, str(list(shape)), str(list(wrong)))


def test_linear_layout_is_recognised() -> None:
    tensors = good()
    for name in ("attn.c_attn", "mlp.c_fc", "mlp.c_proj"):
        dtype, shape = tensors[f"transformer.h.1.{name}.weight"]
        refused({**tensors, f"transformer.h.1.{name}.weight": (dtype, shape[::-1])}, "nn.Linear's layout [out, in]")


def test_tables_that_disagree_with_the_config_are_refused_naming_the_field() -> None:
    for rows in (96, 98):
        tensors = {**good(), "transformer.wte.weight": ("F32", (rows, 24))}
        refused(
            tensors,
            "wte.weight",
            "vocab_size = 97",
            f"got [{rows}, 24]",
            f"correct vocab_size in config.json to {rows}",
        )
    refused(
        {**good(), "transformer.wpe.weight": ("F32", (33, 24))}, "n_positions = 32", "n_positions in config.json to 33"
    )
    refused({**good(), "transformer.wte.weight": ("F32", (97, 25))}, "n_embd = 24", "another model")


def test_dtypes_that_hold_no_weights_are_refused() -> None:
    for dtype in ("I8", "U8", "BOOL", "F8_E4M3", "I64", "C64"):
        refused({**good(), "transformer.ln_f.bias": (dtype, (24,))}, "the dtype is not one of a weight", dtype)
    for dtype in ("F16", "BF16", "F64"):
        assert plan({**good(), "transformer.ln_f.bias": (dtype, (24,))}).sources["ln_f.bias"]


HEAD: Tensors = {"lm_head.weight": ("F32", (97, 24))}


def test_a_tied_head_that_is_absent_present_or_alone() -> None:
    assert any("the head is tied" in note for note in plan(good()).notes)
    assert plan({**good(), **HEAD}).compare_head == ("transformer.wte.weight", "lm_head.weight")
    alone = plan({**without("transformer.wte.weight"), **HEAD})
    assert alone.sources["wte.weight"] == "lm_head.weight"
    assert alone.compare_head is None
    assert any("wte.weight is not stored: it is taken from 'lm_head.weight'" in note for note in alone.notes)


def test_an_untied_head_must_be_there() -> None:
    assert plan({**good(), **HEAD}, UNTIED).sources["lm_head.weight"] == "lm_head.weight"
    refused(good(), "lm_head.weight is missing while tie_word_embeddings is false", config=UNTIED)
    refused(without("transformer.wte.weight", tensors={**good(), **HEAD}), "wte.weight", config=UNTIED)
    refused({**good(), "lm_head.weight": ("F32", (98, 24))}, "lm_head.weight", "the table has 98 rows", config=UNTIED)


def test_neither_table_is_refused() -> None:
    refused(without("transformer.wte.weight"), "wte.weight", "neither wte.weight nor lm_head.weight is stored")


def test_untie_loads_the_stored_head() -> None:
    result = plan({**good(), **HEAD}, untie=True)
    assert not result.config.tie_word_embeddings
    assert result.sources["lm_head.weight"] == "lm_head.weight"
    assert any("untie=True" in note for note in result.notes)
    with pytest.raises(CheckpointError, match=r"untie=True but no lm_head.weight is stored"):
        plan(good(), untie=True)
