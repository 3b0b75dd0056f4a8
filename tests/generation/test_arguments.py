"""Wrong arguments of generation are told by errors of labkit's own, by name, whatever their type."""

from typing import Any

import numpy as np
import pytest
import torch

from labkit.errors import ArgumentError, ArgumentTypeError, LabkitError
from labkit.generation import generate, greedy
from labkit.generation.dtype_study import dtype_study
from labkit.model import GPT2

NOT_IDS = {
    "a float": 1.5,
    "floats": [1.0, 2.0],
    "flags": [True],
    "null": None,
    "nulls": [None],
    "a number": 5,
    "texts": ["1", "2"],
    "rows": [[1, 2]],
    "a set": {1, 2},
    "a dict": {1: 2},
    "an iterator": iter([1, 2]),
    "0-d": torch.tensor(5),
    "2-d": torch.tensor([[5, 6]]),
    "a float tensor": torch.ones(2),
    "a bool array": np.array([True]),
    "a 2-d array": np.array([[5, 6]]),
    "meta": torch.tensor([5, 6], device="meta"),
    "sparse": torch.tensor([5, 6]).to_sparse(),
}


@pytest.mark.parametrize("name", NOT_IDS)
def test_what_is_no_row_of_ids(random_model: GPT2, name: str) -> None:
    odd: Any = NOT_IDS[name]
    for call in (
        lambda: greedy(random_model, odd, 1),
        lambda: generate(random_model, odd, tokens=1),
        lambda: dtype_study(ids=odd, tokens=1) if odd is not None else greedy(random_model, odd, 1),
    ):
        with pytest.raises(
            ArgumentTypeError, match=r"^(ids|prompt): (not a row|a prompt is|its values cannot be read)"
        ):
            call()


def test_rows_of_ids_of_every_kind(random_model: GPT2) -> None:
    expected = greedy(random_model, [5, 6], 3)
    for row in (
        (5, 6),
        range(5, 7),
        torch.tensor([5, 6], dtype=torch.uint8),
        np.array([5, 6], np.uint8),
        [np.int64(5), np.uint16(6)],
    ):
        ids: Any = row
        assert greedy(random_model, ids, 3) == expected
        assert list(generate(random_model, ids, tokens=3, stop_ids=[]).ids) == expected


@pytest.mark.parametrize("model", [None, "gpt2", 5, GPT2])
def test_what_is_no_model(model: Any) -> None:
    for call in (lambda: greedy(model, [1], 1), lambda: generate(model, [1], tokens=1)):
        with pytest.raises(ArgumentTypeError, match="model: not a model"):
            call()


def test_what_a_study_cannot_take() -> None:
    wrong: Any = None
    with pytest.raises(ArgumentTypeError, match=r"ids: not a row of ids .*got str"):
        dtype_study(ids="abc", tokens=1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match=r"dtypes: not a list of dtypes .got None"):
        dtype_study(ids=[1, 2], dtypes=wrong)
    with pytest.raises(ArgumentTypeError, match="dtypes: not a list of dtypes"):
        dtype_study(ids=[1, 2], dtypes=torch.float16)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="dtype: not a dtype to compute in"):
        dtype_study(ids=[1, 2], dtypes=["float16"])  # type: ignore[list-item]
    with pytest.raises(LabkitError, match="tokens: out of range"):
        dtype_study(ids=[1, 2], tokens=-1)
    wrong = "x"
    with pytest.raises(ArgumentTypeError, match="tokens: not a whole number"):
        dtype_study(ids=[1, 2], tokens=wrong)
