"""One decoder, two roads: the lean pass with a cache, and the readable model over the whole text.

In: ids. Out: logits of the next token. ``FastDecoder`` computes what ``labkit.model.forward`` computes (the tests
hold it to that at every step) without taps, dictionaries or shape checks, on memory taken once. ``WholeText`` calls
the model itself on everything so far, which is slow and is right for any planted fault.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from labkit.errors import ArgumentError
from labkit.generation.cache import KVCache
from labkit.generation.prepared import Prepared, prepare
from labkit.model import GPT2


class Decoder(Protocol):
    """What the loop needs of either road."""

    @property
    def length(self) -> int:
        """Positions computed so far, padding included."""

    def prefill(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Forget everything and read the prompts; logits [batch, vocab] after each one's last token."""

    def step(self, ids: Tensor) -> Tensor:
        """Read one more token of each row, ids [batch]; logits [batch, vocab] of the next."""


def pad_left(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Prompts as one table, short ones moved to the right, and how many places of each row are padding.

    >>> pad_left([[5], [6, 7]], torch.device("cpu"))
    (tensor([[5, 5],
            [6, 7]]), tensor([1, 0]))

    The second is None where no row is padded. What pads is the row's own first id: another's embedding might not be
    finite, and the row alone would never read it.
    """
    longest = max(map(len, rows))
    ids = torch.tensor([[row[0]] * (longest - len(row)) + list(row) for row in rows], device=device)  # [batch, pos]
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


Store = Callable[[int, Tensor], object]
"""Puts a block's new keys and values, [2, batch, head, pos, head_dim], into the cache."""

BUCKET = 64
"""A step attends over a whole number of so many places, masked beyond the newest, so that views are made once each."""


class FastDecoder:
    """A cache and the pass over new positions only.

    >>> from labkit.load import load_gpt2
    >>> decoder = FastDecoder(load_gpt2())
    >>> decoder.prefill([[5, 6, 7]]).shape == decoder.step(torch.tensor([8])).shape
    True
    >>> decoder.length
    4
    """

    def __init__(self, model: GPT2, *, batch: int = 1, capacity: int | None = None, drafts: bool = False) -> None:
        config = model.config
        capacity = min(capacity or config.n_positions, config.n_positions)
        self.prepared = prepare(model)
        self._single = self.prepared.split(torch.get_num_threads()) if batch == 1 else self.prepared
        self._shared = self.prepared.packed if batch > 1 or drafts else self.prepared  # for passes over several rows
        self.batch, self.device = batch, model.device
        self.cache = KVCache(config, capacity=capacity, batch=batch, dtype=model.dtype, device=model.device)
        by_block = self.cache.table.view(config.n_layer, 2, *self.cache.table.shape[1:])
        self.by_block = by_block  # [block, 2, batch, head, pos, head_dim]
        self.padding: Tensor | None = None  # [batch]
        self.padded: Tensor | None = None  # [batch, 1, 1, pos]: -inf where a row is padding, else 0
        self.rows = Rows(batch, 1, config.n_head, self.prepared.wte)
        self._unseen = torch.zeros(1, 2 * capacity, dtype=model.dtype, device=model.device)  # [1, 2 * pos]
        self._unseen[:, capacity:] = -math.inf
        self._views: dict[int, tuple[Tensor, ...]] = {}
        self._single_bfloat16 = batch == 1 and model.dtype == torch.bfloat16 and model.device.type == "cpu"

    @property
    def length(self) -> int:
        return self.cache.length

    @torch.inference_mode()
    def prefill(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Forget everything and read the prompts; logits [batch, vocab] after each one's last token."""
        if len(rows) != self.batch:
            raise ArgumentError("another number of rows", where="prompts", expected=self.batch, got=len(rows))
        self.cache.rewind(0)
        ids, self.padding = pad_left(rows, self.device)  # [batch, pos], [batch]
        self.padded = None
        if self.padding is not None:
            places = torch.arange(self.cache.capacity, device=self.device)  # [pos]
            padded = torch.zeros(len(rows), self.cache.capacity, dtype=self.cache.table.dtype, device=self.device)
            padded.masked_fill_(places < self.padding[:, None], -math.inf)  # [batch, pos]
            self.padded = padded[:, None, None]  # [batch, 1, 1, pos]
        stream = self._read(ids)[:, -1]  # [batch, n_embd]
        return logits(self.prepared if len(rows) == 1 else self._shared, stream)  # [batch, vocab]

    @torch.inference_mode()
    def extend(self, ids: Tensor) -> Tensor:
        """Read several more tokens of each row, ids [batch, pos]; logits [batch, pos, vocab] after each."""
        stream = self._read(ids)  # [batch, pos, n_embd]
        return logits(self._shared, stream.flatten(0, 1)).view(*ids.shape, -1)  # [batch, pos, vocab]

    @torch.inference_mode()
    def step(self, ids: Tensor) -> Tensor:
        """Read one more token of each row, ids [batch]; logits [batch, vocab] of the next."""
        start, end = self.cache.length, self.cache.length + 1
        self.cache.require(end)
        position = start if self.padding is None else start - self.padding
        stream = functional.embedding(ids, self.prepared.wte) + self.prepared.wpe[position]  # [batch, n_embd]
        places = self.by_block[:, :, :, :, start:end].unbind()  # each [2, batch, head, 1, head_dim]
        bucket = self.bucket(end)
        beyond = self.cache.capacity - end
        mask = self._unseen[:, beyond : beyond + bucket]  # [1, pos_k]
        if self.padded is not None:
            mask = mask + self.padded[..., :bucket]  # [batch, 1, 1, pos_k]
        with _without_onednn() if self._single_bfloat16 else _AS_IT_IS:
            result = self.new_rows(stream, lambda i, kv: places[i].copy_(kv), self.views(bucket), mask)
        self.cache.length = end
        return result

    def new_rows(self, stream: Tensor, store: Store, table: Sequence[Tensor], mask: Tensor) -> Tensor:
        """One new position of each row through every block: stream [batch, n_embd] -> logits [batch, vocab]."""
        prepared = self._single if self.batch == 1 else self._shared
        return logits(prepared, layers(prepared, stream, self.rows, store, table, mask))

    def bucket(self, positions: int) -> int:
        """How many places a step attends over where so many are filled."""
        return min(-(-positions // BUCKET) * BUCKET, self.cache.capacity)

    def views(self, bucket: int) -> tuple[Tensor, ...]:
        """Keys and values of each block in turn, their first ``bucket`` places: [batch, head, pos_k, head_dim]."""
        if bucket not in self._views:
            self._views[bucket] = self.cache.table[..., :bucket, :].unbind()
        return self._views[bucket]

    def _read(self, ids: Tensor) -> Tensor:
        batch, count = ids.shape
        start, end = self.cache.length, self.cache.length + count
        self.cache.require(end)
        positions = torch.arange(start, end, device=self.device)  # [pos]
        if self.padding is not None:
            positions = (positions - self.padding[:, None]).clamp(min=0)  # [batch, pos]
        stream = functional.embedding(ids, self.prepared.wte) + self.prepared.wpe[positions]  # [batch, pos, n_embd]
        places = self.by_block[..., start:end, :].unbind()  # each [2, batch, head, pos, head_dim]
        table = self.cache.table[..., :end, :].unbind()  # k and v of each block: [batch, head, pos_k, head_dim]
        rows = Rows(batch, count, self.prepared.config.n_head, self.prepared.wte)
        flat = stream.view(batch * count, -1)  # [batch * pos, n_embd]
        mask = self._mask(start, end)
        flat = layers(self._shared, flat, rows, lambda i, kv: places[i].copy_(kv), table, mask)  # [batch * pos, n_embd]
        self.cache.length = end
        return flat.view(batch, count, -1)  # [batch, pos, n_embd]

    def _mask(self, start: int, end: int) -> Tensor | None:
        if start == 0 and self.padded is None:
            return None
        causal = torch.ones(end - start, end, dtype=torch.bool, device=self.device).tril(start)  # [pos_q, pos_k]
        if self.padded is None:
            return causal
        itself = causal & ~causal.tril(start - 1)  # [pos_q, pos_k]: a row of padding sees itself, so that it is finite
        return (causal & (self.padded[..., :end] == 0)) | itself  # [batch, 1, pos_q, pos_k]


def layers(
    prepared: Prepared, stream: Tensor, rows: "Rows", store: Store, table: Sequence[Tensor], mask: Tensor | None
) -> Tensor:
    """Every block over new positions: stream [batch * pos, n_embd] in and out."""
    layer_norm, product, activate = torch.layer_norm, prepared.product, prepared.activation
    shape, epsilon = [prepared.config.n_embd], prepared.config.layer_norm_epsilon
    attend = _attend_in_float32 if prepared.upcast else _attend
    for i, block in enumerate(prepared.blocks):
        normed = layer_norm(stream, shape, *block.ln_1, epsilon)  # [batch * pos, n_embd]
        bias, weight = block.c_attn
        product(bias, normed, weight, out=rows.packed)  # [batch * pos, 3 * n_embd]
        store(i, rows.kv)
        z = attend(rows.q, table[2 * i], table[2 * i + 1], mask, block.scale)  # [batch, head, pos, head_dim]
        merged = z.transpose(1, 2).reshape(stream.shape)  # [batch * pos, n_embd]
        bias, weight = block.attn_c_proj
        stream += product(bias, merged, weight)  # [batch * pos, n_embd]
        normed = layer_norm(stream, shape, *block.ln_2, epsilon)  # [batch * pos, n_embd]
        bias, weight = block.c_fc
        post = activate(product(bias, normed, weight))  # [batch * pos, n_inner]
        bias, weight = block.mlp_c_proj
        stream += product(bias, post, weight)  # [batch * pos, n_embd]
    return stream


def logits(prepared: Prepared, stream: Tensor) -> Tensor:
    """The final norm and the head: stream [rows, n_embd] -> [rows, vocab]."""
    config = prepared.config
    normed = torch.layer_norm(stream, [config.n_embd], *prepared.ln_f, config.layer_norm_epsilon)  # [rows, n_embd]
    return prepared.unembed(normed, prepared.head)  # [rows, vocab]


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    causal = mask is None and q.shape[2] > 1
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale)


def _attend_in_float32(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.float()
    return _attend(q.float(), k.float(), v.float(), mask, scale).to(v.dtype)  # [batch, head, pos, head_dim]


class Rows:
    """Room for the packed queries, keys and values of ``count`` new positions, and its views by head."""

    def __init__(self, batch: int, count: int, n_head: int, like: Tensor) -> None:
        n_embd = like.shape[1]
        self.packed = like.new_empty(batch * count, 3 * n_embd)  # [batch * pos, 3 * n_embd]
        thirds = self.packed.view(batch, count, 3, n_head, n_embd // n_head).permute(2, 0, 3, 1, 4)
        self.q = thirds[0]  # [batch, head, pos, head_dim]
        self.kv = thirds[1:]  # [2, batch, head, pos, head_dim]


_AS_IT_IS = nullcontext()


@contextmanager
def _without_onednn() -> Iterator[None]:
    """torch's own bfloat16 product of one row reads memory two to three times as fast as oneDNN's does."""
    before = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = before
