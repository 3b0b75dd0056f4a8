"""A snapshot's headers -> counts and bytes by kind and by block, set beside the parameter formula of its config.

Nothing is refused for its names or shapes here: what ``read_checkpoint`` would refuse is told as the ``problem``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from labkit.checkpoint.names import block_of, parse_name
from labkit.checkpoint.plan import Stored, plan_parameters
from labkit.checkpoint.read import choose_config, stored_tensors
from labkit.config import GPT2Config, parameter_shapes
from labkit.errors import CheckpointError
from labkit.storage import open_snapshot

FORMULAS = {
    "token embedding": "vocab_size * n_embd",
    "position embedding": "n_positions * n_embd",
    "attention": "n_layer * (4 * n_embd * n_embd + 4 * n_embd)",
    "mlp": "n_layer * (2 * n_embd * n_inner + n_inner + n_embd)",
    "LayerNorm": "(2 * n_layer + 1) * 2 * n_embd",
    "head": "0 where tied, else vocab_size * n_embd",
}
"""Parameters of each kind, in the names of config.json."""


@dataclass(frozen=True, kw_only=True)
class Count:
    """What one kind, or one block, should hold and what the files hold."""

    name: str
    formula: str
    expected_numel: int
    tensors: int
    numel: int
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """The contents of a snapshot, counted."""

    folder: str
    config: GPT2Config
    by_kind: tuple[Count, ...]
    by_block: tuple[Count, ...]
    extra: tuple[Count, ...]  # tensors beyond the parameters, by what they are
    dtypes: Mapping[str, int]  # code -> bytes
    notes: tuple[str, ...]
    problem: str | None

    @property
    def expected_numel(self) -> int:
        """Parameters by the formula."""
        return sum(each.expected_numel for each in self.by_kind)

    @property
    def numel(self) -> int:
        """Parameters in the files, extra tensors left out."""
        return sum(each.numel for each in self.by_kind)

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor, extra ones included."""
        return sum(each.nbytes for each in (*self.by_kind, *self.extra))

    @property
    def return_code(self) -> int:
        """0 where the files hold what the config states, else 1."""
        return 0 if self.problem is None else 1

    def __str__(self) -> str:
        agrees = (
            "as the formula says" if self.numel == self.expected_numel else f"the formula says {self.expected_numel:,}"
        )
        return f"{self.folder}: {self.numel:,} parameters ({agrees}), {self.nbytes:,} bytes"


def take_inventory(folder: str | Path, *, config: Mapping[str, Any] | str | Path | None = None) -> Inventory:
    """Count what the snapshot in ``folder`` holds.

    Raises ``MissingFileError``, ``FormatError`` and ``ConfigError``, as reading the files does.

    >>> from labkit.load import embedded
    >>> inventory = take_inventory(embedded())
    >>> inventory.numel == inventory.expected_numel
    True
    """
    path = Path(folder)
    with open_snapshot(path) as snapshot:
        stored = stored_tensors(snapshot)
        nbytes = {name: entry.nbytes for name, (_, entry) in snapshot.entries.items()}
        notes = snapshot.notes
    wanted, config_notes = choose_config(path, config, stored)
    try:
        plan = plan_parameters(stored, wanted, where=str(path))
        problem, notes = None, (*notes, *config_notes, *plan.notes)
    except CheckpointError as error:
        problem, notes = str(error), (*notes, *config_notes)
    dtypes: dict[str, int] = {}
    for each in stored:
        dtypes[each.dtype] = dtypes.get(each.dtype, 0) + nbytes[each.name]
    return Inventory(
        folder=str(path),
        config=wanted,
        by_kind=_by_kind(stored, nbytes, wanted),
        by_block=_by_block(stored, nbytes, wanted),
        extra=_extra(stored, nbytes, wanted),
        dtypes=dtypes,
        notes=notes,
        problem=problem,
    )


def kind_of(parameter: str) -> str:
    """The kind of a parameter, a key of ``FORMULAS``.

    >>> kind_of("h.3.ln_2.bias"), kind_of("h.3.mlp.c_proj.weight")
    ('LayerNorm', 'mlp')
    """
    for part, kind in (("wte.", "token embedding"), ("wpe.", "position embedding"), (".attn.", "attention")):
        if part in parameter:
            return kind
    return "mlp" if ".mlp." in parameter else "head" if parameter.startswith("lm_head.") else "LayerNorm"


def _by_kind(stored: Sequence[Stored], nbytes: Mapping[str, int], config: GPT2Config) -> tuple[Count, ...]:
    counts = []
    parameters = _parameters(stored, config)
    for kind, formula in FORMULAS.items():
        expected = sum(prod(shape) for name, shape in parameter_shapes(config).items() if kind_of(name) == kind)
        held = [each for bare, each in parameters if kind_of(bare) == kind]
        counts.append(_count(kind, formula, expected, held, nbytes))
    return tuple(counts)


def _by_block(stored: Sequence[Stored], nbytes: Mapping[str, int], config: GPT2Config) -> tuple[Count, ...]:
    parameters = _parameters(stored, config)
    blocks = {block for bare, _ in parameters if (block := block_of(bare)) is not None} | set(range(config.n_layer))
    formula = "4 * n_embd * n_embd + 9 * n_embd + 2 * n_embd * n_inner + n_inner"
    counts = []
    for block in sorted(blocks):
        expected = sum(prod(shape) for name, shape in parameter_shapes(config).items() if block_of(name) == block)
        held = [each for bare, each in parameters if block_of(bare) == block]
        counts.append(_count(f"h.{block}", formula, expected, held, nbytes))
    return tuple(counts)


def _extra(stored: Sequence[Stored], nbytes: Mapping[str, int], config: GPT2Config) -> tuple[Count, ...]:
    counted = {each.name for _, each in _parameters(stored, config)}
    kinds: dict[str, list[Stored]] = {}
    for each in stored:
        if each.name not in counted:
            parsed = parse_name(each.name)
            kinds.setdefault("copy of the tied head" if parsed.kind == "parameter" else parsed.kind, []).append(each)
    return tuple(_count(kind, "none", 0, held, nbytes) for kind, held in kinds.items())


def _parameters(stored: Sequence[Stored], config: GPT2Config) -> list[tuple[str, Stored]]:
    """The tensors that fill parameters, by bare name; of a tied head stored twice, wte alone."""
    named = [(parse_name(each.name), each) for each in stored]
    bare = {parsed.bare for parsed, _ in named}
    twice = config.tie_word_embeddings and {"wte.weight", "lm_head.weight"} <= bare
    return [
        (parsed.bare, each)
        for parsed, each in named
        if parsed.kind == "parameter" and not (twice and parsed.bare == "lm_head.weight")
    ]


def _count(name: str, formula: str, expected: int, held: Sequence[Stored], nbytes: Mapping[str, int]) -> Count:
    return Count(
        name=name,
        formula=formula,
        expected_numel=expected,
        tensors=len(held),
        numel=sum(prod(each.shape) for each in held),
        nbytes=sum(nbytes[each.name] for each in held),
    )
