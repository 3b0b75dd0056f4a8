"""Exercises of notebooks 03 and 08: parameters, the transpose trap, attention."""

from typing import Any

import torch
from torch import Tensor

from labkit.config import GPT2Config, parameter_shapes
from labkit.exercises.answers import WrongAnswerError, as_function, as_number, as_tensor, shown
from labkit.exercises.task import Task, number_task

ROUNDING = 1e-6


def judge_count(answer: Any) -> None:
    """A function from a config to its number of parameters, the head tied."""
    count = as_function(answer)
    for config in (
        GPT2Config(),
        GPT2Config(n_layer=2, n_embd=96, n_head=4, vocab_size=101, n_positions=33, n_inner=50),
    ):
        right = sum(torch.Size(shape).numel() for shape in parameter_shapes(config).values())
        got = as_number(count(config), "count(config)")
        if got != right:
            inner = "" if config.n_inner is None else f", n_inner {config.n_inner}"
            more = "more" if got < right else "fewer"
            model = f"a model of {config.n_layer} blocks, n_embd {config.n_embd}{inner}"
            raise WrongAnswerError(f"{model} has {more}: count(config) gave {shown(got)}")


def judge_conv1d(answer: Any) -> None:
    """A function conv1d(x, weight, bias) for a weight stored [in, out]."""
    conv1d = as_function(answer)

    def result(x: Tensor, weight: Tensor, bias: Tensor, *, shape: list[int]) -> Tensor:
        what = f"conv1d of x {list(x.shape)} and weight {list(weight.shape)}"
        return as_tensor(conv1d(x, weight, bias), what, shape=shape)

    x, weight = torch.tensor([1.0, 1.0]), torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    plain = result(x, weight, torch.zeros(3), shape=[3])
    if plain.tolist() != [5.0, 7.0, 9.0]:
        raise WrongAnswerError(
            f"x = [1, 1] with the weight [[1, 2, 3], [4, 5, 6]] does not give {shown(plain.tolist())}"
        )
    square = result(torch.tensor([1.0, 0.0]), torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.zeros(2), shape=[2])
    if square.tolist() == [0.0, 0.0]:
        raise WrongAnswerError("the shapes are right, but a square weight is used the wrong way round")
    if square.tolist() != [0.0, 1.0]:
        raise WrongAnswerError(f"x = [1, 0] with the weight [[0, 1], [0, 0]] does not give {shown(square.tolist())}")
    raised = result(x, weight, torch.ones(3), shape=[3]) - plain
    if raised.tolist() == [0.0, 0.0, 0.0]:
        raise WrongAnswerError("the bias is missing")
    if raised.tolist() != [1.0, 1.0, 1.0]:
        raise WrongAnswerError(f"a bias of ones should raise every output by 1, not by {shown(raised.tolist())}")
    batch = result(torch.ones(2, 4, 2), weight, torch.zeros(3), shape=[2, 4, 3])
    if not torch.equal(batch, plain.expand(2, 4, 3)):
        raise WrongAnswerError("with axes before the last, each row of x should give what it gives alone")


def judge_causal(answer: Any) -> None:
    """A function from scores [pos_q, pos_k] to the attention pattern."""
    pattern = as_function(answer)
    scores = torch.tensor([[1.0, 5.0, 2.0], [0.0, 1.0, 9.0], [3.0, 2.0, 1.0]])
    got = as_tensor(pattern(scores), "pattern(scores) of [3, 3]", shape=[3, 3])
    if bool((got.triu(1) != 0).any()):
        raise WrongAnswerError("some attention goes to the future")
    if not torch.allclose(got.sum(-1), torch.ones(3, dtype=got.dtype), atol=ROUNDING):
        raise WrongAnswerError("each row must add up to 1")
    right = scores.double().masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf).softmax(-1)
    if not torch.allclose(got, right, atol=ROUNDING):
        raise WrongAnswerError("rows add up to 1, but the shares are not the softmax of the scores")


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
