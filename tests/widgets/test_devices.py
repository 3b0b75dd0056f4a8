"""Pictures and widgets of values that lie on a GPU are those of the same values on the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from labkit.figures.errors import draw_error_map, draw_ulp_histogram
from labkit.figures.inside import draw_attention
from labkit.figures.style import to_png
from labkit.load import embedded, load_gpt2
from labkit.tokenizer import Tokenizer
from labkit.widgets.attention_view import attention_view
from labkit.widgets.error_view import error_map
from labkit.widgets.sampler_view import SamplerSettings, sampler_view
from tests.oracles.pretend_device import Kind, pretend_device

TOKENIZER = Tokenizer.from_folder(embedded())
SETTINGS = SamplerSettings(temperature=0.8, top_k=40, top_p=0.9, min_p=0.01)
VALUES = torch.linspace(0, 1, 60).view(1, 3, 4, 5)
OTHER = VALUES * (1 + 1e-3 * VALUES.sin())

SHOWN: dict[str, Callable[[str], Any]] = {
    "error map": lambda place: error_map("h.0.attn.pattern", at(place, VALUES), at(place, OTHER)),
    "sampler": lambda place: sampler_view(at(place, VALUES.sin().flatten()), SETTINGS, TOKENIZER),
    "attention": lambda place: attention_view(load_gpt2(device=place), TOKENIZER, "It is a truth", 1)["tokens"],
    "picture of errors": lambda place: to_png(
        draw_error_map(at(place, VALUES[0, 0]), at(place, OTHER[0, 0]), title="errors")
    ),
    "picture of ULPs": lambda place: to_png(draw_ulp_histogram(at(place, VALUES), at(place, OTHER), title="ULPs")),
    "picture of attention": lambda place: to_png(draw_attention(at(place, VALUES[0]), list("abcd"), title="heads")),
}


def at(place: str, values: Tensor) -> Tensor:
    return values.to(place)


@pytest.mark.parametrize("kind", ["cuda", "mps"])
@pytest.mark.parametrize("name", SHOWN)
def test_what_lies_on_a_gpu_is_shown_as_from_the_cpu(name: str, kind: Kind) -> None:
    expected = SHOWN[name]("cpu")
    with pretend_device(kind):
        assert SHOWN[name](kind) == expected
