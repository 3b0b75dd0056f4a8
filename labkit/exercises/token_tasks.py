"""Exercises of notebooks 04 and 07: merges, bytes, sampling, the cache."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import torch

from labkit.exercises.answers import WrongAnswerError, as_function, as_number, as_tensor, shown
from labkit.exercises.task import Task, number_task
from labkit.tokenizer.alphabet import BYTE_OF_SYMBOL, SYMBOL_OF_BYTE

ROUNDING = 1e-6


def judge_next_merge(answer: Any) -> None:
    """A function next_merge(symbols, ranks): the place of the pair to merge next, or None."""
    next_merge = as_function(answer)
    ranks = {("h", "e"): 2, ("e", "l"): 0, ("l", "l"): 1, ("a", "a"): 5}
    for symbols, right in (
        (["h", "e", "l", "l", "o"], 1),
        (["x", "y"], None),
        (["a", "a", "a"], 0),
        (["h"], None),
        ([], None),
    ):
        got = next_merge(symbols, ranks)
        if (wrong := _wrong_place(got, right, symbols, ranks)) is not None:
            raise WrongAnswerError(f"{symbols} gave {shown(got)}: {wrong}")


def _wrong_place(got: Any, right: int | None, symbols: list[str], ranks: Mapping[tuple[str, str], int]) -> str | None:
    """Why ``got`` is not the place of the pair to merge next; None where it is."""
    if right is None:
        return None if got is None else "where no pair has a rank the answer is None"
    if got is None:
        return "it has a pair with a rank, and the place of a pair is expected"
    try:
        place = as_number(got, "the place")
    except WrongAnswerError:
        return "the place of a pair is expected, a whole number"
    pairs = dict(enumerate(pairwise(symbols)))
    if place not in pairs:
        return "no pair stands at that place"
    if place == right:
        return None
    pair, best = pairs[int(place)], pairs[right]
    if pair not in ranks:
        return f"the pair {pair} has no rank"
    return "the lowest rank wins" if ranks[pair] > ranks[best] else "of equal ranks the leftmost place is taken"


def judge_symbol(answer: Any) -> None:
    """The symbol in which vocab.json writes a space."""
    if not isinstance(answer, str) or len(answer) != 1:
        raise WrongAnswerError(f"one character is asked for, not {shown(answer)}")
    if answer == SYMBOL_OF_BYTE[ord(" ")]:
        return
    if answer == "G":
        raise WrongAnswerError("there is a dot above it")
    raise WrongAnswerError(f"{answer!r} stands for {'another' if answer in BYTE_OF_SYMBOL else 'no'} byte")


def judge_top_p(answer: Any) -> None:
    """A function top_p(probabilities, p): the fewest likeliest that reach p, made to add up to 1."""
    top_p = as_function(answer)
    probabilities = torch.tensor([0.1, 0.4, 0.2, 0.3])
    for p, kept in ((0.35, [1]), (0.6, [1, 3]), (0.75, [1, 2, 3]), (1.0, [0, 1, 2, 3])):
        got = as_tensor(top_p(probabilities, p), f"top_p(probabilities, {p}) of 4 probabilities", shape=[4])
        if bool((got < 0).any()):
            raise WrongAnswerError("no share may be negative")
        have = torch.nonzero(got > 0).flatten().tolist()
        if have != kept:
            raise WrongAnswerError(
                f"p = {p} keeps {have} of the probabilities {[0.1, 0.4, 0.2, 0.3]}: {_wrongly_kept(have, kept)}"
            )
        if abs(float(got.sum()) - 1) > ROUNDING:
            raise WrongAnswerError("what is left must add up to 1")
        right = torch.zeros_like(got)
        right[kept] = probabilities[kept].double() / probabilities[kept].double().sum()
        if not torch.allclose(got, right, atol=ROUNDING):
            raise WrongAnswerError("what is left must keep its proportions")


def _wrongly_kept(have: list[int], kept: list[int]) -> str:
    if set(have) > set(kept):
        return "too many"
    return "too few" if set(have) < set(kept) else "not the likeliest"


TASKS: dict[str, Task] = {
    "04.1": Task(
        question="Write next_merge(symbols, ranks): where is the pair that is merged next?", judge=judge_next_merge
    ),
    "04.2": Task(question="Which character is the space in vocab.json?", judge=judge_symbol),
    "04.3": number_task(
        "How many tokens of GPT-2's vocabulary are made by a merge?",
        50_000,
        {
            50_257: "256 of them are single bytes, and one is special",
            50_001: "one token is special",
            50_256: "256 of these are single bytes",
        },
    ),
    "07.1": Task(question="Write top_p(probabilities, p).", judge=judge_top_p),
    "07.2": number_task(
        "How many bytes does the KV cache of GPT-2 small (12 blocks, n_embd 768) take at 1,024 positions in float32?",
        2 * 12 * 768 * 1024 * 4,
        {12 * 768 * 1024 * 4: "keys and values are both kept", 2 * 12 * 768 * 1024: "an element has four bytes"},
    ),
}
