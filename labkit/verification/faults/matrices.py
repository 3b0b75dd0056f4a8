"""Faults of the four Conv1D matrices and of how c_attn's columns are dealt out: edits of the checkpoint."""

from collections.abc import Callable

import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.model.operations import conv1d
from labkit.verification.faults.fault import Edit, Fault

SHOWS = {"attn.c_attn": "attn.q", "attn.c_proj": "attn.out", "mlp.c_fc": "mlp.pre", "mlp.c_proj": "mlp.out"}
FIELDS = {"attn.c_attn": "c_attn", "attn.c_proj": "attn_c_proj", "mlp.c_fc": "c_fc", "mlp.c_proj": "mlp_c_proj"}


def _set_weight(matrix: str, change: Callable[[Tensor], Tensor]) -> Edit:
    def edit(parameters: dict[str, Tensor], h: str, _config: GPT2Config) -> None:
        parameters[f"{h}.{matrix}.weight"] = change(parameters[f"{h}.{matrix}.weight"])

    return edit


def _drop_bias(matrix: str) -> Edit:
    def edit(parameters: dict[str, Tensor], h: str, _config: GPT2Config) -> None:
        parameters[f"{h}.{matrix}.bias"] = torch.zeros_like(parameters[f"{h}.{matrix}.bias"])

    return edit


def _borrow(matrix: str, step: int) -> Edit:
    def edit(parameters: dict[str, Tensor], h: str, _config: GPT2Config) -> None:
        other = f"h.{int(h.removeprefix('h.')) + step}"
        for kind in ("weight", "bias"):
            parameters[f"{h}.{matrix}.{kind}"] = parameters[f"{other}.{matrix}.{kind}"]

    return edit


def _square(matrix: str) -> Callable[[GPT2Config, int], bool]:
    return lambda config, _block: matrix == "attn.c_proj" or config.inner == config.n_embd


def _tf32(x: Tensor) -> Tensor:
    bits = x.float().contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32).to(x.dtype)


def _tf32_product(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return conv1d(_tf32(x), _tf32(weight), bias)


def _deal(change: Callable[[Tensor, GPT2Config], Tensor]) -> Edit:
    """Rearranges c_attn's columns; weight and bias alike, as rows of one table."""

    def edit(parameters: dict[str, Tensor], h: str, config: GPT2Config) -> None:
        for kind in ("weight", "bias"):
            name = f"{h}.attn.c_attn.{kind}"
            table = parameters[name].reshape(-1, 3 * config.n_embd)
            parameters[name] = change(table, config).reshape(parameters[name].shape).contiguous()

    return edit


def _thirds(order: tuple[int, int, int]) -> Callable[[Tensor, GPT2Config], Tensor]:
    def change(table: Tensor, config: GPT2Config) -> Tensor:
        n = config.n_embd
        return torch.cat([table[:, i * n : (i + 1) * n] for i in order], dim=1)

    return change


def _columns(places: Callable[[GPT2Config], list[int]]) -> Callable[[Tensor, GPT2Config], Tensor]:
    return lambda table, config: table[:, places(config)]


def _heads_first(config: GPT2Config) -> list[int]:
    d, heads = config.head_dim, config.n_head
    return [(head * 3 + part) * d + i for part in range(3) for head in range(heads) for i in range(d)]


def _interleaved(config: GPT2Config) -> list[int]:
    d, heads = config.head_dim, config.n_head
    return [part * config.n_embd + i * heads + head for part in range(3) for head in range(heads) for i in range(d)]


def _rotary(config: GPT2Config) -> list[int]:
    d, heads = config.head_dim, config.n_head
    within = [*range(0, d, 2), *range(1, d, 2)]
    turned = [part * config.n_embd + head * d + i for part in range(2) for head in range(heads) for i in within]
    return [*turned, *range(2 * config.n_embd, 3 * config.n_embd)]


ORDERS = {"qkv-order": (1, 0, 2), "qkv-order-qvk": (0, 2, 1), "qkv-order-vkq": (2, 1, 0)}
CYCLES = {"qkv-order-kvq": (2, 0, 1), "qkv-order-vqk": (1, 2, 0)}

TRANSPOSED = {"attn.c_proj": "transpose-c_proj", "mlp.c_fc": "transpose-c_fc", "mlp.c_proj": "transpose-mlp.c_proj"}


def _matrix_faults(matrix: str) -> list[Fault]:
    stage = "h.{b}." + SHOWS[matrix]
    faults = [
        Fault(name=f"no-bias-{matrix}", mistake=f"{matrix}.bias is not added", stage=stage, edit=_drop_bias(matrix)),
        Fault(
            name=f"previous-block-{matrix}",
            mistake=f"{matrix} of the block before is used",
            stage=stage,
            edit=_borrow(matrix, -1),
            fits=lambda _config, block: block > 0,
        ),
        Fault(
            name=f"next-block-{matrix}",
            mistake=f"{matrix} of the block after is used",
            stage=stage,
            edit=_borrow(matrix, +1),
            fits=lambda config, block: block + 1 < config.n_layer,
        ),
        Fault(
            name=f"bfloat16-weights-{matrix}",
            mistake=f"{matrix}.weight is rounded to bfloat16",
            stage=stage,
            edit=_set_weight(matrix, lambda w: w.bfloat16().to(w.dtype)),
        ),
        Fault(
            name=f"float16-weights-{matrix}",
            mistake=f"{matrix}.weight is rounded to float16",
            stage=stage,
            edit=_set_weight(matrix, lambda w: w.half().to(w.dtype)),
        ),
        Fault(
            name=f"tf32-{matrix}",
            mistake=f"both sides of the product with {matrix}.weight are rounded to TF32",
            stage=stage,
            operations=lambda _config, _block: {FIELDS[matrix]: _tf32_product},
        ),
    ]
    if matrix in TRANSPOSED:
        faults.append(
            Fault(
                name=TRANSPOSED[matrix],
                mistake=f"the square {matrix}.weight is used as [out, in]",
                stage=stage,
                edit=_set_weight(matrix, lambda w: w.T.contiguous()),
                fits=_square(matrix),
            )
        )
    return faults


FAULTS = (
    *(
        Fault(
            name=name,
            mistake="c_attn's columns are taken in another order than Q, K, V",
            stage="h.{b}.attn.k" if name == "qkv-order-qvk" else "h.{b}.attn.q",
            edit=_deal(_thirds(order)),
        )
        for name, order in {**ORDERS, **CYCLES}.items()
    ),
    Fault(
        name="heads-before-qkv",
        mistake="c_attn's columns are split into heads before Q, K and V",
        stage="h.{b}.attn.q",
        edit=_deal(_columns(_heads_first)),
        fits=lambda config, _block: config.n_head > 1,
    ),
    Fault(
        name="heads-interleaved",
        mistake="heads are taken element by element",
        stage="h.{b}.attn.q",
        edit=_deal(_columns(_interleaved)),
        fits=lambda config, _block: config.n_head > 1,
    ),
    Fault(
        name="rotary-interleave",
        mistake="each head of Q and K is reordered into even and odd elements",
        stage="h.{b}.attn.q",
        edit=_deal(_columns(_rotary)),
        fits=lambda config, _block: config.head_dim > 2 and config.head_dim % 2 == 0,
    ),
    Fault(
        name="k-for-v",
        mistake="V is taken from K's columns",
        stage="h.{b}.attn.v",
        edit=_deal(_thirds((0, 1, 1))),
    ),
    *(fault for matrix in SHOWS for fault in _matrix_faults(matrix)),
)
