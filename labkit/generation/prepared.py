"""A model's parameters in the order and the memory layout in which the lean pass reads them, once a model.

In: a ``GPT2``. Out: a ``Prepared``. A one-row product runs at the memory's speed only where the matrix lies right:
float32 as [in, out] (Conv1D's own layout, so only the head is turned), bfloat16 and float16 as [out, in].
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.generation.packed import available, pack, packed_product, packed_unembed
from labkit.generation.split import parts_for, split, split_bias, split_product, split_unembed
from labkit.model import GPT2
from labkit.model.operations import activation
from labkit.storage.memory import in_order

HALF = (torch.bfloat16, torch.float16)
"""Dtypes whose matrices lie [out, in]."""

Pair = tuple[Tensor, Tensor]


class Product(Protocol):
    """x @ weight + bias."""

    def __call__(self, bias: Tensor, x: Tensor, weight: Tensor, /, *, out: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Block:
    """A block's parameters in the order of use: norms as (weight, bias), products as (bias, weight [in, out])."""

    ln_1: Pair
    c_attn: Pair
    attn_c_proj: Pair
    ln_2: Pair
    c_fc: Pair
    mlp_c_proj: Pair
    scale: float


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What the lean pass needs of a model."""

    config: GPT2Config
    wte: Tensor  # [vocab, n_embd]
    wpe: Tensor  # [n_positions, n_embd]
    blocks: tuple[Block, ...]
    ln_f: Pair
    head: Tensor  # [n_embd, vocab]
    activation: Callable[[Tensor], Tensor]
    product: Product  # of (bias, x, weight), as torch.addmm
    unembed: Callable[[Tensor, Tensor], Tensor]  # of (x, head), as torch.mm
    upcast: bool  # attention in float32 although the weights are shorter
    mark: "Mark"  # by which a change of the parameters since is noticed

    @cached_property
    def packed(self) -> "Prepared":
        """The same with every product packed for passes over several rows, where that can be; made at first use."""
        if not available(self.head):
            return self

        blocks = self._with_products(lambda bias, weight: (bias, pack(weight)))
        return replace(self, blocks=blocks, head=pack(self.head), product=packed_product, unembed=packed_unembed)

    def split(self, threads: int) -> "Prepared":
        """The same with every product of one row shared between so many threads, where that can be; nothing is copied."""
        parts = parts_for(threads, self.config.n_embd, self.config.inner)
        if parts == 1 or self.head.device.type != "cpu" or self.head.dtype in HALF:
            return self
        blocks = self._with_products(lambda bias, weight: (split_bias(bias, parts), split(weight, parts)))
        return replace(self, blocks=blocks, head=split(self.head, parts), product=split_product, unembed=split_unembed)

    def _with_products(self, change: Callable[[Tensor, Tensor], Pair]) -> tuple[Block, ...]:
        return tuple(
            replace(
                block,
                c_attn=change(*block.c_attn),
                attn_c_proj=change(*block.attn_c_proj),
                c_fc=change(*block.c_fc),
                mlp_c_proj=change(*block.mlp_c_proj),
            )
            for block in self.blocks
        )

    @property
    def nbytes_per_token(self) -> int:
        """Bytes of weights that one step over any number of rows has to read; of wte and wpe only a row is looked up."""
        pairs = [pair for block in self.blocks for pair in _pairs(block)] + [self.ln_f]
        return sum(each.nbytes for pair in pairs for each in pair) + self.head.nbytes


SAMPLES = 32
"""Values of each parameter that are looked at before every text: a table that is exchanged is seen, in about half a millisecond."""

Mark = tuple[tuple[tuple[int, int], ...], bytes]
"""Of each parameter how often it was written to and where it lies; a sample of all values."""


def prepare(model: GPT2) -> Prepared:
    """The model's parameters made ready; what was made before is used again unless a parameter was changed since.

    Every change in place is noticed. One that torch does not count (through ``.data``, or of a model made under
    ``torch.inference_mode``) is noticed where it moves a parameter or one of the values sampled: ``forget`` is for
    the rest.
    """
    mark = _mark(model)
    known = _PREPARED.get(model)
    if known is None or known.mark != mark:
        known = _PREPARED[model] = _prepare(model, mark)
    return known


def forget(model: GPT2) -> None:
    """Make nothing of what is prepared for this model count any more, so that the next text reads every parameter anew.

    For changes that torch does not count, of single values through ``.data``:

    >>> from labkit.load import load_gpt2
    >>> model = load_gpt2(mode="owned")
    >>> model.parameters_by_name["wte.weight"].data[7, 3] = 1.0
    >>> forget(model)
    """
    _PREPARED.pop(model, None)


_PREPARED: WeakKeyDictionary[GPT2, Prepared] = WeakKeyDictionary()


@torch.no_grad()
def _mark(model: GPT2) -> Mark:
    parameters = model.parameters_by_name.values()
    places = tuple((0 if each.is_inference() else each._version, each.data_ptr()) for each in parameters)
    return places, torch.cat([_sample(each) for each in parameters]).cpu().view(torch.uint8).numpy().tobytes()


def _sample(parameter: Tensor) -> Tensor:
    flat = (parameter if parameter.is_contiguous() else parameter.t()).reshape(-1)  # [value], a view if one can be
    return flat[:: flat.numel() // SAMPLES | 1]  # an odd step, so that it does not stay in one column


def _prepare(model: GPT2, mark: Mark) -> Prepared:
    config, p = model.config, model.parameters_by_name

    def product(name: str) -> Pair:
        return p[f"{name}.bias"], lay_out(p[f"{name}.weight"])

    def norm(name: str) -> Pair:
        return p[f"{name}.weight"], p[f"{name}.bias"]

    blocks = tuple(
        Block(
            ln_1=norm(f"h.{i}.ln_1"),
            c_attn=product(f"h.{i}.attn.c_attn"),
            attn_c_proj=product(f"h.{i}.attn.c_proj"),
            ln_2=norm(f"h.{i}.ln_2"),
            c_fc=product(f"h.{i}.mlp.c_fc"),
            mlp_c_proj=product(f"h.{i}.mlp.c_proj"),
            scale=config.scaling(block=i),
        )
        for i in range(config.n_layer)
    )
    head = p["wte.weight"] if config.tie_word_embeddings else p["lm_head.weight"]  # [vocab, n_embd]
    return Prepared(
        config=config,
        wte=p["wte.weight"],
        wpe=p["wpe.weight"],
        blocks=blocks,
        ln_f=norm("ln_f"),
        head=lay_out(head.t()),
        activation=activation(config.activation_function),
        product=torch.addmm,
        unembed=torch.mm,
        upcast=config.reorder_and_upcast_attn and model.dtype in HALF,
        mark=mark,
    )


def lay_out(weight: Tensor) -> Tensor:
    """A weight [in, out] under the same shape, in memory as its dtype's one-row product wants it; copied only if not.

    >>> lay_out(torch.zeros(2, 3)).stride(), lay_out(torch.zeros(2, 3, dtype=torch.bfloat16)).stride()
    ((3, 1), (1, 2))
    """
    return in_order(weight.t()).t() if weight.dtype in HALF else in_order(weight)  # [in, out]


def _pairs(block: Block) -> tuple[Pair, ...]:
    return (block.ln_1, block.c_attn, block.attn_c_proj, block.ln_2, block.c_fc, block.mlp_c_proj)
