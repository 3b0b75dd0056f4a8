"""A mistake, and how to plant it in a real forward of labkit's model, whole or in a chosen size."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.errors import ArgumentError, OutOfRangeError
from labkit.model import GPT2
from labkit.model.operations import Operations, activation

Edit = Callable[[dict[str, Tensor], str, GPT2Config], None]
"""Changes the parameters of one block in place; the second argument is the block's prefix, ``h.3``."""

Wrong = Callable[[GPT2Config, int], Mapping[str, Any]]
"""Config and block -> fields of ``Operations`` that compute something else. Called anew for each planting."""

Place = Literal["block", "model"]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One mistake: its name, what was done wrong, and the first stage that shows it (``{b}`` stands for the block)."""

    name: str
    mistake: str
    stage: str
    operations: Wrong | None = None
    edit: Edit | None = None
    place: Place = "block"
    """Whether it is planted in one block or once in the model (embeddings, ln_f, head)."""
    finding: str | None = None
    """The name under which a diagnosis should find it, where that is not its own."""
    fits: Callable[[GPT2Config, int], bool] = field(default=lambda _config, _block: True)
    """Whether the checkpoint and block have room for this mistake (a square matrix, a block before)."""
    graded: bool = True
    """Whether half of the mistake is half as large; not for what is drawn at random or changes shapes."""

    def applies(self, config: GPT2Config, block: int) -> bool:
        """Whether the fault can be planted in this block of a model of this config."""
        return self.fits(config, block) and (self.place == "block" or block == 0)

    def plant(self, model: GPT2, block: int = 0, *, size: float = 1.0) -> GPT2:
        """A model that shares ``model``'s parameters but makes this mistake in ``block``, at ``size`` of its full extent.

        What was planted in ``model`` before stays. Raises ``OutOfRangeError`` for a block the model has not,
        ``ArgumentError`` where the mistake has no room, or exchanges an operation that was exchanged before.
        """
        layers = model.config.n_layer
        if not 0 <= block < layers:
            raise OutOfRangeError(
                f"fault {self.name} cannot be planted in block {block}", expected=f"0 to {layers - 1}", got=block
            )
        if not self.applies(model.config, block):
            raise ArgumentError(
                f"fault {self.name} cannot be planted in block {block} of this checkpoint", fix=self.mistake
            )
        parameters = dict(model.parameters_by_name)
        if self.edit is not None:
            self.edit(parameters, f"h.{block}", model.config)
            parameters = _blended(model.parameters_by_name, parameters, size)
        operations, by_block = model.operations, dict(model.block_operations)
        if self.place == "model":
            operations = self._wrong_operations(operations, model.config, block, size)
        elif self.operations is not None:
            by_block[block] = self._wrong_operations(by_block.get(block, operations), model.config, block, size)
        return GPT2(
            model.config,
            parameters,
            operations=operations,
            block_operations=by_block,
            load_report=model.load_report,
        )

    def _wrong_operations(self, before: Operations, config: GPT2Config, block: int, size: float) -> Operations:
        if self.operations is None:
            return before
        fields, plain = dict(self.operations(config, block)), Operations()
        for name in fields:
            if getattr(before, name) != getattr(plain, name):
                raise ArgumentError(
                    f"fault {self.name} cannot be planted beside another that exchanges the same operation",
                    where=f"block {block}, {name}" if self.place == "block" else name,
                    fix="plant one of the two",
                )
        if size != 1.0:
            right = dataclasses.replace(plain, activation=activation(config.activation_function))
            fields = {name: _between(getattr(right, name), wrong, size) for name, wrong in fields.items()}
        return dataclasses.replace(before, **fields)

    def expected_stage(self, block: int) -> str:
        """The first tap at which the fault shows."""
        return self.stage.format(b=block)

    @property
    def expected_finding(self) -> str:
        """The name that a diagnosis should give it."""
        return self.finding or self.name


def swap(**fields: Callable[..., Any]) -> Wrong:
    """Operations that are exchanged in the same way in every config and block."""
    return lambda _config, _block: fields


def _between(right: Callable[..., Any], wrong: Callable[..., Any], size: float) -> Callable[..., Any]:
    """An operation that goes ``size`` of the way from the right output to the wrong one."""

    def operation(*arguments: Any) -> Any:
        a, b = right(*arguments), wrong(*arguments)
        if isinstance(a, tuple):
            return tuple(x + size * (y - x) for x, y in zip(a, b, strict=True))
        return a + size * (b - a)

    return operation


def _blended(right: Mapping[str, Tensor], wrong: dict[str, Tensor], size: float) -> dict[str, Tensor]:
    return {
        name: value if value is right[name] or size == 1.0 else torch.lerp(right[name], value, size)
        for name, value in wrong.items()
    }
