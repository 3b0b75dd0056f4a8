"""Interventions: what to hand to ``replace`` to switch a head off or to carry a value over, and the logit lens.

In: a stage's value. Out: a new tensor of the same shape; nothing is changed in place. Sources: Michel et al. 2019 (head
ablation), Vig et al. 2020 and Meng et al. 2022 (patching), nostalgebraist 2020 (logit lens).
"""

from collections.abc import Callable, Iterable
from typing import Literal

from torch import Tensor

from labkit.errors import ArgumentError, OutOfRangeError
from labkit.model.gpt2 import GPT2
from labkit.model.inputs import Ids


def ablate_heads(heads: Iterable[int], *, by: Literal["zero", "mean"] = "zero") -> Callable[[Tensor], Tensor]:
    """A replacement for a tap with a head axis (``h.{i}.attn.z``): the heads' values are zero, or their mean over
    batch and positions, which keeps what they always add.

    >>> import torch
    >>> z = torch.tensor([[[[1.0], [3.0]], [[5.0], [7.0]]]])  # [batch, head, pos, head_dim]
    >>> ablate_heads([1])(z).flatten().tolist(), ablate_heads([1], by="mean")(z).flatten().tolist()
    ([1.0, 3.0, 0.0, 0.0], [1.0, 3.0, 6.0, 6.0])
    """
    chosen = sorted(set(heads))
    if by not in ("zero", "mean"):
        raise ArgumentError("no such ablation", where="by", expected="zero or mean", got=repr(by))

    def ablate(value: Tensor) -> Tensor:
        _check_axis("head", chosen, value.shape[1])
        new = value.clone()  # [batch, head, pos, head_dim]
        mean = value.mean(dim=(0, 2), keepdim=True).expand_as(value)  # [batch, head, pos, head_dim]
        new[:, chosen] = mean[:, chosen] if by == "mean" else 0.0
        return new

    return ablate


def patch_positions(source: Tensor, positions: Iterable[int]) -> Callable[[Tensor], Tensor]:
    """A replacement that takes ``positions`` from ``source``, the same tap's value in another run.

    The position axis is the last but one: ``resid_post`` and the other streams, ``q``, ``k``, ``v``, ``z``.

    >>> import torch
    >>> patch_positions(torch.ones(1, 2, 1), [1])(torch.zeros(1, 2, 1)).flatten().tolist()
    [0.0, 1.0]
    """
    chosen = sorted(set(positions))

    def patch(value: Tensor) -> Tensor:
        _check_axis("position", chosen, min(value.shape[-2], source.shape[-2]))
        new = value.clone()  # [..., pos, width]
        new[..., chosen, :] = source[..., chosen, :]
        return new

    return patch


def logit_lens(model: GPT2, ids: Ids) -> dict[str, Tensor]:
    """The logits [batch, pos, vocab] that each stage of the residual stream would give if the model ended there.

    The last block's entry is the model's own output.

    >>> import torch
    >>> from labkit.load import load_gpt2
    >>> model = load_gpt2()
    >>> lens = logit_lens(model, [1, 2, 3])
    >>> list(lens)[:2], torch.equal(lens[f"h.{model.config.n_layer - 1}.resid_post"], model([1, 2, 3]))
    (['embed', 'h.0.resid_post'], True)
    """
    streams = model.run(ids, taps=["embed", "h.*.resid_post"]).taps
    return {name: model.unembed(stream) for name, stream in streams.items()}


def _check_axis(axis: str, chosen: list[int], size: int) -> None:
    for number in chosen:
        if not 0 <= number < size:
            raise OutOfRangeError(f"there is no such {axis}", expected=f"0 to {size - 1}", got=number)
