"""``GPT2``: a config and its parameters, with the forward pass behind one call.

In: a ``GPT2Config`` and plain tensors under the released files' names. Out: logits, and any stage asked for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from labkit.config import GPT2Config, parameter_shapes
from labkit.errors import ArgumentError, ArgumentTypeError, CheckpointError, UnknownNameError
from labkit.model.forward import Attention, Cache, Network, forward, unembed
from labkit.model.inputs import Ids, check_inputs
from labkit.model.operations import Operations
from labkit.model.taps import Probe, Replacement, match_taps, untapped


@dataclass(frozen=True)
class Run:
    """One forward pass: its logits, and the taps that were asked for in order of computation."""

    logits: Tensor  # [batch, pos, vocab]
    taps: dict[str, Tensor]


class GPT2:
    """A GPT-2 whose every intermediate can be seen and replaced.

    >>> from labkit.load import load_gpt2
    >>> model = load_gpt2()
    >>> run = model.run([[1, 2, 3]], taps="h.0.attn.pattern")
    >>> list(run.taps["h.0.attn.pattern"].shape) == [1, model.config.n_head, 3, 3]
    True
    """

    def __init__(
        self,
        config: GPT2Config,
        parameters: Mapping[str, Tensor],
        *,
        attention: Attention = "eager",
        operations: Operations | None = None,
        block_operations: Mapping[int, Operations] | None = None,
        load_report: Any = None,
    ) -> None:
        _check_parameters(config, parameters)
        if attention not in ("eager", "sdpa"):
            raise UnknownNameError.near("attention", attention, ("eager", "sdpa"))
        self.config = config
        self.parameters_by_name: Mapping[str, Tensor] = MappingProxyType(dict(parameters))
        self.load_report = load_report
        self._network = Network(
            config=config,
            parameters=self.parameters_by_name,
            operations=operations or Operations(),
            block_operations=dict(block_operations or {}),
            attention=attention,
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the parameters, in which everything is computed."""
        return self.parameters_by_name["wte.weight"].dtype

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.parameters_by_name["wte.weight"].device

    @property
    def operations(self) -> Operations:
        """What every block and the rest of the model computes by."""
        return self._network.operations

    @property
    def block_operations(self) -> Mapping[int, Operations]:
        """What single blocks compute by instead."""
        return self._network.block_operations

    @property
    def faithful(self) -> bool:
        """Whether every step is GPT-2's own operation: nothing is exchanged in the whole model or in one block."""
        return all(each == Operations() for each in (self.operations, *self.block_operations.values()))

    def __call__(self, ids: Ids) -> Tensor:
        """Logits [batch, pos, vocab] of ids [batch, pos]; a plain list of ids is one row."""
        return self.run(ids).logits

    def __repr__(self) -> str:
        c = self.config
        numel = sum(each.numel() for each in self.parameters_by_name.values())
        sizes = f"{c.n_layer} blocks, n_embd {c.n_embd}, {c.n_head} heads, {numel:,} parameters"
        return f"GPT2({sizes}, {self.dtype} on {self.device})"

    def run(
        self,
        ids: Ids,
        *,
        taps: str | Iterable[str] | None = None,
        replace: Mapping[str, Replacement] | None = None,
        attention_mask: Tensor | Sequence[Sequence[int]] | None = None,
        position_ids: Tensor | Sequence[Sequence[int]] | None = None,
        cache: Cache | None = None,
        logits: Literal["all", "last"] = "all",
        nonfinite: Literal["allow", "refuse"] = "allow",
        gradients: Literal["off", "on"] = "off",
    ) -> Run:
        """One forward pass, recording ``taps`` and replacing those in ``replace``.

        ``taps``: "all", a name, a glob, or several. ``replace``: a tap's name or glob -> a tensor, or a function of
        the value. ``attention_mask`` [batch, past + pos]: 0 where a position is padding; positions are counted over the
        ones unless ``position_ids`` [pos] or [batch, pos] says otherwise. ``cache``: keys and values of the positions
        before ``ids``. ``logits="last"`` computes the last position's alone. ``nonfinite="refuse"`` raises at the first
        tap that holds a NaN or an infinity. With ``gradients="on"`` the taps are part of a graph that begins at wte and
        wpe, whether or not a parameter asks for its gradient: ``torch.autograd.grad(loss, run.taps["h.3.attn.z"])``.

        Raises ``UnknownNameError`` (a KeyError) for a tap that is not there, ``OutOfRangeError`` (an IndexError) for an
        id or a position beyond its table, ``ArgumentError`` for shapes that do not fit, ``NonFiniteError``.
        """
        inputs = check_inputs(
            self.config,
            self.device,
            ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            last_only=logits == "last",
        )
        record = match_taps(taps, self.config) if taps is not None else ()
        if not isinstance(replace, Mapping | None):
            raise ArgumentTypeError(
                "not a mapping", where="replace", expected="tap -> tensor or function", got=repr(replace)
            )
        swap = {name: each for glob, each in (replace or {}).items() for name in match_taps(glob, self.config)}
        self._check_visible((*record, *swap))
        probe = Probe(record=record, replace=swap, refuse_nonfinite=nonfinite == "refuse", gradients=gradients == "on")
        tap = probe if record or swap or nonfinite == "refuse" or gradients == "on" else untapped
        with torch.set_grad_enabled(gradients == "on"):
            result = forward(self._network, inputs, tap)  # [batch, pos, vocab]
        return Run(logits=result, taps=probe.recorded)

    def unembed(self, stream: Tensor) -> Tensor:
        """The logits [batch, pos, vocab] of a residual stream [batch, pos, n_embd]: ln_f, then the head."""
        with torch.no_grad():
            return unembed(self._network, untapped, stream)  # [batch, pos, vocab]

    def _check_visible(self, names: Iterable[str]) -> None:
        if self._network.attention == "eager":
            return
        for name in names:
            if name.endswith((".attn.scores", ".attn.pattern")):
                raise ArgumentError(
                    "the fused attention has no such stage", where=name, fix='load the model with attention="eager"'
                )


def _check_parameters(config: GPT2Config, parameters: Mapping[str, Tensor]) -> None:
    shapes = parameter_shapes(config)
    for name in shapes:
        if name not in parameters:
            raise CheckpointError("the parameter is missing", where=name)
    for name, tensor in parameters.items():
        if name not in shapes:
            raise CheckpointError("the config has no such parameter", where=name)
        if tuple(tensor.shape) != shapes[name]:
            raise CheckpointError("the shape is wrong", where=name, expected=list(shapes[name]), got=list(tensor.shape))
    kinds = sorted({f"{each.dtype} on {each.device}" for each in parameters.values()})
    if len(kinds) > 1:
        raise CheckpointError("parameters differ in dtype or device", got=", ".join(kinds), fix="convert them to one")
    if not parameters["wte.weight"].is_floating_point():
        raise CheckpointError("parameters are not floating-point", got=kinds[0], fix="pass dtype=torch.float32")
