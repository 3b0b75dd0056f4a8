"""Taps: the named stages of the forward pass at which a value can be recorded and replaced.

In: a config and name patterns. Out: tap names in order of computation, their axes, and a ``Probe`` that the forward
pass calls at each stage. Where no tap is attached the forward pass calls ``untapped``, which returns its argument.
"""

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.errors import ArgumentError, ArgumentTypeError, NonFiniteError, UnknownNameError

Tap = Callable[[str, Tensor], Tensor]
"""What the forward pass calls at every stage: name and value in, the value to go on with out."""

Replacement = Tensor | Callable[[Tensor], Tensor]
"""A tensor to use instead of a stage's value, or a function of the value."""

_BEFORE = {
    "wte": ("batch", "pos", "n_embd"),
    "wpe": ("pos", "n_embd"),
    "embed": ("batch", "pos", "n_embd"),
}
_BLOCK = {
    "ln_1": ("batch", "pos", "n_embd"),
    "attn.q": ("batch", "head", "pos", "head_dim"),
    "attn.k": ("batch", "head", "pos", "head_dim"),
    "attn.v": ("batch", "head", "pos", "head_dim"),
    "attn.scores": ("batch", "head", "pos_q", "pos_k"),
    "attn.pattern": ("batch", "head", "pos_q", "pos_k"),
    "attn.z": ("batch", "head", "pos", "head_dim"),
    "attn.out": ("batch", "pos", "n_embd"),
    "resid_mid": ("batch", "pos", "n_embd"),
    "ln_2": ("batch", "pos", "n_embd"),
    "mlp.pre": ("batch", "pos", "n_inner"),
    "mlp.post": ("batch", "pos", "n_inner"),
    "mlp.out": ("batch", "pos", "n_embd"),
    "resid_post": ("batch", "pos", "n_embd"),
}
_AFTER = {
    "ln_f": ("batch", "pos", "n_embd"),
    "logits": ("batch", "pos", "vocab"),
}
_EXTRA = {
    "attn.c_attn": ("batch", "pos", "3*n_embd"),
    "attn.merged": ("batch", "pos", "n_embd"),
}


def tap_names(config: GPT2Config) -> tuple[str, ...]:
    """Every tap in order of computation.

    >>> names = tap_names(GPT2Config(n_layer=2))
    >>> len(names), names[3], names[-1]
    (33, 'h.0.ln_1', 'logits')
    """
    blocks = (f"h.{i}.{stage}" for i in range(config.n_layer) for stage in _BLOCK)
    return (*_BEFORE, *blocks, *_AFTER)


def extra_tap_names(config: GPT2Config) -> tuple[str, ...]:
    """Taps that are seen only when named: c_attn's packed output, and z with its heads merged.

    >>> extra_tap_names(GPT2Config(n_layer=1))
    ('h.0.attn.c_attn', 'h.0.attn.merged')
    """
    return tuple(f"h.{i}.{stage}" for i in range(config.n_layer) for stage in _EXTRA)


def tap_axes(name: str) -> tuple[str, ...]:
    """The axes of a tap's value (wpe has a batch axis as well where positions differ by row).

    >>> tap_axes("h.11.attn.pattern")
    ('batch', 'head', 'pos_q', 'pos_k')
    """
    stage = name.split(".", 2)[2] if name.startswith("h.") and name.count(".") > 1 else name
    axes = {**_BEFORE, **_AFTER}.get(name) or {**_BLOCK, **_EXTRA}.get(stage)
    if axes is None:
        raise UnknownNameError.near("tap", name, [*_BEFORE, *(f"h.0.{each}" for each in _BLOCK), *_AFTER])
    return axes


def match_taps(patterns: str | Iterable[str], config: GPT2Config) -> tuple[str, ...]:
    """The taps that any pattern names ("all", a name, a glob such as "h.*.mlp.post"), in order of computation.

    A glob reaches the extra taps only where it matches no other.

    >>> config = GPT2Config(n_layer=2)
    >>> match_taps(["logits", "h.*.attn.z"], config)
    ('h.0.attn.z', 'h.1.attn.z', 'logits')
    >>> match_taps("h.0.ln1", config)
    Traceback (most recent call last):
    labkit.errors.UnknownNameError: no tap named 'h.0.ln1'; did you mean ...
    """
    names, extra = tap_names(config), extra_tap_names(config)
    if patterns == "all":
        return names
    listed = (
        [patterns] if isinstance(patterns, str) else list(patterns) if isinstance(patterns, Iterable) else [patterns]
    )
    wanted: set[str] = set()
    for pattern in listed:
        if not isinstance(pattern, str):
            raise ArgumentTypeError("a tap is named by a text", expected='"all", a name or a glob', got=repr(pattern))
        matched = [n for n in names if fnmatchcase(n, pattern)] or [n for n in extra if fnmatchcase(n, pattern)]
        if not matched:
            raise UnknownNameError.near("tap", pattern, (*names, *extra))
        wanted.update(matched)
    ordered = (*names, *extra)
    return tuple(sorted(wanted, key=lambda name: _computation_order(name, ordered)))


def _computation_order(name: str, ordered: tuple[str, ...]) -> float:
    if name.endswith(".attn.c_attn"):
        return ordered.index(name.replace("c_attn", "q")) - 0.5
    if name.endswith(".attn.merged"):
        return ordered.index(name.replace("merged", "z")) + 0.5
    return ordered.index(name)


def untapped(name: str, value: Tensor) -> Tensor:
    """The tap that sees and changes nothing."""
    return value


LEAVES = ("wte", "wpe")
"""The first stages: with gradients on they begin the graph where no parameter does."""


class Probe:
    """A tap that records the stages in ``record`` and replaces those in ``replace``; it records what flows on."""

    def __init__(
        self,
        *,
        record: Iterable[str] = (),
        replace: Mapping[str, Replacement] | None = None,
        refuse_nonfinite: bool = False,
        gradients: bool = False,
    ) -> None:
        self.recorded: dict[str, Tensor] = {}
        self._record = frozenset(record)
        self._replace = dict(replace or {})
        self._refuse_nonfinite = refuse_nonfinite
        self._gradients = gradients

    def __call__(self, name: str, value: Tensor) -> Tensor:
        if name in self._replace:
            value = _replaced(name, value, self._replace[name])
        if self._gradients and not value.requires_grad and name in LEAVES:
            value = value.detach().requires_grad_()
        if self._refuse_nonfinite and not bool(torch.isfinite(value).all()):
            raise _nonfinite(name, value)
        if name in self._record:
            self.recorded[name] = value
        return value


def _replaced(name: str, value: Tensor, replacement: Replacement) -> Tensor:
    where = f"replacement at tap {name}"
    if not isinstance(replacement, Tensor) and not callable(replacement):
        raise ArgumentTypeError(
            "nothing to replace with", where=where, expected="a tensor or a function", got=repr(replacement)
        )
    new = replacement if isinstance(replacement, Tensor) else replacement(value)
    if not isinstance(new, Tensor):
        raise ArgumentTypeError("not a tensor", where=where, expected="torch.Tensor", got=type(new).__name__)
    if new.shape != value.shape:
        raise ArgumentError("the shape is wrong", where=where, expected=list(value.shape), got=list(new.shape))
    if new.dtype != value.dtype or new.device != value.device:
        raise ArgumentError(
            "the dtype or device is wrong",
            where=where,
            expected=f"{value.dtype} on {value.device}",
            got=f"{new.dtype} on {new.device}",
            fix="convert it with .to(value)",
        )
    return new


def _nonfinite(name: str, value: Tensor) -> NonFiniteError:
    bad = ~torch.isfinite(value)
    worst = [int(i) for i in bad.nonzero()[0]]
    return NonFiniteError(
        "the first tap that is not finite",
        where=name,
        got=f"{value[tuple(worst)].item()} at {worst}, {int(bad.sum())} of {value.numel()} elements, in {value.dtype}",
        fix="compute in float32 or bfloat16" if value.dtype == torch.float16 else None,
    )
