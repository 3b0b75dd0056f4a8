"""Exercises of notebooks 04 and 07: merges, bytes, sampling, the cache."""

from typing import Any

import torch

from labkit.exercises.task import Task, number_task


def judge_next_merge(answer: Any) -> str:
    """A function next_merge(symbols, ranks): the place of the pair to merge next, or None."""
    if not callable(answer):
        return "a function is asked for"
    ranks = {("h", "e"): 2, ("e", "l"): 0, ("l", "l"): 1, ("a", "a"): 5}
    cases: list[tuple[list[str], int | None, str]] = [
        (["h", "e", "l", "l", "o"], 1, "the lowest rank wins, not the first pair"),
        (["x", "y"], None, "where no pair has a rank the answer is None"),
        (["a", "a", "a"], 0, "of equal ranks the leftmost place is taken"),
        (["h"], None, "one symbol has no pair"),
        ([], None, "no symbols have no pair"),
    ]
    for symbols, right, reason in cases:
        got = answer(list(symbols), dict(ranks))
        if got != right:
            return f"{symbols} gave {got!r}: {reason}"
    return ""


def judge_symbol(answer: Any) -> str:
    """The symbol in which vocab.json writes a space."""
    if not isinstance(answer, str) or len(answer) != 1:
        return "one character is asked for"
    if answer == chr(0x20 + 256):
        return ""
    if answer == "G":
        return "there is a dot above it"
    return f"{answer!r} stands for another byte"


def judge_top_p(answer: Any) -> str:
    """A function top_p(probabilities, p): the fewest likeliest that reach p, made to add up to 1."""
    if not callable(answer):
        return "a function is asked for"
    probabilities = torch.tensor([0.1, 0.4, 0.2, 0.3])
    for p, kept in ((0.35, [1]), (0.6, [1, 3]), (0.75, [1, 2, 3]), (1.0, [0, 1, 2, 3])):
        got = torch.as_tensor(answer(probabilities.clone(), p))
        have = torch.nonzero(got > 0).flatten().tolist()
        if have != kept:
            many = "many" if len(have) > len(kept) else "few"
            return f"p = {p} keeps {have} of the probabilities {probabilities.tolist()}: too {many}"
        if abs(float(got.sum()) - 1) > 1e-6:
            return "what is left must add up to 1"
    return ""


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
