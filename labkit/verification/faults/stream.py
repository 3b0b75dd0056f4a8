"""Faults of the activation, the residual stream and the head."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from labkit.config import GPT2Config
from labkit.verification.faults.fault import Fault, Wrong, swap


def _gelu(kind: str) -> Callable[[GPT2Config, int], bool]:
    return lambda config, _block: config.activation_function not in SAME_ACTIVATION[kind]


SAME_ACTIVATION = {
    "erf-gelu": ("gelu", "gelu_python"),
    "tanh-gelu": ("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_accurate", "gelu_fast"),
    "sigmoid-gelu": ("quick_gelu",),
    "relu": ("relu",),
    "silu": ("silu", "swish"),
}
ACTIVATION: dict[str, Callable[[Tensor], Tensor]] = {
    "erf-gelu": functional.gelu,
    "tanh-gelu": lambda x: functional.gelu(x, approximate="tanh"),
    "sigmoid-gelu": lambda x: x / (1 + torch.exp(-1.702 * x)),
    "relu": lambda x: x.clamp(min=0),
    "silu": functional.silu,
}


def _skips_attention(_config: GPT2Config, _block: int) -> Mapping[str, Any]:
    kept: dict[str, Tensor] = {}

    def resid_mid(stream: Tensor, _normed: Tensor, branch: Tensor) -> Tensor:
        kept["stream"] = stream
        return stream + branch

    return {"resid_mid": resid_mid, "resid_post": lambda _stream, _normed, branch: kept["stream"] + branch}


def _mlp_input(step: str) -> Wrong:
    def wrong(config: GPT2Config, _block: int) -> Mapping[str, Any]:
        kept: dict[str, Tensor] = {}

        def norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
            y = functional.layer_norm(x, weight.shape, weight, bias, epsilon)
            kept["value"] = x if step == "ln_2" else y
            return y

        return {step: norm, "c_fc": lambda _x, weight, bias: kept["value"] @ weight + bias}

    return wrong


def _head_of_stream(_config: GPT2Config, _block: int) -> Mapping[str, Any]:
    kept: dict[str, Tensor] = {}

    def norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        kept["stream"] = x
        return functional.layer_norm(x, weight.shape, weight, bias, epsilon)

    return {"ln_f": norm, "lm_head": lambda _x, table: kept["stream"] @ table.T}


def _tie(parameters: dict[str, Tensor], _h: str, _config: GPT2Config) -> None:
    parameters["lm_head.weight"] = parameters["wte.weight"]


STREAM = (
    *(
        Fault(
            name=name,
            mistake=f"the activation is {name.replace('-', ' ')}",
            stage="h.{b}.mlp.post",
            operations=swap(activation=function),
            fits=_gelu(name),
        )
        for name, function in ACTIVATION.items()
    ),
    *(
        Fault(name=name, mistake=mistake, stage="h.{b}." + field, operations=swap(**{field: operation}))
        for name, field, mistake, operation in (
            (
                "residual-after-norm",
                "resid_mid",
                "attention's output is added to its norm",
                lambda _stream, normed, branch: normed + branch,
            ),
            (
                "residual-after-norm-mlp",
                "resid_post",
                "the MLP's output is added to its norm",
                lambda _stream, normed, branch: normed + branch,
            ),
            (
                "residual-missing",
                "resid_mid",
                "the residual stream is not added to attention's output",
                lambda _stream, _normed, branch: branch,
            ),
            (
                "residual-missing-mlp",
                "resid_post",
                "the residual stream is not added to the MLP's output",
                lambda _stream, _normed, branch: branch,
            ),
            (
                "branch-missing",
                "resid_mid",
                "attention's output is not added to the stream",
                lambda stream, _normed, _branch: stream,
            ),
            (
                "branch-missing-mlp",
                "resid_post",
                "the MLP's output is not added to the stream",
                lambda stream, _normed, _branch: stream,
            ),
            (
                "residual-twice",
                "resid_mid",
                "the residual stream is added twice",
                lambda stream, _normed, branch: stream + branch + stream,
            ),
        )
    ),
    Fault(
        name="residual-skips-attention",
        mistake="the MLP's output is added to the stream that entered the block",
        stage="h.{b}.resid_post",
        operations=_skips_attention,
    ),
    Fault(
        name="mlp-without-norm",
        mistake="c_fc is applied without ln_2",
        stage="h.{b}.mlp.pre",
        operations=_mlp_input("ln_2"),
    ),
    Fault(
        name="mlp-of-ln_1",
        mistake="c_fc is applied to ln_1's output",
        stage="h.{b}.mlp.pre",
        operations=_mlp_input("ln_1"),
    ),
    Fault(
        name="logits-before-ln_f",
        mistake="logits are taken before ln_f",
        stage="logits",
        place="model",
        operations=_head_of_stream,
    ),
    Fault(
        name="logits-scaled",
        mistake="logits are divided by sqrt(n_embd)",
        stage="logits",
        place="model",
        operations=swap(lm_head=lambda x, table: x @ table.T / math.sqrt(table.shape[1])),
    ),
    Fault(
        name="head-tied",
        mistake="wte is used as the head of an untied checkpoint",
        stage="logits",
        place="model",
        edit=_tie,
        fits=lambda config, _block: not config.tie_word_embeddings,
    ),
    Fault(
        name="head-off-by-one",
        mistake="logits are off by one row of the vocabulary",
        stage="logits",
        place="model",
        operations=swap(lm_head=lambda x, table: (x @ table.T).roll(1, dims=-1)),
    ),
)
