"""Mistakes in attention: how c_attn's columns are dealt out, the scale, the mix, the merge."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labkit.verification.hypotheses.product import product
from labkit.verification.hypotheses.scene import Hypothesis, Scene, Variants, site_taps
from labkit.verification.operations import Mix, Product, Rounding, Scores

Deal = Callable[[Tensor, Scene], tuple[Tensor, Tensor, Tensor]]
"""[..., 3 * n_embd] -> the columns of q, k and v, each [..., n_embd], heads side by side."""


def _packed(scene: Scene, tap: str) -> Tensor:
    """c_attn's weight above its bias: [n_embd + 1, 3 * n_embd]."""
    h = f"h.{scene.block(tap)}.attn.c_attn"
    return torch.cat([scene.weights[f"{h}.weight"], scene.weights[f"{h}.bias"][None]])


def _dealt(deal: Deal, fits: Callable[[Scene], bool] = lambda _scene: True) -> Callable[[Scene, str], Variants]:
    def variants(scene: Scene, tap: str) -> Variants:
        if not fits(scene):
            return {}
        parts = deal(_packed(scene, tap), scene)  # each [n_embd + 1, n_embd]
        changed = {}
        for name, part in zip(site_taps(tap), parts, strict=True):
            changed[name] = scene.changed(name, replace(product(scene, name), weight=part[:-1], bias=part[-1]))
        return changed

    return variants


def _order(letters: str) -> Deal:
    def deal(packed: Tensor, _scene: Scene) -> tuple[Tensor, Tensor, Tensor]:
        by_letter = dict(zip(letters, packed.chunk(3, dim=-1), strict=True))
        return by_letter["q"], by_letter["k"], by_letter["v"]

    return deal


def _heads_first(packed: Tensor, scene: Scene) -> tuple[Tensor, Tensor, Tensor]:
    rows, heads = packed.shape[0], scene.config.n_head
    by_head = packed.view(rows, heads, 3, -1)  # [rows, head, 3, head_dim]
    q, k, v = (by_head[:, :, i].reshape(rows, -1) for i in range(3))
    return q, k, v


def _interleaved_heads(packed: Tensor, scene: Scene) -> tuple[Tensor, Tensor, Tensor]:
    rows, heads = packed.shape[0], scene.config.n_head
    q, k, v = (
        part.view(rows, -1, heads).transpose(1, 2).reshape(rows, -1)  # [rows, n_embd]
        for part in packed.chunk(3, dim=-1)
    )
    return q, k, v


def _rotary_order(packed: Tensor, scene: Scene) -> tuple[Tensor, Tensor, Tensor]:
    rows, heads = packed.shape[0], scene.config.n_head
    q, k, v = packed.chunk(3, dim=-1)
    halves = (
        part.view(rows, heads, -1, 2).transpose(2, 3).reshape(rows, -1)  # even dims of each head, then odd
        for part in (q, k)
    )
    q, k = halves
    return q, k, v


def _k_for_v(packed: Tensor, _scene: Scene) -> tuple[Tensor, Tensor, Tensor]:
    q, k, _ = packed.chunk(3, dim=-1)
    return q, k, k


def _scale(factor: Callable[[Scene, int], float]) -> Callable[[Scene, str], Variants]:
    def variants(scene: Scene, tap: str) -> Variants:
        return {tap: scene.changed(tap, Scores(factor(scene, scene.block(tap))))}

    return variants


def solve_scale(scene: Scene, tap: str) -> tuple[float, float] | None:
    """The factor on q @ k.T and its standard error, by least squares over what a query may see."""
    q, k = scene.stages[tap].inputs
    if any(name not in scene.candidate for name in (tap, q, k)):
        return None
    plain = scene.candidate[q].double() @ scene.candidate[k].double().transpose(-1, -2)  # [batch, head, pos_q, pos_k]
    seen = (scene.inputs.allowed & scene.inputs.real[:, None, :, None]).expand_as(plain)
    x, y = plain[seen], scene.candidate[tap].double()[seen]
    scale = float((x @ y) / (x @ x))
    rest = y - scale * x
    error = float((rest @ rest / max(len(x) - 1, 1) / (x @ x)).sqrt())
    return (scale, error) if math.isfinite(scale) and error < 0.05 * abs(scale) else None


def _solved_scale(scene: Scene, tap: str) -> Variants:
    solved = solve_scale(scene, tap)
    return {} if solved is None else {tap: scene.changed(tap, Scores(solved[0]))}


def _scale_evidence(scene: Scene, tap: str) -> str:
    solved = solve_scale(scene, tap)
    return "" if solved is None else f"scale = {solved[0]:.5g} ± {solved[1]:.1g}"


def _scores_swapped(scene: Scene, tap: str) -> Variants:
    stage = scene.stages[tap]
    return {tap: scene.changed(tap, stage.operation, (stage.inputs[1], stage.inputs[0]))}


@dataclass(frozen=True)
class MixOf(Mix):
    """pattern @ v with one of the two changed first."""

    change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

    def compute(self, *inputs: Tensor) -> Tensor:
        return super().compute(*self.change(inputs[0], inputs[1]))

    def rounding(self, output: Tensor, *inputs: Tensor) -> Rounding:
        return super().rounding(output, *self.change(inputs[0], inputs[1]))


def _stale(pattern: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The newest position's value is the one of the position before."""
    return pattern, torch.cat([v[..., :-1, :], v[..., -2:-1, :]], dim=-2) if v.shape[-2] > 1 else v


def _late(pattern: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Every value is the one of the position before."""
    return pattern, torch.cat([v[..., :1, :], v[..., :-1, :]], dim=-2)


def _mix(change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Callable[[Scene, str], Variants]:
    return lambda scene, tap: {tap: scene.changed(tap, MixOf(change))}


def _mix_of_keys(scene: Scene, tap: str) -> Variants:
    stage = scene.stages[tap]
    return {tap: scene.changed(tap, stage.operation, (stage.inputs[0], stage.inputs[1][:-1] + "k"))}


@dataclass(frozen=True)
class Unmerged(Product):
    """The heads are merged without transposing back: memory is read head by head."""

    def _merged(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], x.shape[-2], -1)  # [batch, pos, n_embd]


@dataclass(frozen=True)
class InterleavedMerge(Product):
    """The heads are merged element by element instead of head after head."""

    def _merged(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(-2)  # [batch, pos, n_embd]


def _merge(kind: type[Product]) -> Callable[[Scene, str], Variants]:
    def variants(scene: Scene, tap: str) -> Variants:
        op = product(scene, tap)
        return {tap: scene.changed(tap, kind(op.weight, op.bias, op.split, op.merge))}

    return variants


HYPOTHESES = (
    *(
        Hypothesis(
            name="qkv-order" if letters == "kqv" else f"qkv-order-{letters}",
            site="attn.qkv",
            cause=f"c_attn's columns are taken as {', '.join(letters.upper())} instead of Q, K, V",
            variants=_dealt(_order(letters)),
        )
        for letters in ("kqv", "qvk", "vkq", "kvq", "vqk")
    ),
    Hypothesis(
        name="heads-before-qkv",
        site="attn.qkv",
        cause="c_attn's columns are split into heads first, and into Q, K, V within each head",
        variants=_dealt(_heads_first),
    ),
    Hypothesis(
        name="heads-interleaved",
        site="attn.qkv",
        cause="heads are taken element by element (head_dim, head) instead of head after head",
        variants=_dealt(_interleaved_heads),
    ),
    Hypothesis(
        name="rotary-interleave",
        site="attn.qkv",
        cause="each head of Q and K is reordered into even and odd elements, as rotary checkpoints are",
        variants=_dealt(_rotary_order, lambda scene: scene.config.head_dim % 2 == 0),
    ),
    Hypothesis(name="k-for-v", site="attn.qkv", cause="V is taken from K's columns", variants=_dealt(_k_for_v)),
    Hypothesis(
        name="scale-missing",
        site="attn.scores",
        cause="scores are not divided by sqrt(head_dim)",
        variants=_scale(lambda scene, block: scene.config.scaling(block=block) * scene.config.head_dim**0.5),
    ),
    Hypothesis(
        name="scale-n_embd",
        site="attn.scores",
        cause="scores are divided by sqrt(n_embd) instead of sqrt(head_dim)",
        variants=_scale(lambda scene, _block: scene.config.n_embd**-0.5),
    ),
    Hypothesis(
        name="scale-head_dim",
        site="attn.scores",
        cause="scores are divided by head_dim instead of its square root",
        variants=_scale(lambda scene, _block: 1 / scene.config.head_dim),
    ),
    Hypothesis(
        name="scale-solved",
        site="attn.scores",
        cause="scores have an unusual scale",
        variants=_solved_scale,
        fitted=True,
        evidence=_scale_evidence,
    ),
    Hypothesis(
        name="scores-transposed",
        site="attn.scores",
        cause="k @ q.T is computed instead of q @ k.T",
        variants=_scores_swapped,
    ),
    Hypothesis(
        name="stale-v",
        site="attn.z",
        cause="the newest position's value is missing from the cache: the one before is used",
        variants=_mix(_stale),
    ),
    Hypothesis(name="late-v", site="attn.z", cause="every value is taken one position too late", variants=_mix(_late)),
    Hypothesis(
        name="mix-of-keys", site="attn.z", cause="the pattern is applied to K instead of V", variants=_mix_of_keys
    ),
    Hypothesis(
        name="merge-without-transpose",
        site="attn.out",
        cause="heads are merged without transposing back to [pos, head]",
        variants=_merge(Unmerged),
    ),
    Hypothesis(
        name="merge-interleaved",
        site="attn.out",
        cause="heads are merged element by element instead of head after head",
        variants=_merge(InterleavedMerge),
    ),
)
