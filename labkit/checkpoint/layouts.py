"""Name maps: how another code base calls the parameters, and whether its matrices are nn.Linear's [out, in].

In: a state dict's names. Out: for every parameter the tensors it is made of. Sources of the maps: nanoGPT's and
minGPT's ``model.py``.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from labkit.checkpoint.names import parse_name
from labkit.config import GPT2Config, parameter_shapes
from labkit.errors import ArgumentError, CheckpointError, UnknownNameError
from labkit.outside import NotJson, parse_json, read_regular, shown

CONV1D = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
"""The four weights of a block that GPT-2's files hold [in, out]."""


@dataclass(frozen=True, kw_only=True)
class NameMap:
    """Where each parameter is found; ``{i}`` stands for the block. Several sources are joined along the output axis."""

    name: str
    sources: Mapping[str, tuple[str, ...]]  # parameter -> tensors, both with {i}
    left_out: tuple[str, ...] = ()  # tensors that are no parameters, with {i}
    linear: bool = True  # whether the four matrices are stored [out, in]
    activation_function: str = "gelu_new"  # what that code base computes

    def of(self, parameter: str) -> tuple[str, ...]:
        """The tensors that ``parameter`` is made of.

        >>> MAPS["mingpt-2020"].of("h.3.attn.c_attn.bias")
        ('blocks.3.attn.query.bias', 'blocks.3.attn.key.bias', 'blocks.3.attn.value.bias')
        """
        found = re.fullmatch(r"h\.(\d+)\.(.+)", parameter)
        template, block = (f"h.{{i}}.{found[2]}", found[1]) if found else (parameter, "")
        return tuple(source.replace("{i}", block) for source in self.sources.get(template, ()))

    def names(self, name: str) -> bool:
        """Whether a tensor of this name is one that the map knows."""
        known = [*self.left_out, *(source for sources in self.sources.values() for source in sources)]
        return any(_matches(each, name) for each in known)

    def is_left_out(self, name: str) -> bool:
        """Whether a tensor of this name is known to be no parameter."""
        return any(_matches(each, name) for each in self.left_out)


def _matches(template: str, name: str) -> bool:
    return re.fullmatch(re.escape(template).replace(r"\{i\}", r"\d+"), name) is not None


_BLOCK = [name.replace("h.0.", "h.{i}.") for name in parameter_shapes(GPT2Config(n_layer=1)) if name.startswith("h.")]
_BLOCK_2020 = {
    "h.{i}.ln_1": ("ln1",),
    "h.{i}.attn.c_attn": ("attn.query", "attn.key", "attn.value"),
    "h.{i}.attn.c_proj": ("attn.proj",),
    "h.{i}.ln_2": ("ln2",),
    "h.{i}.mlp.c_fc": ("mlp.0",),
    "h.{i}.mlp.c_proj": ("mlp.2",),
}
_SAME_NAMES = {
    name: (f"transformer.{name}",) for name in ("wte.weight", "wpe.weight", *_BLOCK, "ln_f.weight", "ln_f.bias")
} | {"lm_head.weight": ("lm_head.weight",)}

MAPS: Mapping[str, NameMap] = {
    "nanogpt": NameMap(
        name="nanogpt",
        sources=_SAME_NAMES,
        left_out=("transformer.h.{i}.attn.bias",),
        activation_function="gelu",
    ),
    "mingpt": NameMap(name="mingpt", sources=_SAME_NAMES, left_out=("transformer.h.{i}.attn.bias",)),
    "mingpt-2020": NameMap(
        name="mingpt-2020",
        sources={
            "wte.weight": ("tok_emb.weight",),
            "wpe.weight": ("pos_emb",),
            "ln_f.weight": ("ln_f.weight",),
            "ln_f.bias": ("ln_f.bias",),
            "lm_head.weight": ("head.weight",),
            **{
                f"{module}.{part}": tuple(f"blocks.{{i}}.{source}.{part}" for source in sources)
                for module, sources in _BLOCK_2020.items()
                for part in ("weight", "bias")
            },
        },
        left_out=("blocks.{i}.attn.mask",),
        activation_function="gelu",
    ),
    "linear": NameMap(name="linear", sources=_SAME_NAMES),
}
"""The maps that come with labkit; ``linear`` reads back what ``labkit convert --layout linear`` writes."""


class _WrittenMap(msgspec.Struct, frozen=True):
    """What a name map's file holds."""

    layout: str
    names: dict[str, str | Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]]
    left_out: tuple[str, ...] = ()
    activation_function: str = "gelu_new"


def name_map(name: str) -> NameMap:
    """A map by name, or from a JSON file: ``{"layout": "linear" or "conv1d", "names": {parameter: tensor or [tensors]}}``.

    >>> name_map("nanogtp")
    Traceback (most recent call last):
    labkit.errors.UnknownNameError: no name map named 'nanogtp'; did you mean 'nanogpt'?
    """
    if name in MAPS:
        return MAPS[name]
    if not name.endswith(".json"):
        raise UnknownNameError.near("name map", name, MAPS)
    try:
        written = msgspec.convert(parse_json(read_regular(name, what="name map")), _WrittenMap)
    except (NotJson, msgspec.ValidationError) as error:
        raise ArgumentError(
            f"not a name map: {error}",
            where=name,
            expected='{"layout": "linear" or "conv1d", "names": {"h.{i}.ln_1.weight": "…"}}',
        ) from error
    if written.layout not in ("linear", "conv1d"):
        raise ArgumentError("the layout is unknown", where=name, expected="linear or conv1d", got=shown(written.layout))
    known = [*_SAME_NAMES]
    for key in written.names:
        if key not in known:
            raise UnknownNameError.near("parameter", key, known, where=name)
    return NameMap(
        name=name,
        sources={key: (each,) if isinstance(each, str) else each for key, each in written.names.items()},
        left_out=written.left_out,
        linear=written.layout == "linear",
        activation_function=written.activation_function,
    )


def infer_sizes(shapes: Mapping[str, tuple[int, ...]], names: NameMap, *, where: str) -> dict[str, int]:
    """The config fields that tensors' shapes tell: all but n_head."""
    blocks = 0
    while set(names.of(f"h.{blocks}.ln_1.weight")) & set(shapes):
        blocks += 1
    wanted = ("wte.weight", "wpe.weight", "h.0.mlp.c_fc.weight")
    tensors = {parameter: names.of(parameter)[:1] for parameter in wanted}
    for parameter, found in tensors.items():
        if not found or found[0] not in shapes or len(shapes[found[0]]) < 2:
            expected = found[0] if found else "a name in the map"
            raise CheckpointError(f"{parameter} is not there", where=where, expected=expected, fix="check the name map")
    table, positions, c_fc = (shapes[found[0]] for found in tensors.values())
    return {
        "vocab_size": table[0],
        "n_embd": table[1],
        "n_positions": positions[-2],
        "n_layer": blocks,
        "n_inner": c_fc[0] if names.linear else c_fc[1],
    }


def check_names(
    stored: Iterable[str], names: NameMap, config: GPT2Config, *, where: str, optional: Iterable[str] = ()
) -> tuple[str, ...]:
    """Every tensor used and every parameter found; returns the tensors that are left out."""
    held = set(stored)
    may_miss = set(optional)
    used: set[str] = set()
    for parameter in parameter_shapes(config):
        sources = names.of(parameter)
        missing = [source for source in sources if source not in held]
        if not sources or (missing and parameter not in may_miss):
            raise CheckpointError(
                "no tensor fills this parameter",
                where=f"{where}, parameter {parameter}",
                expected=", ".join(missing) or f"a line in the name map {names.name}",
                fix=_near(missing[0], held) if missing else "complete the map",
            )
        used.update(sources)
    head = set(names.of("lm_head.weight"))
    left = held - used
    for name in sorted(left):
        if not names.is_left_out(name) and name not in head and parse_name(name).kind != "causal mask":
            raise CheckpointError(
                f"the name map {names.name} has no parameter for this tensor",
                where=f"{where}, tensor {name!r}",
                fix="correct n_layer, or add the name to left_out in a map of your own",
            )
    return tuple(sorted(left))


def _near(name: str, held: Iterable[str]) -> str | None:
    return UnknownNameError.near("tensor", name, sorted(held)).fix
