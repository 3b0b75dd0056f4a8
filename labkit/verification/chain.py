"""parameters -> the chain of operations of a GPT-2, closed over the taps, in order of computation.

Each ``Stage`` says which recorded taps feed a tap and by which operation, so that every operation can be run again
from the candidate's own inputs, from a trace file alone.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.model.inputs import token_positions
from labkit.verification.operations import (
    ACTIVATIONS,
    Activation,
    Add,
    Gather,
    LayerNorm,
    Mix,
    Operation,
    Product,
    Scores,
    Softmax,
)


@dataclass(frozen=True)
class Stage:
    """One tap: what feeds it, and the operation that makes it."""

    tap: str
    inputs: tuple[str, ...]
    operation: Operation
    tensors: tuple[str, ...] = ()
    """The checkpoint's tensors that the operation reads."""


@dataclass(frozen=True)
class Inputs:
    """What a forward is given: ids, and optionally a mask of padding and the positions."""

    ids: Tensor  # [batch, pos]
    attention_mask: Tensor | None = None  # [batch, pos]
    position_ids: Tensor | None = None  # [batch, pos]

    @property
    def positions(self) -> Tensor:
        """[pos], or [batch, pos] where rows differ."""
        return torch.arange(self.ids.shape[1]) if self.position_ids is None else self.position_ids

    @property
    def real(self) -> Tensor:
        """bool [batch, pos]: not padding."""
        return torch.ones_like(self.ids, dtype=torch.bool) if self.attention_mask is None else self.attention_mask > 0

    @property
    def allowed(self) -> Tensor:
        """bool [batch, 1, pos_q, pos_k]: the keys that a query may see."""
        pos = self.ids.shape[1]
        causal = torch.ones(pos, pos, dtype=torch.bool).tril()  # [pos_q, pos_k]
        return causal & self.real[:, None, None, :]


def left_padded(rows: Sequence[Sequence[int]]) -> Inputs:
    """Rows of ids -> one batch, padded on the left with id 0 where they differ in length.

    >>> inputs = left_padded([[5, 6, 7], [8]])
    >>> inputs.ids.tolist(), inputs.attention_mask.tolist(), inputs.position_ids.tolist()
    ([[5, 6, 7], [0, 0, 8]], [[1, 1, 1], [0, 0, 1]], [[0, 1, 2], [0, 0, 0]])
    """
    pos = max(map(len, rows))
    ids = torch.tensor([[0] * (pos - len(row)) + list(row) for row in rows])  # [batch, pos]
    if all(len(row) == pos for row in rows):
        return Inputs(ids)
    mask = torch.tensor([[0] * (pos - len(row)) + [1] * len(row) for row in rows])  # [batch, pos]
    return Inputs(ids, mask, token_positions(mask))


def build_chain(config: GPT2Config, weights: Mapping[str, Tensor], inputs: Inputs) -> dict[str, Stage]:
    """Every stage by its tap, in order; ``weights`` are float64 under the released files' names, ``lm_head.weight`` included."""
    stages = [
        Stage("wte", (), Gather(weights["wte.weight"], inputs.ids), ("wte.weight",)),
        Stage("wpe", (), Gather(weights["wpe.weight"], inputs.positions), ("wpe.weight",)),
        Stage("embed", ("wte", "wpe"), Add()),
    ]
    stream = "embed"
    for block in range(config.n_layer):
        stages += _block(config, weights, inputs, block, stream)
        stream = f"h.{block}.resid_post"
    stages.append(Stage("ln_f", (stream,), _layer_norm(config, weights, "ln_f"), ("ln_f.weight", "ln_f.bias")))
    head = Product(weights["lm_head.weight"].T, None)
    stages.append(Stage("logits", ("ln_f",), head, ("wte.weight" if config.tie_word_embeddings else "lm_head.weight",)))
    return {stage.tap: stage for stage in stages}


def unrecorded(stage: Stage, stages: Mapping[str, Stage], present: Container[str]) -> tuple[str, ...]:
    """The stages between a stage and its nearest recorded ancestors, in order of computation; itself not included."""
    wanted = {name for name in stage.inputs if name not in present}
    for name in reversed(list(stages)):
        if name in wanted:
            wanted.update(each for each in stages[name].inputs if each not in present)
    return tuple(name for name in stages if name in wanted)


def recorded_inputs(stage: Stage, stages: Mapping[str, Stage], present: Container[str]) -> tuple[str, ...]:
    """The nearest recorded ancestors of a stage."""
    between = (*(stages[name] for name in unrecorded(stage, stages, present)), stage)
    return tuple(dict.fromkeys(name for each in between for name in each.inputs if name in present))


def _layer_norm(config: GPT2Config, weights: Mapping[str, Tensor], name: str) -> LayerNorm:
    return LayerNorm(weights[f"{name}.weight"], weights[f"{name}.bias"], config.layer_norm_epsilon)


def _product(weights: Mapping[str, Tensor], name: str, *, merge: bool = False) -> Product:
    return Product(weights[f"{name}.weight"], weights[f"{name}.bias"], merge=merge)


def _block(config: GPT2Config, weights: Mapping[str, Tensor], inputs: Inputs, block: int, stream: str) -> list[Stage]:
    h = f"h.{block}"
    pair = {
        name: (f"{h}.{name}.weight", f"{h}.{name}.bias")
        for name in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")
    }
    qkv = {}
    for place, letter in enumerate("qkv"):
        columns = slice(place * config.n_embd, (place + 1) * config.n_embd)
        weight, bias = (weights[name] for name in pair["attn.c_attn"])
        qkv[letter] = Product(weight[:, columns], bias[columns], split=config.n_head)
    return [
        Stage(f"{h}.ln_1", (stream,), _layer_norm(config, weights, f"{h}.ln_1"), pair["ln_1"]),
        *(Stage(f"{h}.attn.{letter}", (f"{h}.ln_1",), op, pair["attn.c_attn"]) for letter, op in qkv.items()),
        Stage(f"{h}.attn.scores", (f"{h}.attn.q", f"{h}.attn.k"), Scores(config.scaling(block=block))),
        Stage(f"{h}.attn.pattern", (f"{h}.attn.scores",), Softmax(inputs.allowed)),
        Stage(f"{h}.attn.z", (f"{h}.attn.pattern", f"{h}.attn.v"), Mix()),
        Stage(
            f"{h}.attn.out", (f"{h}.attn.z",), _product(weights, f"{h}.attn.c_proj", merge=True), pair["attn.c_proj"]
        ),
        Stage(f"{h}.resid_mid", (f"{h}.attn.out", stream), Add()),
        Stage(f"{h}.ln_2", (f"{h}.resid_mid",), _layer_norm(config, weights, f"{h}.ln_2"), pair["ln_2"]),
        Stage(f"{h}.mlp.pre", (f"{h}.ln_2",), _product(weights, f"{h}.mlp.c_fc"), pair["mlp.c_fc"]),
        Stage(f"{h}.mlp.post", (f"{h}.mlp.pre",), Activation(ACTIVATIONS[config.activation_function])),
        Stage(f"{h}.mlp.out", (f"{h}.mlp.post",), _product(weights, f"{h}.mlp.c_proj"), pair["mlp.c_proj"]),
        Stage(f"{h}.resid_post", (f"{h}.mlp.out", f"{h}.resid_mid"), Add()),
    ]
