"""A renumbered model computes the same function, and no sum in the same order."""

import pytest
import torch

from labkit.verification.orders import Order, renumbered
from labkit.verification.reference import build_reference, capture, parameters_of
from tests.oracles import random_checkpoint

IDS = torch.tensor([[5, 17, 3, 90, 42, 7, 11, 60]])


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("fields", [{}, {"tie_word_embeddings": False, "n_inner": 20}], ids=str)
def test_same_function_in_float64_other_rounding_in_float32(seed: int, fields: dict[str, object]) -> None:
    random = random_checkpoint.build(**fields)
    for dtype in (torch.float64, torch.float32):
        model = build_reference(random.config.to_dict(), parameters_of(random), dtype=dtype)
        order = Order.of(model, seed)
        plain = capture(model, IDS)
        other = capture(renumbered(model, order), IDS, key_order=order.key_order)
        other = {tap: order.restore(tap, value) for tap, value in other.items()}
        for tap, value in plain.items():
            future = (
                torch.ones(8, 8, dtype=torch.bool).triu(1)
                if tap.endswith("scores")
                else torch.zeros((), dtype=torch.bool)
            )
            torch.testing.assert_close(
                other[tap].masked_fill(future, 0),
                value.masked_fill(future, 0),
                rtol=1e-9 if dtype == torch.float64 else 1e-3,
                atol=1e-11 if dtype == torch.float64 else 1e-3,
                msg=lambda text, tap=tap: f"{tap}: {text}",
            )
        if dtype == torch.float32:
            same = [tap for tap in plain if torch.equal(other[tap], plain[tap])]
            assert set(same) == {"wte", "wpe", "embed"}
