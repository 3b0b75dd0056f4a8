"""No fault survives; each is named for what it is; equivalents are proved; each fault dies somewhere."""

from pathlib import Path
from typing import Any

import pytest
import torch

from labkit.errors import CheckpointError
from labkit.verification.faults import FAULTS
from labkit.verification.hypotheses import HYPOTHESES
from labkit.verification.kill_matrix import KillMatrix, kill_matrix
from tests.oracles import random_checkpoint

EQUIVALENT = {"mask-finite-1e4", "softmax-without-max"}
"""At these ranges exp(-10,000) is zero, and a softmax is the same with and without the maximum taken off."""

WITHIN_ROUNDING = {"epsilon-1e-8": "epsilon-1e-12", "epsilon-1e-12": "epsilon-1e-8"}
"""Mistakes that differ from each other by less than float32's rounding: where one is unknown the other fits."""

SIZES: dict[str, Any] = {"vocab_size": 97, "n_positions": 96, "n_embd": 48}
CONFIGS: dict[str, dict[str, Any]] = {
    "square": {"n_layer": 3, "n_head": 4, "n_inner": 48},
    "one head": {"n_layer": 2, "n_head": 1, "tie_word_embeddings": False},
    "one layer": {"n_layer": 1, "n_head": 4, "activation_function": "gelu", "layer_norm_epsilon": 1e-6},
}


def prompts(vocab_size: int) -> list[list[int]]:
    """A prompt of more than 64 tokens, and a short one that is padded."""
    return [torch.randint(vocab_size, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in (70, 17)]


def hold(matrix: KillMatrix) -> None:
    """What must be true of every matrix."""
    assert matrix.survivors == (), str(matrix)
    assert matrix.misnamed == (), str(matrix)
    assert {cell.name for cell in matrix.cells if cell.equivalent} <= EQUIVALENT
    assert all(cell.effect <= 1 for cell in matrix.cells if cell.outcome == "below floor")
    assert matrix.return_code == 0


def test_a_sample_on_the_embedded_checkpoint() -> None:
    matrix = kill_matrix(faults=["erf-gelu", "epsilon-1e-6", "mask-finite-1e4", "padding-attended"])
    hold(matrix)
    by_name = {(cell.name, cell.block): cell for cell in matrix.cells}
    erf = by_name["erf-gelu", 0]
    assert erf.floor is not None
    assert 1e-9 < erf.floor < 0.1
    assert not erf.rules["cosine 0.997"]
    assert not erf.rules["nmse 1e-2"]
    assert not erf.rules["top-1"]
    assert by_name["mask-finite-1e4", 0].equivalent
    assert by_name["padding-attended", 3].killed


def test_a_hypothesis_taken_away_leaves_none_of_the_known_faults() -> None:
    without = [hypothesis for hypothesis in HYPOTHESES if hypothesis.name != "rms-norm"]
    (cell, *_) = kill_matrix(faults=["rms-norm"], hypotheses=without, floors="skip").cells
    assert (cell.killed, cell.finding, cell.named_right) == (True, None, False)


@pytest.mark.slow
def test_every_fault_on_the_embedded_checkpoint() -> None:
    matrix = kill_matrix()
    hold(matrix)
    assert set(matrix.never_killed) <= EQUIVALENT


@pytest.mark.slow
def test_every_fault_on_three_random_configs_and_each_dies_somewhere(tmp_path: Path) -> None:
    killed: set[str] = set()
    for seed, (name, fields) in enumerate(CONFIGS.items(), 11):
        random_checkpoint.write(tmp_path / name, seed=seed, **SIZES, **fields)
        matrix = kill_matrix(tmp_path / name, ids=prompts(97), floors="skip")
        hold(matrix)
        killed |= {cell.name for cell in matrix.cells if cell.killed}
    assert set(FAULTS) - killed == EQUIVALENT


@pytest.mark.slow
def test_each_cause_is_unknown_once_its_hypothesis_is_gone(tmp_path: Path) -> None:
    random_checkpoint.write(tmp_path, seed=11, **SIZES, **CONFIGS["square"])
    for name, fault in FAULTS.items():
        without = [
            hypothesis
            for hypothesis in HYPOTHESES
            if hypothesis.name != fault.expected_finding and not hypothesis.fitted
        ]
        matrix = kill_matrix(tmp_path, ids=prompts(97), faults=[name], hypotheses=without, floors="skip")
        for cell in matrix.cells:
            if cell.killed and name != "wrong-head-count":
                assert cell.finding in (None, WITHIN_ROUNDING.get(name)), f"{name} is called {cell.finding}"


def test_weights_that_are_not_finite_show_nothing(tmp_path: Path) -> None:
    model = random_checkpoint.build(seed=2, n_layer=2)
    model.transformer.h[1].mlp.c_fc.weight.data[3, 4] = float("nan")
    model.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match=r"without any fault is called different.*h\.1\.mlp\.pre"):
        kill_matrix(tmp_path, ids=[[5, 6, 7]], faults=["erf-gelu"], floors="skip")
