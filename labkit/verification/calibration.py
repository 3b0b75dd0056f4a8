"""How the two factors of the budgets were fixed, to be run again: ``python -m labkit.verification.calibration``.

Clean runs of transformers on random GPT-2s (every parameter drawn, sizes and scales drawn too) are judged like any
candidate. ``PRODUCT_FACTOR`` and ``FLOOR_FACTOR`` were chosen on the seeds of ``FITTED`` so that no clean run takes
more than two thirds of a budget there; the seeds of ``HELD_OUT`` were not looked at for that, and say how often a
clean run is accused.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labkit.config import GPT2Config, parameter_shapes
from labkit.verification.chain import Inputs, build_chain
from labkit.verification.hypotheses import site_of
from labkit.verification.orders import Order, renumbered
from labkit.verification.precision import Precision, dtype_name
from labkit.verification.reference import build_reference, parameters_of
from labkit.verification.standard import recorded, reference_forward
from labkit.verification.verdict import Floor, pooled, true_values, weigh

FITTED = range(20)
HELD_OUT = range(4000, 4040)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
STANDARD_DEVIATIONS = (0.02, 0.1, 0.2, 0.5)


@dataclass(frozen=True)
class CleanRun:
    """One clean run of one random model in one dtype, judged."""

    seed: int
    dtype: str
    stages: int
    elements: int
    largest_local: float
    """The largest share of a local budget, and the site that took it."""
    local_site: str
    largest_total: float
    total_site: str
    accused: int
    """Stages called different: each is a false alarm."""


def draw_config(seed: int) -> GPT2Config:
    """A config of a seed: sizes, activation and epsilon all drawn."""
    generator = torch.Generator().manual_seed(seed)

    def pick(options: list[Any]) -> Any:
        return options[int(torch.randint(len(options), (1,), generator=generator))]

    n_head = pick([1, 2, 4, 6])
    return GPT2Config(
        vocab_size=pick([101, 512, 2048]),
        n_positions=64,
        n_head=n_head,
        n_embd=n_head * pick([16, 32, 64]),
        n_layer=pick([1, 2, 4, 6]),
        n_inner=pick([None, None, 96]),
        activation_function=pick(["gelu_new", "gelu_new", "gelu", "relu"]),
        layer_norm_epsilon=pick([1e-5, 1e-5, 1e-6]),
    )


def draw_weights(config: GPT2Config, seed: int) -> dict[str, Tensor]:
    """Every parameter drawn, norms around one and the rest around zero, at a scale that is drawn as well."""
    generator = torch.Generator().manual_seed(seed + 1)
    scale = STANDARD_DEVIATIONS[seed % len(STANDARD_DEVIATIONS)]
    weights = {}
    for name, shape in parameter_shapes(config).items():
        centre = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
        weights[name] = centre + scale * torch.randn(shape, generator=generator)
    return weights


@torch.inference_mode()
def clean_run(seed: int, dtype: torch.dtype) -> CleanRun:
    """Judge transformers, summed in an order that set no budget, on a random model."""
    config, precision = draw_config(seed), Precision.of(dtype)
    fields = {name: getattr(config, name) for name in config.__dataclass_fields__}
    weights = draw_weights(config, seed)
    model = build_reference(fields, weights, dtype=dtype)
    exact = build_reference(fields, weights, weight_dtype=dtype)
    inputs = Inputs(torch.randint(config.vocab_size, (1, 48), generator=torch.Generator().manual_seed(seed)))
    stages = build_chain(config, parameters_of(exact), inputs)
    truth = true_values(stages, recorded(reference_forward(exact, inputs)), inputs, precision)
    runs = [recorded(reference_forward(model, inputs)), _in_order(model, inputs, 1)]
    clean = _in_order(model, inputs, 2)
    floors = pooled({tap: Floor.measure(tap, truth[tap], [run[tap] for run in runs], inputs) for tap in stages})
    results = [
        weigh(stage, stages, clean, truth[tap], floors[tap], inputs, precision).verdict()
        for tap, stage in stages.items()
    ]
    local = max(results, key=lambda result: result.local_used)
    total = max(results, key=lambda result: result.used)
    return CleanRun(
        seed=seed,
        dtype=dtype_name(dtype),
        stages=len(results),
        elements=sum(result.difference.numel for result in results),
        largest_local=local.local_used,
        local_site=site_of(local.name),
        largest_total=total.used,
        total_site=site_of(total.name),
        accused=sum(result.verdict == "differs" for result in results),
    )


def _in_order(model: Any, inputs: Inputs, seed: int) -> dict[str, Tensor]:
    order = Order.of(model, seed)
    taps = recorded(reference_forward(renumbered(model, order), inputs, order.key_order))
    return {tap: order.restore(tap, value) for tap, value in taps.items()}


def summarise(name: str, seeds: Iterable[int]) -> str:
    """A line a dtype: the largest shares taken, and how many stages of how many were accused."""
    lines = []
    for dtype in DTYPES:
        runs = [clean_run(seed, dtype) for seed in seeds]
        local = max(runs, key=lambda run: run.largest_local)
        total = max(runs, key=lambda run: run.largest_total)
        lines.append(
            f"{name}, {local.dtype}: {len(runs)} clean runs, {sum(run.stages for run in runs):,} stages, "
            f"{sum(run.elements for run in runs):,} elements; {sum(run.accused for run in runs)} stages accused; "
            f"largest share of a local budget {local.largest_local:.2f} ({local.local_site}), "
            f"of a total budget {total.largest_total:.2f} ({total.total_site})"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.stdout.write(summarise("fitted", FITTED) + "\n" + summarise("held out", HELD_OUT) + "\n")
