"""The decode step without a decision of the host in it, so that a GPU can replay it as one graph.

In: the next ids, copied into memory that stays where it is. Out: logits in memory that stays where it is. Where the
step writes and what it sees follow from a position held on the device; nothing is allocated, read back or branched on
between the first kernel and the last. On CUDA the step is captured once for each bucket of places and replayed; on any
other device, and so in the tests, the very same function runs as it is.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from labkit.generation.decoder import FastDecoder
from labkit.model import GPT2

WARM_UP = 3
"""Runs before a capture: libraries choose and load their kernels then, which a capture does not allow."""


class GraphDecoder:
    """A ``FastDecoder`` whose steps are replayed from captured graphs.

    >>> from labkit.load import load_gpt2
    >>> model = load_gpt2()
    >>> replayed, stepped = GraphDecoder(model), FastDecoder(model)
    >>> torch.equal(replayed.prefill([[5, 6]]), stepped.prefill([[5, 6]]))
    True
    >>> bool((replayed.step(torch.tensor([7])) - stepped.step(torch.tensor([7]))).abs().max() < 1e-4)
    True
    """

    def __init__(self, model: GPT2, *, batch: int = 1, capacity: int | None = None) -> None:
        self._decoder = FastDecoder(model, batch=batch, capacity=capacity)
        self._capture = model.device.type == "cuda"
        prepared = self._decoder.prepared
        self._ids = torch.zeros(batch, dtype=torch.long, device=model.device)  # [batch]
        self._position = torch.zeros(1, dtype=torch.long, device=model.device)  # [1]
        self._places = torch.arange(self._decoder.cache.capacity, device=model.device)  # [pos]
        self._logits = torch.zeros(batch, prepared.head.shape[1], dtype=model.dtype, device=model.device)
        self._zero = torch.zeros((), dtype=model.dtype, device=model.device)  # []
        self._unseen = torch.full((), -torch.inf, dtype=model.dtype, device=model.device)  # []
        self._replays: dict[int, Callable[[], object]] = {}

    @property
    def length(self) -> int:
        return self._decoder.length

    def prefill(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Forget everything and read the prompts; logits [batch, vocab] after each one's last token."""
        before = self._decoder.padded
        logits = self._decoder.prefill(rows)
        if before is not None or self._decoder.padded is not None:
            self._replays.clear()  # which places are padding is part of a captured step
        return logits

    @torch.inference_mode()
    def step(self, ids: Tensor) -> Tensor:
        """Read one more token of each row, ids [batch]; logits [batch, vocab], overwritten by the next step."""
        decoder = self._decoder
        start = decoder.cache.length
        decoder.cache.require(start + 1)
        self._ids.copy_(ids)
        self._position.fill_(start)
        bucket = decoder.bucket(start + 1)
        if bucket not in self._replays:
            self._replays[bucket] = self._captured(bucket) if self._capture else lambda: self._step(bucket)
        self._replays[bucket]()
        decoder.cache.length = start + 1
        return self._logits

    def _step(self, bucket: int) -> None:
        decoder, prepared = self._decoder, self._decoder.prepared
        positions = self._position if decoder.padding is None else self._position - decoder.padding  # [1] or [batch]
        stream = functional.embedding(self._ids, prepared.wte) + prepared.wpe[positions]  # [batch, n_embd]
        visible = self._places[:bucket] <= self._position  # [pos_k]
        mask = torch.where(visible, self._zero, self._unseen)[None]  # [1, pos_k]
        if decoder.padded is not None:
            mask = mask + decoder.padded[..., :bucket]  # [batch, 1, 1, pos_k]
        self._logits.copy_(decoder.new_rows(stream, self._store, decoder.views(bucket), mask))

    def _store(self, block: int, kv: Tensor) -> None:
        self._decoder.by_block[block].index_copy_(3, self._position, kv)

    def _captured(self, bucket: int) -> Callable[[], object]:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):  # each writes the same values to the same places
                self._step(bucket)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(bucket)
        return graph.replay
