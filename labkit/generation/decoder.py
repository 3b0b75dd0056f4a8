"""One decoder, two roads: the lean pass with a cache, and the readable model over the whole text.

In: ids. Out: logits of the next token. ``FastDecoder`` computes what ``labkit.model.forward`` computes (the tests
hold it to that at every step) without taps, dictionaries or shape checks, on memory taken once. ``WholeText`` calls
the model itself on everything so far, which is slow and is right for any planted fault.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from labkit.generation.cache import KVCache
from labkit.model import GPT2
from labkit.model.operations import activation


class Decoder(Protocol):
    """What the loop needs of either road."""

    @property
    def length(self) -> int:
        """Positions computed so far, padding included."""

    def prefill(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Forget everything and read the prompts; logits [batch, vocab] after each one's last token."""

    def step(self, ids: Tensor) -> Tensor:
        """Read one more token of each row, ids [batch]; logits [batch, vocab] of the next."""


def make_decoder(model: GPT2, *, batch: int = 1, capacity: int | None = None, cached: bool = True) -> Decoder:
    """The fast road where the model computes what GPT-2 does; the model itself where an operation is exchanged."""
    if cached and model.faithful:
        return FastDecoder(model, batch=batch, capacity=capacity)
    return WholeText(model)


def pad_left(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Prompts as one table, short ones moved to the right, and how many places of each row are padding.

    >>> pad_left([[5], [6, 7]], torch.device("cpu"))
    (tensor([[0, 5],
            [6, 7]]), tensor([1, 0]))

    The second is None where no row is padded.
    """
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in rows], device=device)  # [batch, pos]
    if all(len(row) == longest for row in rows):
        return ids, None
    return ids, torch.tensor([longest - len(row) for row in rows], device=device)  # [batch]


class WholeText:
    """The readable model over the whole text, for every token again."""

    def __init__(self, model: GPT2) -> None:
        self._model = model
        self._ids = torch.empty(0)
        self._padding: Tensor | None = None

    @property
    def length(self) -> int:
        return self._ids.shape[-1]

    def prefill(self, rows: Sequence[Sequence[int]]) -> Tensor:
        self._ids, self._padding = pad_left(rows, self._model.device)
        return self._logits()

    def step(self, ids: Tensor) -> Tensor:
        self._ids = torch.cat([self._ids, ids[:, None]], dim=1)  # [batch, pos]
        return self._logits()

    def _logits(self) -> Tensor:
        mask = None
        if self._padding is not None:
            places = torch.arange(self.length, device=self._ids.device)  # [pos]
            mask = (places >= self._padding[:, None]).long()  # [batch, pos]
        return self._model.run(self._ids, attention_mask=mask, logits="last").logits[:, -1]  # [batch, vocab]


@dataclass(frozen=True)
class _Block:
    """A block's parameters in the order of use, ready to be unpacked."""

    ln_1: tuple[Tensor, Tensor]
    c_attn: tuple[Tensor, Tensor]  # bias, weight [in, out]
    attn_c_proj: tuple[Tensor, Tensor]
    ln_2: tuple[Tensor, Tensor]
    c_fc: tuple[Tensor, Tensor]
    mlp_c_proj: tuple[Tensor, Tensor]
    scale: float


class _Rows:
    """Room for the packed queries, keys and values of ``count`` new positions, and its views by head."""

    def __init__(self, batch: int, count: int, n_head: int, like: Tensor) -> None:
        n_embd = like.shape[1]
        self.packed = like.new_empty(batch * count, 3 * n_embd)  # [batch * pos, 3 * n_embd]
        thirds = self.packed.view(batch, count, 3, n_head, n_embd // n_head).permute(2, 0, 3, 1, 4)
        self.q = thirds[0]  # [batch, head, pos, head_dim]
        self.kv = thirds[1:]  # [2, batch, head, pos, head_dim]


Store = Callable[[int, Tensor], object]
"""Puts a block's new keys and values, [2, batch, head, pos, head_dim], into the cache."""


class FastDecoder:
    """A cache and the pass over new positions only.

    >>> from labkit.load import load_gpt2
    >>> decoder = FastDecoder(load_gpt2())
    >>> decoder.prefill([[5, 6, 7]]).shape == decoder.step(torch.tensor([8])).shape
    True
    >>> decoder.length
    4
    """

    def __init__(self, model: GPT2, *, batch: int = 1, capacity: int | None = None) -> None:
        config, p = model.config, model.parameters_by_name
        self._config = config
        self._batch = batch
        self._device = model.device
        self.cache = KVCache(
            config,
            capacity=min(capacity or config.n_positions, config.n_positions),
            batch=batch,
            dtype=model.dtype,
            device=model.device,
        )
        self._wte, self._wpe = p["wte.weight"], p["wpe.weight"]  # [vocab, n_embd], [n_positions, n_embd]
        self._head = p["wte.weight"] if config.tie_word_embeddings else p["lm_head.weight"]  # [vocab, n_embd]
        self._ln_f = (p["ln_f.weight"], p["ln_f.bias"])
        self._activation = activation(config.activation_function)
        self._upcast = config.reorder_and_upcast_attn and model.dtype in (torch.bfloat16, torch.float16)
        self._blocks = [
            _Block(
                ln_1=(p[f"h.{i}.ln_1.weight"], p[f"h.{i}.ln_1.bias"]),
                c_attn=(p[f"h.{i}.attn.c_attn.bias"], p[f"h.{i}.attn.c_attn.weight"]),
                attn_c_proj=(p[f"h.{i}.attn.c_proj.bias"], p[f"h.{i}.attn.c_proj.weight"]),
                ln_2=(p[f"h.{i}.ln_2.weight"], p[f"h.{i}.ln_2.bias"]),
                c_fc=(p[f"h.{i}.mlp.c_fc.bias"], p[f"h.{i}.mlp.c_fc.weight"]),
                mlp_c_proj=(p[f"h.{i}.mlp.c_proj.bias"], p[f"h.{i}.mlp.c_proj.weight"]),
                scale=config.scaling(block=i),
            )
            for i in range(config.n_layer)
        ]
        self._one = _Rows(batch, 1, config.n_head, self._wte)
        self._padding: Tensor | None = None
        self._visible: Tensor | None = None

    @property
    def length(self) -> int:
        return self.cache.length

    def rewind(self, length: int) -> None:
        """Forget the positions from ``length`` on."""
        self.cache.rewind(length)

    @torch.inference_mode()
    def prefill(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Forget everything and read the prompts; logits [batch, vocab] after each one's last token."""
        self.cache.rewind(0)
        ids, self._padding = pad_left(rows, self._device)  # [batch, pos], [batch]
        self._visible = None
        if self._padding is not None:
            places = torch.arange(self.cache.capacity, device=self._device)  # [pos_k]
            self._visible = places >= self._padding[:, None]  # [batch, pos_k]
        stream = self._read(ids)  # [batch, pos, n_embd]
        return self._logits(stream[:, -1])  # [batch, vocab]

    @torch.inference_mode()
    def extend(self, ids: Tensor) -> Tensor:
        """Read several more tokens of each row, ids [batch, pos]; logits [batch, pos, vocab] after each."""
        return self._logits(self._read(ids))  # [batch, pos, vocab]

    @torch.inference_mode()
    def step(self, ids: Tensor) -> Tensor:
        """Read one more token of each row, ids [batch]; logits [batch, vocab] of the next."""
        start = self.cache.length
        self.cache.require(start + 1)
        stream = functional.embedding(ids, self._wte)  # [batch, n_embd]
        if self._padding is None:
            stream += self._wpe[start]  # [batch, n_embd]
            mask = None
        else:
            stream += self._wpe[start - self._padding]  # [batch, n_embd]
            assert self._visible is not None
            mask = self._visible[:, None, None, : start + 1]  # [batch, 1, 1, pos_k]
        places = self._by_block[..., start : start + 1, :].unbind()  # each [2, batch, head, 1, head_dim]
        table = self.cache.table[..., : start + 1, :].unbind()  # k and v of each block: [batch, head, pos_k, head_dim]
        stream = self._layers(stream, self._one, lambda i, kv: places[i].copy_(kv), table, mask)  # [batch, n_embd]
        self.cache.length = start + 1
        return self._logits(stream)  # [batch, vocab]

    @property
    def _by_block(self) -> Tensor:
        table = self.cache.table  # [2 * block, batch, head, pos, head_dim]
        return table.view(self._config.n_layer, 2, *table.shape[1:])  # [block, 2, batch, head, pos, head_dim]

    def _read(self, ids: Tensor) -> Tensor:
        batch, count = ids.shape
        start, end = self.cache.length, self.cache.length + count
        self.cache.require(end)
        positions = torch.arange(start, end, device=self._device)  # [pos]
        if self._padding is not None:
            positions = (positions - self._padding[:, None]).clamp(min=0)  # [batch, pos]
        stream = functional.embedding(ids, self._wte) + self._wpe[positions]  # [batch, pos, n_embd]
        mask = self._mask(start, end)
        places = self._by_block[..., start:end, :].unbind()  # each [2, batch, head, pos, head_dim]
        table = self.cache.table[..., :end, :].unbind()  # k and v of each block: [batch, head, pos_k, head_dim]
        rows = _Rows(batch, count, self._config.n_head, self._wte)
        flat = stream.view(batch * count, -1)  # [batch * pos, n_embd]
        flat = self._layers(flat, rows, lambda i, kv: places[i].copy_(kv), table, mask)  # [batch * pos, n_embd]
        self.cache.length = end
        return flat.view(batch, count, -1)  # [batch, pos, n_embd]

    def _mask(self, start: int, end: int) -> Tensor | None:
        if start == 0 and self._visible is None:
            return None
        causal = torch.ones(end - start, end, dtype=torch.bool, device=self._device).tril(start)  # [pos_q, pos_k]
        if self._visible is None:
            return causal
        itself = causal & ~causal.tril(start - 1)  # [pos_q, pos_k]: a row of padding sees itself, so that it is finite
        return (causal & self._visible[:, None, None, :end]) | itself  # [batch, 1, pos_q, pos_k]

    def _layers(
        self, stream: Tensor, rows: _Rows, store: Store, table: Sequence[Tensor], mask: Tensor | None
    ) -> Tensor:
        """Every block over new positions: stream [batch * pos, n_embd] in and out."""
        shape, epsilon, layer_norm = (self._config.n_embd,), self._config.layer_norm_epsilon, functional.layer_norm
        addmm, attend, activate = torch.addmm, self._attend, self._activation
        for i, block in enumerate(self._blocks):
            normed = layer_norm(stream, shape, *block.ln_1, epsilon)  # [batch * pos, n_embd]
            bias, weight = block.c_attn
            addmm(bias, normed, weight, out=rows.packed)  # [batch * pos, 3 * n_embd]
            store(i, rows.kv)
            z = attend(rows.q, table[2 * i], table[2 * i + 1], mask, block.scale)  # [batch, head, pos, head_dim]
            merged = z.transpose(1, 2).reshape(stream.shape)  # [batch * pos, n_embd]
            bias, weight = block.attn_c_proj
            stream += addmm(bias, merged, weight)  # [batch * pos, n_embd]
            normed = layer_norm(stream, shape, *block.ln_2, epsilon)  # [batch * pos, n_embd]
            bias, weight = block.c_fc
            post = activate(addmm(bias, normed, weight))  # [batch * pos, n_inner]
            bias, weight = block.mlp_c_proj
            stream += addmm(bias, post, weight)  # [batch * pos, n_embd]
        return stream

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
        dtype = v.dtype
        if self._upcast:
            q, k, v = q.float(), k.float(), v.float()
        causal = mask is None and q.shape[2] > 1
        z = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)
        return z.to(dtype)  # [batch, head, pos, head_dim]

    def _logits(self, stream: Tensor) -> Tensor:
        normed = functional.layer_norm(stream, self._ln_f[0].shape, *self._ln_f, self._config.layer_norm_epsilon)
        return functional.linear(normed, self._head)  # [..., vocab]
