"""The shared battery and the tokenizer case of the checkpoints, where their folder lies beside the project."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from labkit.errors import LabkitError, TextError
from labkit.tokenizer import Tokenizer, merge, split


@pytest.fixture(scope="module")
def battery(request: pytest.FixtureRequest) -> dict[str, Any]:
    path = Path(__file__).resolve().parents[3] / "shared" / "cases" / "tokenizer" / "battery.json"
    if not path.is_file():
        pytest.skip("../shared/cases/tokenizer is not beside this clone")
    fields: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return fields


def test_strings(gpt2: Tokenizer, battery: dict[str, Any]) -> None:
    assert len(battery["strings"]) > 200
    for case in battery["strings"]:
        assert gpt2.encode(case["s"]) == case["ids"], case
        assert gpt2.encode_array(case["s"]).tolist() == case["ids"], case
        assert [token for piece in split(case["s"]) for token in merge(piece.data, gpt2.vocabulary)] == case["ids"], (
            case
        )
        assert gpt2.decode(case["ids"]) == case["s"], case


def test_surrogates(gpt2: Tokenizer, battery: dict[str, Any]) -> None:
    for case in battery["surrogate_strings"]:
        text = "".join(map(chr, case["code_units"]))
        assert gpt2.encode(text, surrogates="replace") == case["ids"], case
        with pytest.raises(TextError, match="lone surrogate"):
            gpt2.encode(text)


def test_byte_strings(gpt2: Tokenizer, battery: dict[str, Any]) -> None:
    for case in battery["byte_strings"]:
        data = bytes.fromhex(case["hex"])
        assert gpt2.encode_bytes(data) == case["ids_tiktoken_encode_bytes"], case
        assert gpt2.encode_piece(data) == case["ids_bpe_no_split"], case
        assert gpt2.decode_bytes(case["ids_tiktoken_encode_bytes"]) == data


def test_split_ids(gpt2: Tokenizer, battery: dict[str, Any]) -> None:
    for case in battery["split_id_sequences"]:
        assert gpt2.decode_bytes(case["ids"]).hex() == case["bytes_hex"], case
        assert gpt2.decode(case["ids"]) == case["text_replace"], case
        decoder = gpt2.incremental_decoder()
        assert [decoder.feed(token) for token in case["ids"]] + [decoder.close()] == case["stream_chunks"], case


@pytest.fixture(scope="module")
def case_22(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, Path]:
    folder = Path(__file__).resolve().parents[3] / "shared" / "cases" / "checkpoints"
    if not folder.is_dir():
        pytest.skip("../shared/cases/checkpoints is not beside this clone")
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("case_22", folder / "case_22_tokenizer_battery.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    target = tmp_path_factory.mktemp("case_22")
    module.make(str(target))
    return module, target


@pytest.mark.filterwarnings("ignore")  # of the maker, not of ours
def test_case_22(case_22: tuple[ModuleType, Path]) -> None:
    module, target = case_22
    reference = module.reference(str(target))
    for variant, expected in module.VARIANTS.items():
        if expected["outcome"] != "load":  # we refuse where either is right
            with pytest.raises(LabkitError) as refused:
                Tokenizer.from_folder(target / variant)
            assert all(name in str(refused.value) for name in expected["must_name"]), variant
            continue
        tokenizer = Tokenizer.from_folder(target / variant)
        for text, ids in reference[variant]:
            assert tokenizer.encode(text) == ids, (variant, text)
            assert tokenizer.encode_array(text).tolist() == ids, (variant, text)
            assert tokenizer.decode(ids) == text
        with pytest.raises(TextError, match="lone surrogate"):
            tokenizer.encode(module.BAD_TEXT)
        with pytest.raises(IndexError, match="no token has id 9999"):
            tokenizer.decode([9999])
    tokenizer = Tokenizer.from_folder(target / "header")
    for token, data in module.bytes_of(str(target)).items():
        assert tokenizer.token_bytes(token) == data
    assert len(set(map(tokenizer.token_bytes, tokenizer.encode(module.SPLIT_CHARACTER)))) > 1
