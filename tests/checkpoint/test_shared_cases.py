"""The snapshots of public bug reports: each gets the outcome that its maker states, or the one decided since."""

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from labkit.errors import LabkitError, OutOfRangeError
from labkit.load import load_gpt2
from labkit.model import GPT2
from tests.model.test_padding import ListCache

LOADER_CASES = {
    "case_01_wrapper_prefixes": 5,
    "case_02_legacy_buffers_bare_names": 5,
    "case_06_tied_head_matrix": 6,
    "case_07_vocab_size_disagreements": 4,
    "case_09_layer_count_mismatch": 3,
    "case_11_attention_scale_flags": 5,
    "case_15_half_precision_snapshots": 7,
}
DIAGNOSIS_CASES = [
    "case_04_square_transpose_diagnosis",
    "case_18_writer_layouts",
    "case_24_probe_alignment_and_tolerance",
]
TAPS_OF = {"attn.c_proj": ("attn.out",), "attn.c_attn": ("attn.q", "attn.k", "attn.v"), "mlp.c_fc": ("mlp.pre",)}
TOLERANCE = 1e-3
NAMES_ARE_SAID = ("case_01_wrapper_prefixes", "case_02_legacy_buffers_bare_names")  # in the report, although they load


@pytest.fixture(scope="module")
def makers(shared_cases: Path) -> Iterator[Path]:
    folder = shared_cases / "checkpoints"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_VERBOSITY"):  # the makers set them where they are not
            patch.setenv(name, os.environ.get(name, "1" if name == "HF_HUB_OFFLINE" else "error"))
        yield folder


def maker(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.parametrize("name", LOADER_CASES)
def test_a_case_loads_as_its_reference_or_is_refused_by_name(name: str, makers: Path, tmp_path: Path) -> None:
    case = maker(name)
    variants = case.make(str(tmp_path))
    assert len(variants) == LOADER_CASES[name]
    references = case.reference(str(tmp_path)) if hasattr(case, "reference") else {}
    ids = importlib.import_module("_common").IDS
    for variant, expected in variants.items():
        outcome = "refused" if variant == "both_differ_tied_flag" else expected["outcome"]
        if outcome in ("error", "refused"):
            with pytest.raises(LabkitError) as raised:
                load_gpt2(tmp_path / variant)
            told = str(raised.value)
        else:
            model = load_gpt2(tmp_path / variant)
            assert (model(ids) - references[variant]).abs().max() < 1e-4, variant
            told = str(model.load_report) if outcome == "report" or name in NAMES_ARE_SAID else None
        must_name = ["ids 300 to 319"] if variant == "padded" else expected["must_name"]
        for each in must_name if told is not None else ():
            assert each in told, f"{variant}: {each!r} is not in {told}"


def test_a_head_that_differs_loads_as_stored_on_request(makers: Path, tmp_path: Path) -> None:
    case = maker("case_06_tied_head_matrix")
    case.make(str(tmp_path))
    model = load_gpt2(tmp_path / "both_differ_tied_flag", untie=True)
    expected = case.reference(str(tmp_path))["both_differ_tied_flag"]
    assert (model(importlib.import_module("_common").IDS) - expected).abs().max() < 1e-4
    assert "tie_word_embeddings is true, but lm_head.weight is loaded as stored" in str(model.load_report)


def test_an_id_of_a_larger_tokenizer_is_refused_before_the_look_up(makers: Path, tmp_path: Path) -> None:
    maker("case_07_vocab_size_disagreements").make(str(tmp_path))
    model = load_gpt2(tmp_path / "tokenizer_bigger")
    with pytest.raises(OutOfRangeError, match=r"beyond the vocabulary \(expected 0 to 299, got 300\)"):
        model([5, 300])


def test_left_padded_rows_and_their_cache_equal_the_rows_alone(makers: Path, tmp_path: Path) -> None:
    case = maker("case_13_left_padded_batch_and_cache")
    case.make(str(tmp_path))
    expected = case.reference(str(tmp_path))
    model = load_gpt2(tmp_path / "snapshot")
    ids, mask, _ = case.padded()
    cache = ListCache()
    first = model.run(ids, attention_mask=mask, cache=cache).logits[:, -1]  # [batch, vocab]
    assert (first - expected["snapshot"]).abs().max() < 1e-4
    steps = []
    for step in range(2):
        cache.length = mask.shape[1]
        mask = torch.cat([mask, torch.ones(3, 1, dtype=mask.dtype)], dim=1)
        steps.append(model.run([[row[step]] for row in case.STEP_IDS], attention_mask=mask, cache=cache).logits[:, -1])
    assert (torch.stack(steps, dim=1) - expected["stepped"]).abs().max() < 1e-4


def first_difference(actual: GPT2, expected: GPT2, ids: torch.Tensor) -> str | None:
    a, b = actual.run(ids, taps="all").taps, expected.run(ids, taps="all").taps
    return next((name for name in b if (a[name] - b[name]).abs().max() > TOLERANCE), None)


@pytest.mark.parametrize("name", DIAGNOSIS_CASES)
def test_the_first_tap_that_differs_belongs_to_the_module_named(name: str, makers: Path, tmp_path: Path) -> None:
    case = maker(name)
    variants = case.make(str(tmp_path))
    ids = importlib.import_module("_common").IDS
    for variant, module in case.EXPECT_FIRST.items():
        found = first_difference(load_gpt2(tmp_path / variant), load_gpt2(tmp_path / variants[variant]["against"]), ids)
        if module is None:
            assert found is None
            continue
        block, stage = module[:4], module[4:]
        assert found in {block + each for each in TAPS_OF[stage]}, variant
