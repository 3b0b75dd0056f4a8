"""What a shorter dtype changes: logits, every depth, the greedy text, the perplexity of a text; float32 beside it.

In: a checkpoint folder, a text, dtypes. Out: a frozen ``DtypeStudy`` with its text form. Weights stored in float32 are
rounded to the dtype, and everything is computed in it, as whoever loads the file in that dtype does.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from labkit.errors import ArgumentError, ArgumentTypeError, NonFiniteError
from labkit.generation.continuation import as_ids, check_prompts, greedy
from labkit.generation.settings import Settings
from labkit.generation.verbs import checkpoint_folder, find_tokenizer
from labkit.load import load_gpt2
from labkit.model import GPT2
from labkit.outside import shown_value
from labkit.words import counted

TEXT = (
    "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of a "
    "wife. However little known the feelings or views of such a man may be on his first entering a neighbourhood, this "
    "truth is so well fixed in the minds of the surrounding families, that he is considered as the rightful property "
    "of some one or other of their daughters."
)
"""The opening of Pride and Prejudice (Austen 1813), where no other text is given."""

MOST_NATS = math.log(sys.float_info.max)
"""A mean surprise from here on is of a perplexity that no float64 holds."""

LONGEST = 1e6
"""Larger figures are shown with an exponent."""


@dataclass(frozen=True, kw_only=True)
class Parting:
    """The first token at which the greedy texts differ."""

    at: int  # new tokens before it
    float32_id: int
    other_id: int
    lead: float  # of float32's id over the other's, in logits
    moved: float  # by how much the dtype moved that lead

    @property
    def coin_flip(self) -> bool:
        """Whether float32's lead was within what the dtype moves the typical lead: the model had no opinion."""
        return self.lead <= self.moved


@dataclass(frozen=True, kw_only=True)
class DtypeResult:
    """One dtype beside float32."""

    dtype: str
    max_logit_difference: float
    typical_logit_difference: float  # root of the mean square over positions and vocabulary
    depths: tuple[tuple[str, float], ...]  # tap -> relative error, norm of the difference over norm
    perplexity: float  # inf where it is beyond what a float64 holds
    parting: Parting | None  # None: the texts are equal


@dataclass(frozen=True, kw_only=True)
class NotFinite:
    """One dtype that cannot hold what the checkpoint computes."""

    dtype: str
    told: str  # the first tap with a NaN or an infinity, and what it holds


@dataclass(frozen=True, kw_only=True)
class DtypeStudy:
    """Every dtype's result over the same text."""

    folder: str
    positions: int
    greedy_tokens: int
    perplexity: float  # float32's
    results: tuple[DtypeResult | NotFinite, ...]

    def __str__(self) -> str:
        lines = [f"{self.folder}: {self.positions} positions, float32 perplexity {_figure(self.perplexity)}"]
        for result in self.results:
            if isinstance(result, NotFinite):
                lines.append(f"  {result.dtype}: nothing to compare, {result.told}")
                continue
            lines.append(
                f"  {result.dtype}: logits differ by at most {result.max_logit_difference:.3g} "
                f"(typically {result.typical_logit_difference:.2g}), perplexity {_figure(result.perplexity)}"
                f"{_change(result.perplexity, self.perplexity)}"
            )
            grown = ", ".join(f"{name} {error:.1e}" for name, error in result.depths)
            lines.append(f"    relative error by depth: {grown}")
            lines.append(f"    {_told(result.parting, self.greedy_tokens)}")
        return "\n".join(lines)


def dtype_study(
    folder: str | Path | None = None,
    *,
    text: str | None = None,
    ids: Sequence[int] | None = None,
    dtypes: Sequence[torch.dtype] = (torch.bfloat16, torch.float16),
    tokens: int = 40,
    device: str = "cpu",
    say: Callable[[str], None] | None = None,
) -> DtypeStudy:
    """Compare dtypes with float32 over a text (or ids): its end is cut where n_positions ends.

    A dtype in which something is not finite is told as such beside the others. Raises what loading raises,
    ``ArgumentError`` for a text of fewer than two tokens, ``NonFiniteError`` where float32 itself is not finite.

    >>> study = dtype_study(ids=[5, 6, 7, 8], tokens=4)
    >>> [result.dtype for result in study.results], study.positions
    (['bfloat16', 'float16'], 4)
    """
    if not isinstance(dtypes, Sequence):
        raise ArgumentTypeError("not a list of dtypes", where="dtypes", got=shown_value(dtypes))
    Settings(tokens=tokens)  # which refuses what is no number of tokens
    tell = say or (lambda _step: None)
    tell("float32")
    base = load_gpt2(folder, device=device)
    row = _row(base, text, ids)
    prompt = row[: max(1, min(len(row) // 2, base.config.n_positions - tokens))]
    count = min(tokens, base.config.n_positions - len(prompt) + 1)
    expected, taps = _forward(base, row)
    continued = greedy(base, prompt, count)
    results: list[DtypeResult | NotFinite] = []
    for dtype in dtypes:
        name = str(dtype).removeprefix("torch.")
        tell(name)
        model = load_gpt2(folder, device=device, dtype=dtype)
        try:
            actual, shorter = _forward(model, row)
            parting = _parting(base, model, prompt, continued, greedy(model, prompt, count))
        except NonFiniteError as error:
            results.append(NotFinite(dtype=name, told=str(error)))
            continue
        difference = (actual - expected).double()  # [pos, vocab]
        results.append(
            DtypeResult(
                dtype=name,
                max_logit_difference=float(difference.abs().max()),
                typical_logit_difference=float(difference.square().mean().sqrt()),
                depths=tuple((tap, _relative(shorter[tap], value)) for tap, value in taps.items()),
                perplexity=_perplexity(actual, row),
                parting=parting,
            )
        )
    return DtypeStudy(
        folder=str(checkpoint_folder(base)),
        positions=len(row),
        greedy_tokens=count,
        perplexity=_perplexity(expected, row),
        results=tuple(results),
    )


def _row(model: GPT2, text: str | None, ids: Sequence[int] | None) -> list[int]:
    if text is not None and ids is not None:
        raise ArgumentError("a text and ids were both given", fix="give one of them")
    if ids is None:
        tokenizer, _ = find_tokenizer(model, checkpoint_folder(model), needed=True)
        assert tokenizer is not None
        ids = tokenizer.encode(TEXT if text is None else text)
    row = as_ids(ids, "ids")[: model.config.n_positions]
    if len(row) < 2:
        raise ArgumentError("too short to study", where="text", expected="two tokens or more", got=len(row))
    check_prompts(model, [row])
    return row


def _forward(model: GPT2, row: Sequence[int]) -> tuple[Tensor, dict[str, Tensor]]:
    run = model.run(list(row), taps=["embed", "h.*.resid_post", "ln_f"], nonfinite="refuse")
    taps = {name: value.cpu().double() for name, value in run.taps.items()}  # MPS has no float64
    return run.logits[0].float().cpu(), taps


def _relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


def _perplexity(logits: Tensor, row: Sequence[int]) -> float:
    """exp of the mean surprise, in nats, of each token but the first."""
    targets = torch.tensor(row[1:], device=logits.device)  # [pos - 1]
    surprise = float(functional.cross_entropy(logits[:-1].double(), targets))
    return math.exp(surprise) if surprise < MOST_NATS else math.inf


def _figure(perplexity: float) -> str:
    if not math.isfinite(perplexity):
        return f"inf (over {int(MOST_NATS)} nats a token)"
    return f"{perplexity:.3f}" if perplexity < LONGEST else f"{perplexity:.4g}"


def _change(perplexity: float, base: float) -> str:
    if not (math.isfinite(perplexity) and math.isfinite(base)):
        return ""
    percent = 100 * (perplexity / base - 1)
    return f" ({percent:+.2f} %)" if percent < LONGEST else f" ({percent:+.3g} %)"


def _parting(base: GPT2, model: GPT2, prompt: list[int], ours: list[int], theirs: list[int]) -> Parting | None:
    at = next((place for place, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), None)
    if at is None:
        return None
    text = [*prompt, *ours[:at]]
    last = (each.run(text, logits="last").logits[0, -1] for each in (base, model))  # each [vocab]
    exact, other = (each.cpu().double() for each in last)  # each [vocab]
    lead = exact[ours[at]] - exact[theirs[at]]
    typical = float((other - exact - (other - exact).mean()).square().mean().sqrt())  # of one logit's rounding
    return Parting(at=at, float32_id=ours[at], other_id=theirs[at], lead=float(lead), moved=4 * typical)


def _told(parting: Parting | None, tokens: int) -> str:
    if parting is None:
        return f"greedy text: the same {counted(tokens, 'token')}"
    verdict = "a coin flip" if parting.coin_flip else "more than rounding of this size explains"
    return (
        f"greedy text parts after {counted(parting.at, 'token')}: id {parting.float32_id} in float32, {parting.other_id} here; "
        f"float32's lead was {parting.lead:.3g}, this dtype moves leads by up to {parting.moved:.2g}: {verdict}"
    )
