"""Names in a trace: taps, decode steps and modules, and the shape that each tap has.

A decode step's tensors carry its number in front: ``step.3.h.0.attn.k``. Porters who hook modules know their outputs by
the module's name; each module makes one tap (``h.1.mlp.c_fc`` makes ``h.1.mlp.pre``), c_attn the packed three.
"""

from dataclasses import dataclass

from labkit.config import GPT2Config
from labkit.model.taps import tap_axes, tap_names
from labkit.outside import whole_number

IDS = "input_ids"
MASK = "attention_mask"
POSITIONS = "position_ids"
INPUT_NAMES = (IDS, MASK, POSITIONS)
"""Tensors of a trace that are no taps: what the forward pass was given."""

STEP = "step."

_MODULE_OF = {
    "ln_1": "ln_1",
    "attn.q": "attn.c_attn",
    "attn.k": "attn.c_attn",
    "attn.v": "attn.c_attn",
    "attn.out": "attn.c_proj",
    "ln_2": "ln_2",
    "mlp.pre": "mlp.c_fc",
    "mlp.post": "mlp.act",
    "mlp.out": "mlp.c_proj",
}
"""Within a block: the module whose output a tap is."""

_MAKES = {"wte": "wte", "wpe": "wpe", "ln_f": "ln_f", "lm_head": "logits"}
_MAKES_IN_BLOCK = {module: tap for tap, module in _MODULE_OF.items() if module != "attn.c_attn"}
_PREFIXES = ("model.", "module.", "transformer.")


def split_step(name: str) -> tuple[int | None, str]:
    """A tensor's name -> the number of its decode step (None for the prompt's own pass) and the name within it.

    >>> split_step("step.3.h.0.attn.k"), split_step("logits")
    ((3, 'h.0.attn.k'), (None, 'logits'))
    """
    number, dot, rest = name.removeprefix(STEP).partition(".")
    step = whole_number(number)
    if not name.startswith(STEP) or not dot or step is None:
        return None, name
    return step, rest


def step_prefix(step: int | None) -> str:
    """What stands in front of a step's names."""
    return "" if step is None else f"{STEP}{step}."


def split_block(tap: str) -> tuple[str, str]:
    """A tap -> its block's prefix (empty outside the blocks) and its name within.

    >>> split_block("h.11.attn.q"), split_block("ln_f")
    (('h.11.', 'attn.q'), ('', 'ln_f'))
    """
    parts = tap.split(".", 2)
    if parts[0] == "h" and len(parts) == 3 and whole_number(parts[1]) is not None:
        return f"h.{parts[1]}.", parts[2]
    return "", tap


def module_of(tap: str) -> str | None:
    """The module whose output a tap is, by the released files' names; None where no module has it.

    >>> module_of("h.1.mlp.pre"), module_of("h.1.attn.k"), module_of("logits"), module_of("embed")
    ('h.1.mlp.c_fc', 'h.1.attn.c_attn', 'lm_head', None)
    """
    block, stage = split_block(tap)
    if block:
        return block + _MODULE_OF[stage] if stage in _MODULE_OF else None
    return next((module for module, made in _MAKES.items() if made == tap), None)


def tap_of_module(module: str) -> str | None:
    """The tap that a module's output is recorded under; None for a name that is no module.

    >>> tap_of_module("h.1.mlp.c_fc"), tap_of_module("transformer.h.0.attn.c_proj"), tap_of_module("h.0.attn.c_attn")
    ('h.1.mlp.pre', 'h.0.attn.out', 'h.0.attn.c_attn')
    """
    for prefix in _PREFIXES:
        module = module.removeprefix(prefix)
    block, stage = split_block(module)
    if not block:
        return _MAKES.get(module)
    if stage == "attn.c_attn":
        return module
    return block + _MAKES_IN_BLOCK[stage] if stage in _MAKES_IN_BLOCK else None


def described(tap: str) -> str:
    """A tap with the module that makes it, for a report.

    >>> described("h.1.attn.k"), described("h.0.resid_mid")
    ('h.1.attn.k (from module h.1.attn.c_attn)', 'h.0.resid_mid')
    """
    module = module_of(tap)
    return tap if module is None or module == tap else f"{tap} (from module {module})"


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of one forward pass: rows, new positions, and positions that were already there."""

    batch: int
    pos: int
    past: int = 0


def allowed_shapes(tap: str, config: GPT2Config, sizes: Sizes) -> tuple[tuple[int, ...], ...]:
    """The shapes that a tap may be recorded in, the usual one first.

    ``wpe`` may have a batch axis or none; in a decode step the keys and values may be the new ones or all so far.

    >>> config = GPT2Config(n_embd=12, n_head=3, n_layer=1)
    >>> allowed_shapes("h.0.attn.k", config, Sizes(batch=2, pos=1, past=5))
    ((2, 3, 1, 4), (2, 3, 6, 4))
    """
    every = sizes.past + sizes.pos
    by_axis = {
        "batch": sizes.batch,
        "pos": sizes.pos,
        "pos_q": sizes.pos,
        "pos_k": every,
        "n_embd": config.n_embd,
        "3*n_embd": 3 * config.n_embd,
        "n_inner": config.inner,
        "head": config.n_head,
        "head_dim": config.head_dim,
        "vocab": config.vocab_size,
    }
    usual = tuple(by_axis[axis] for axis in tap_axes(tap))
    if tap == "wpe":
        return usual, (sizes.batch, *usual)
    if tap.endswith((".attn.k", ".attn.v")) and sizes.past:
        return usual, (*usual[:2], every, usual[3])
    return (usual,)


def ordered_taps(config: GPT2Config) -> tuple[str, ...]:
    """Every tap that a trace may hold, the packed and merged ones included, in order of computation.

    >>> ordered_taps(GPT2Config(n_layer=1))[4:6]
    ('h.0.attn.c_attn', 'h.0.attn.q')
    """
    names: list[str] = []
    for tap in tap_names(config):
        block, stage = split_block(tap)
        names += [f"{block}attn.c_attn"] if stage == "attn.q" else []
        names.append(tap)
        names += [f"{block}attn.merged"] if stage == "attn.z" else []
    return tuple(names)
