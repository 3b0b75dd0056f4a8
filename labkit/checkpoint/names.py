"""Tensor names as files have them -> the released files' names, and what each tensor is.

In: a name such as ``module.transformer.h.0.attn.c_attn.weight``. Out: the bare name, what was stripped, and its kind.
Names are matched whole: ``attn.bias`` is the causal mask, ``attn.c_attn.bias`` is a weight.
"""

import re
from dataclasses import dataclass
from typing import Literal

from labkit.outside import whole_number

Kind = Literal["parameter", "causal mask", "cross-attention", "other head", "unknown"]

_BLOCK = r"h\.(?:0|[1-9][0-9]{0,8})\."
_KINDS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    (
        "parameter",
        re.compile(
            rf"(?:wte|wpe|lm_head)\.weight|ln_f\.(?:weight|bias)"
            rf"|{_BLOCK}(?:ln_1|ln_2|attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.(?:weight|bias)"
        ),
    ),
    ("causal mask", re.compile(rf"{_BLOCK}attn\.(?:bias|masked_bias)")),
    (
        "cross-attention",
        re.compile(
            rf"{_BLOCK}(?:crossattention\.(?:(?:c_attn|q_attn|c_proj)\.(?:weight|bias)|bias|masked_bias)|ln_cross_attn\.(?:weight|bias))"
        ),
    ),
    (
        "other head",
        re.compile(
            r"multiple_choice_head\.summary\.(?:weight|bias)|(?:score|classifier|qa_outputs)\.(?:weight|bias)"
            r"|v_head\.summary\.(?:weight|bias)"
        ),
    ),
)
_COMPILED = "_orig_mod"  # left by torch.compile, also inside a name where single blocks were compiled
_LEADING = ("module", "model", _COMPILED)  # the first two: DistributedDataParallel, and wrapping modules


@dataclass(frozen=True)
class ParsedName:
    """A tensor's name, read."""

    name: str  # as the file has it
    bare: str  # without wrappers and ``transformer.``
    kind: Kind
    wrappers: tuple[str, ...]  # what was stripped besides ``transformer.``, with its dots
    prefixed: bool  # whether ``transformer.`` stood before it


def parse_name(name: str) -> ParsedName:
    """What a tensor of this name is.

    >>> parsed = parse_name("_orig_mod.module.transformer.h.0.attn.c_attn.bias")
    >>> parsed.bare, parsed.kind, parsed.wrappers
    ('h.0.attn.c_attn.bias', 'parameter', ('_orig_mod.module.',))
    >>> parse_name("h.0.attn.bias").kind
    'causal mask'
    """
    inner, wrappers = unwrap(name)
    prefixed = inner.startswith("transformer.")
    bare = inner.removeprefix("transformer.")
    kind: Kind = next((kind for kind, pattern in _KINDS if pattern.fullmatch(bare)), "unknown")
    return ParsedName(name=name, bare=bare, kind=kind, wrappers=wrappers, prefixed=prefixed)


def unwrap(name: str) -> tuple[str, tuple[str, ...]]:
    """The name without what wrapping modules put into it, and what that was.

    >>> unwrap("module.transformer.h.0._orig_mod.ln_1.weight")
    ('transformer.h.0.ln_1.weight', ('module.', '_orig_mod.'))
    """
    parts = name.split(".")
    leading = ""
    while parts[0] in _LEADING and len(parts) > 1:
        leading += f"{parts.pop(0)}."
    wrappers = [leading] if leading else []
    if _COMPILED in parts:
        wrappers.append(f"{_COMPILED}.")
        parts = [part for part in parts if part != _COMPILED]
    return ".".join(parts), tuple(wrappers)


def block_of(bare: str) -> int | None:
    """The block that a bare name belongs to, or None.

    >>> block_of("h.11.ln_1.weight"), block_of("ln_f.bias")
    (11, None)
    """
    first, _, rest = bare.partition(".")
    number, dot, _ = rest.partition(".")
    return whole_number(number) if first == "h" and dot else None
