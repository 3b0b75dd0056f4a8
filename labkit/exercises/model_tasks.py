"""Exercises of notebooks 03 and 08: parameters, the transpose trap, attention."""

from typing import Any

import torch

from labkit.config import GPT2Config, parameter_shapes
from labkit.exercises.task import Task, number_task


def judge_count(answer: Any) -> str:
    """A function from a config to its number of parameters, the head tied."""
    if not callable(answer):
        return "a function of a config is asked for"
    for config in (
        GPT2Config(),
        GPT2Config(n_layer=2, n_embd=96, n_head=4, vocab_size=101, n_positions=33, n_inner=50),
    ):
        right = sum(torch.Size(shape).numel() for shape in parameter_shapes(config).values())
        got = answer(config)
        if got != right:
            inner = "" if config.n_inner is None else f", n_inner {config.n_inner}"
            more = "more" if got < right else "fewer"
            return f"a model of {config.n_layer} blocks, n_embd {config.n_embd}{inner} has {more} than {got:,}"
    return ""


def judge_conv1d(answer: Any) -> str:
    """A function conv1d(x, weight, bias) for a weight stored [in, out]."""
    if not callable(answer):
        return "a function is asked for"
    x, weight = torch.tensor([1.0, 1.0]), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    got = answer(x, weight, torch.zeros(3))
    if list(got.shape) != [3]:
        return f"two inputs and three outputs should give shape [3], not {list(got.shape)}"
    if got.tolist() != [5.0, 7.0, 9.0]:
        return f"x = [1, 1] with the weight [[1, 2, 3], [4, 5, 6]] does not give {got.tolist()}"
    square = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    if answer(torch.tensor([1.0, 0.0]), square, torch.zeros(2)).tolist() != [0.0, 1.0]:
        return "the shapes are right, but a square weight is used the wrong way round"
    if answer(x, weight, torch.ones(3)).tolist() != [6.0, 8.0, 10.0]:
        return "the bias is missing"
    batch = answer(torch.ones(2, 4, 2), weight, torch.zeros(3))
    return "" if list(batch.shape) == [2, 4, 3] else "axes before the last must be kept: [2, 4, 2] gives [2, 4, 3]"


def judge_causal(answer: Any) -> str:
    """A function from scores [pos_q, pos_k] to the attention pattern."""
    if not callable(answer):
        return "a function is asked for"
    scores = torch.tensor([[1.0, 5.0, 2.0], [0.0, 1.0, 9.0], [3.0, 2.0, 1.0]])
    got = answer(scores)
    if list(got.shape) != [3, 3]:
        return f"the pattern has the shape of the scores, not {list(got.shape)}"
    if bool((got.triu(1) != 0).any()):
        return "some attention goes to the future"
    if not torch.allclose(got.sum(-1), torch.ones(3), atol=1e-6):
        return "each row must add up to 1"
    right = scores.masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf).softmax(-1)
    return (
        ""
        if torch.allclose(got, right, atol=1e-6)
        else "rows add up to 1, but the shares are not the softmax of the scores"
    )


TASKS: dict[str, Task] = {
    "03.1": Task(question="Write count(config): how many parameters has the model?", judge=judge_count),
    "03.2": Task(question="Write conv1d(x, weight, bias) for a weight stored [in, out].", judge=judge_conv1d),
    "03.3": number_task(
        "How many tensors of the released GPT-2 file are no parameters?",
        12,
        {
            160: "that is how many tensors the file has",
            148: "that is how many parameters it has",
            13: "there is no stored head",
        },
    ),
    "10.1": number_task(
        "How many tensors of the embedded checkpoint keep their shape and change their values in layout linear?",
        4,
        {16: "most of these have another shape as well", 12: "these have another shape", 1: "there are several blocks"},
    ),
    "08.1": Task(question="Write pattern(scores) for one head, with the causal mask.", judge=judge_causal),
}
