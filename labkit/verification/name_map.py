"""Module paths of a user's torch model -> the taps that their outputs (or inputs) are, with the layout they come in.

    module -> hook -> value -> layout(value, config) -> tap, or several

A path may hold ``{i}``, which stands for every block. ``NANOGPT`` and ``MINGPT`` are the maps of those two code bases.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from torch import Tensor, nn

from labkit.config import GPT2Config
from labkit.errors import ArgumentTypeError, UnknownNameError
from labkit.model.taps import tap_names

Layout = Callable[[Tensor, GPT2Config], Tensor | Sequence[Tensor]]
"""Brings what a module gave to the tap's own axes; for several taps, one tensor each."""


def as_it_is(value: Tensor, _config: GPT2Config) -> Tensor:
    """The tap's own layout."""
    return value


def packed_qkv(value: Tensor, config: GPT2Config) -> tuple[Tensor, Tensor, Tensor]:
    """[batch, pos, 3 * n_embd] with Q, K and V side by side -> three of [batch, head, pos, head_dim].

    >>> import torch
    >>> q, k, v = packed_qkv(torch.arange(12.0).view(1, 1, 12), GPT2Config(n_embd=4, n_head=2))
    >>> v.tolist()
    [[[[8.0, 9.0]], [[10.0, 11.0]]]]
    """
    q, k, v = (merged_heads(part, config) for part in value.chunk(3, dim=-1))  # each [batch, head, pos, head_dim]
    return q, k, v


def merged_heads(value: Tensor, config: GPT2Config) -> Tensor:
    """[batch, pos, n_embd], head after head -> [batch, head, pos, head_dim]."""
    return value.reshape(*value.shape[:-1], config.n_head, -1).transpose(-3, -2)  # [batch, head, pos, head_dim]


def heads_third(value: Tensor, _config: GPT2Config) -> Tensor:
    """[batch, pos, head, head_dim] -> [batch, head, pos, head_dim]."""
    return value.transpose(-3, -2)  # [batch, head, pos, head_dim]


def first_row(value: Tensor, _config: GPT2Config) -> Tensor:
    """[1, pos, n_embd] or [pos, n_embd] of positions that are the same for every row -> [pos, n_embd]."""
    return value[0] if value.dim() == 3 else value  # [pos, n_embd]


@dataclass(frozen=True)
class Rule:
    """One module's output or input, and the taps that it is."""

    taps: str | tuple[str, ...]
    """A tap's name, or several; ``{i}`` is the block."""
    layout: Layout = as_it_is
    side: Literal["output", "input"] = "output"

    @property
    def names(self) -> tuple[str, ...]:
        """The taps, always as a tuple."""
        return (self.taps,) if isinstance(self.taps, str) else self.taps


Rules = Mapping[str, "str | Rule | Sequence[str | Rule]"]
"""Module path -> tap, rule, or several of them."""


@dataclass(frozen=True)
class NameMap:
    """The rules of one code base, and how its model is called."""

    rules: Rules
    call: Callable[[Any, Tensor], object] = field(default=lambda model, ids: model(ids))
    """model, ids [batch, pos] -> whatever the model gives; logits are found in it where no rule names them."""
    optional: bool = False
    """Whether a module that the model lacks is passed over (a code base with several versions)."""


@dataclass(frozen=True)
class Placed:
    """A rule with its block filled in, and the module it hangs on."""

    path: str
    module: nn.Module
    rule: Rule
    taps: tuple[str, ...]


def place_rules(model: nn.Module, name_map: NameMap, config: GPT2Config) -> tuple[Placed, ...]:
    """Every rule on its module; raises ``UnknownNameError`` for a path or a tap that is not there."""
    return tuple(_placed(model, name_map, config))


def _placed(model: nn.Module, name_map: NameMap, config: GPT2Config) -> Iterator[Placed]:
    modules, known = dict(model.named_modules()), set(tap_names(config))
    for pattern, stated in name_map.rules.items():
        for rule in _rules(pattern, stated):
            by_block = any("{i}" in text for text in (pattern, *rule.names))
            for block in range(config.n_layer) if by_block else (0,):
                path, taps = _filled(pattern, block), tuple(_filled(name, block) for name in rule.names)
                for tap in taps:
                    if tap not in known:
                        raise UnknownNameError.near("tap", tap, tap_names(config), where=f"name_map, {pattern!r}")
                if path in modules:
                    yield Placed(path, modules[path], rule, taps)
                elif not name_map.optional:
                    raise UnknownNameError.near("module", path, [name for name in modules if name], where="name_map")


def _filled(text: str, block: int) -> str:
    return text.replace("{i}", str(block))


def _rules(pattern: str, stated: "str | Rule | Sequence[str | Rule]") -> tuple[Rule, ...]:
    listed = (
        (stated,) if isinstance(stated, str | Rule) else tuple(stated) if isinstance(stated, Sequence) else (stated,)
    )
    for each in listed:
        if not isinstance(each, str | Rule):
            raise ArgumentTypeError(
                "not a tap", where=f"name_map, {pattern!r}", expected="a tap's name or a Rule", got=type(each).__name__
            )
    return tuple(Rule(each) if isinstance(each, str) else each for each in listed)


_BLOCK: dict[str, Any] = {
    "transformer.h.{i}.ln_1": "h.{i}.ln_1",
    "transformer.h.{i}.attn.c_attn": Rule(("h.{i}.attn.q", "h.{i}.attn.k", "h.{i}.attn.v"), packed_qkv),
    "transformer.h.{i}.attn.attn_dropout": "h.{i}.attn.pattern",
    "transformer.h.{i}.attn.c_proj": (Rule("h.{i}.attn.z", merged_heads, side="input"), "h.{i}.attn.out"),
    "transformer.h.{i}.ln_2": (Rule("h.{i}.resid_mid", side="input"), "h.{i}.ln_2"),
    "transformer.h.{i}.mlp.c_fc": "h.{i}.mlp.pre",
    "transformer.h.{i}.mlp.c_proj": (Rule("h.{i}.mlp.post", side="input"), "h.{i}.mlp.out"),
    "transformer.h.{i}": "h.{i}.resid_post",
}

_COMMON: dict[str, Any] = {
    "transformer.wte": "wte",
    "transformer.wpe": Rule("wpe", first_row),
    "transformer.h.0": Rule("embed", side="input"),
    **_BLOCK,
    "transformer.ln_f": "ln_f",
    "lm_head": "logits",
}

NANOGPT = NameMap(MappingProxyType(_COMMON), call=lambda model, ids: model(ids, ids), optional=True)
"""karpathy/nanoGPT's ``GPT``. It is called with targets, since without them it gives the last position's logits alone;
the fused attention leaves ``attn_dropout`` uncalled, and z is then judged from q, k and v."""

MINGPT = NameMap(MappingProxyType(_COMMON), optional=True)
"""karpathy/minGPT's ``GPT``."""

NAME_MAPS = {"nanogpt": NANOGPT, "mingpt": MINGPT}
"""Maps that can be given by name."""
