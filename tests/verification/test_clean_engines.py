"""Clean engines are called the same whatever the size of their numbers: no budget is too small, no cause is invented."""

from pathlib import Path
from typing import Any

import pytest
import torch

import labkit
from labkit.load import load_gpt2
from labkit.verification.invariants import check_model
from labkit.verification.verdict import FEW_ERRORS, Floor, pooled
from tests.oracles import random_checkpoint

ONE_KEY: dict[str, Any] = {"seed": 100, "std": 0.3, "n_head": 2, "n_positions": 3, "n_embd": 64}
"""Scores of tens: a query attends to one key alone, and the rest of its weights vanish in the rounding of z."""
HOT: dict[str, Any] = {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 64, "std": 1.0}
"""Scores of hundreds: weights of 1e-200, whose squares are no float64, beside weights that a rounding turns over."""
FLAT: dict[str, Any] = {"n_positions": 64, "std": 0.001}
"""Scores of nothing: all weights of a row are equal, and all round the same way."""
FEW: dict[str, Any] = {
    "seed": 6,
    "std": 0.4,
    "n_head": 1,
    "n_positions": 3,
    "n_embd": 32,
    "activation_function": "gelu",
}
"""Two tokens: a pattern holds one error, which may be far below its like by luck."""

LONG = [(7 * place * place + 3) % 97 for place in range(60)]


@pytest.mark.parametrize(
    ("fields", "ids", "dtype"),
    [
        ({**ONE_KEY, "scale_attn_weights": False}, [64, 14, 68], "bfloat16"),
        ({**ONE_KEY, "scale_attn_weights": False}, [64, 14, 68], "float16"),
        (HOT, LONG[:24], "float64"),
        (HOT, LONG[:24], "float32"),
        (HOT, LONG[:24], "bfloat16"),
        (HOT, LONG[:24], "float16"),
        (FLAT, LONG, "bfloat16"),
        (FLAT, LONG, "float64"),
        ({**FEW, "scale_attn_by_inverse_layer_idx": True}, [41, 14], "float32"),
        ({**FEW, "scale_attn_by_inverse_layer_idx": True}, [41, 14], "float64"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_clean_engine_is_the_same(fields: dict[str, Any], ids: list[int], dtype: str, tmp_path: Path) -> None:
    random_checkpoint.write(tmp_path, **fields)
    report = labkit.verify(tmp_path, ids=[ids], dtype=dtype, tokens=0)
    assert report.verdict == "same", str(report)
    assert report.findings == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("fields", [FLAT, HOT], ids=["flat", "hot"])
def test_a_clean_engine_keeps_every_invariant(fields: dict[str, Any], dtype: torch.dtype, tmp_path: Path) -> None:
    random_checkpoint.write(tmp_path, **fields)
    results = check_model(load_gpt2(tmp_path, dtype=dtype), ids=[LONG])
    assert [(result.name, result.detail) for result in results if result.verdict == "broken"] == []


def test_a_floor_of_few_errors_takes_in_those_before_it() -> None:
    floors = {
        "embed": Floor(0.2, 500),
        "h.0.ln_1": Floor(0.1, FEW_ERRORS),
        "h.0.attn.scores": Floor(0.05, FEW_ERRORS - 4),
        "h.0.attn.pattern": Floor(0.001, 2),
        "h.0.attn.z": Floor(0.02, 300),
    }
    shares = {tap: floor.share for tap, floor in pooled(floors).items()}
    assert shares == {
        "embed": 0.2,
        "h.0.ln_1": 0.1,
        "h.0.attn.scores": 0.1,
        "h.0.attn.pattern": 0.1,
        "h.0.attn.z": 0.02,
    }
