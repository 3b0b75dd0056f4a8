"""The chain of operations reproduces transformers; spreads and roundings hold in simulation."""

import pytest
import torch
from torch import Tensor

from labkit.config import parse_config
from labkit.verification.chain import Inputs, build_chain
from labkit.verification.operations import (
    Activation,
    Add,
    LayerNorm,
    Mix,
    Operation,
    Product,
    Scores,
    Softmax,
    gelu_new,
)
from labkit.verification.reference import build_reference, capture, parameters_of
from tests.oracles import random_checkpoint

IDS = torch.tensor([[5, 17, 3, 90, 42, 7, 11, 60]])


@pytest.mark.parametrize("seed", range(6))
def test_chain_on_the_truths_taps_gives_the_truth(seed: int) -> None:
    random = random_checkpoint.build(seed=seed, **random_checkpoint.random_fields(seed))
    truth_model = build_reference(random.config.to_dict(), parameters_of(random))
    ids = IDS % random.config.vocab_size
    taps = capture(truth_model, ids)
    stages = build_chain(parse_config(random.config.to_dict()), parameters_of(truth_model), Inputs(ids))
    assert tuple(stages) == tuple(taps)
    for tap, stage in stages.items():
        made = stage.operation.compute(*(taps[name] for name in stage.inputs))
        torch.testing.assert_close(made, taps[tap], rtol=1e-11, atol=1e-11, msg=lambda text, tap=tap: f"{tap}: {text}")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


CAUSAL = torch.ones(6, 6, dtype=torch.bool).tril()
CASES: dict[str, tuple[Operation, tuple[Tensor, ...]]] = {
    "add": (Add(), (draw(1, 6, 8), draw(1, 6, 8, seed=1))),
    "layer_norm": (LayerNorm(draw(32), draw(32, seed=1), 1e-5), (draw(1, 6, 32),)),
    "product": (Product(draw(24, 16), draw(16)), (draw(1, 6, 24),)),
    "split": (Product(draw(24, 16), draw(16), split=4), (draw(1, 6, 24),)),
    "merge": (Product(draw(24, 16), draw(16), merge=True), (draw(1, 4, 6, 6),)),
    "scores": (Scores(0.5), (draw(1, 2, 6, 4), draw(1, 2, 6, 4, seed=1))),
    "softmax": (Softmax(CAUSAL), (draw(1, 2, 6, 6),)),
    "mix": (Mix(), (draw(1, 2, 6, 6).softmax(-1), draw(1, 2, 6, 4))),
    "activation": (Activation(gelu_new), (draw(1, 6, 32),)),
}


@pytest.mark.parametrize("name", CASES)
def test_spread_is_the_outputs_deviation_when_inputs_are_jittered(name: str) -> None:
    operation, inputs = CASES[name]
    output = operation.compute(*inputs)
    uncertain = tuple(1e-6 * (0.5 + value.abs()) for value in inputs)
    spread = operation.spread(output, inputs, uncertain)
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros_like(output)
    rounds = 400
    for _ in range(rounds):
        jittered = tuple(
            value + u * torch.randn(value.shape, generator=generator, dtype=torch.float64)
            for value, u in zip(inputs, uncertain, strict=True)
        )
        total += (operation.compute(*jittered) - output).square()
    seen = (total / rounds).sqrt()
    counted = seen > 0
    ratio = (seen / spread)[counted]
    limit = 1.6 if name == "activation" else 1.35  # the activation's spread is a bound on its slope, not the slope
    assert float(ratio.max()) < limit
    if name != "activation":
        assert float(ratio.median()) > 0.6


def test_a_softmaxs_spread_holds_beyond_the_first_order() -> None:
    """One score that is off by whole units takes the row for itself, or leaves it to the others."""
    softmax, scores = Softmax(torch.ones(5, 5, dtype=torch.bool)), 4 * draw(1, 2, 5, 5)
    pattern = softmax.compute(scores)
    for key in range(5):
        for off in (0.01, 1.0, 10.0, 100.0):
            uncertain = torch.zeros_like(scores)
            uncertain[..., key] = off
            spread = softmax.spread(pattern, (scores,), (uncertain,))
            for moved in (softmax.compute(scores + uncertain), softmax.compute(scores - uncertain)):
                assert bool(((moved - pattern).abs() <= spread + 1e-15).all()), f"key {key}, off by {off}"


def test_spreads_do_not_underflow() -> None:
    """Uncertainties whose squares are no float64 are still uncertainties."""
    small = torch.full((1, 6, 8), 1e-200, dtype=torch.float64)
    for operation, inputs in (CASES["add"], CASES["layer_norm"]):
        uncertain = tuple(small[..., :1].expand_as(value) for value in inputs)
        spread = operation.spread(operation.compute(*inputs), inputs, uncertain)
        assert bool((spread > 0).all())


@pytest.mark.parametrize("name", CASES)
def test_float32_arithmetic_stays_within_the_rounding_sizes(name: str) -> None:
    operation, inputs = CASES[name]
    inputs = tuple(value.float() for value in inputs)
    single = _in_float32(operation).compute(*inputs)
    exact = operation.compute(*(value.double() for value in inputs))
    rounding = operation.rounding(exact, *(value.double() for value in inputs))
    bound = 2.0**-24 * (3 * rounding.terms**0.5 * rounding.summed + 1.5 * rounding.single)
    error = (single.double() - exact).abs()
    assert bool((error <= bound + 1e-300).all())
    assert float(error.max()) > 0


def _in_float32(operation: Operation) -> Operation:
    fields = {
        k: v.float() if isinstance(v, Tensor) and v.is_floating_point() else v for k, v in vars(operation).items()
    }
    return type(operation)(**fields)
