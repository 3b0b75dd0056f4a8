"""The decode step without a decision of the host in it, so that a GPU can replay it as one graph.

In: the next ids, copied into memory that stays where it is. Out: logits in memory that stays where it is. Where the
step writes and what it sees follow from a position and a padding held on the device; nothing is read back or branched
on between the first kernel and the last. On CUDA the step is captured once for each bucket of places and replayed, in
this text and in later ones; on any other device the very same function runs as it is.
"""

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional

from labkit.generation.decoder import FastDecoder
from labkit.generation.prepared import prepare
from labkit.model import GPT2

WARM_UP = 3
"""Runs before a capture: libraries choose and load their kernels then, which a capture does not allow."""
ROOM = 256
"""Capacities are rounded up to a multiple of this, so that a somewhat longer text finds room in a decoder at rest."""

AT_REST = 2
"""Decoders kept for a model: a batch and a single text may take turns."""


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
        self._padding = torch.zeros(batch, dtype=torch.long, device=model.device)  # [batch]
        self._padded = torch.zeros(batch, 1, 1, self._decoder.cache.capacity, dtype=model.dtype, device=model.device)
        self._replays: dict[int, Callable[[], object]] = {}

    def fits(self, model: GPT2, *, batch: int, capacity: int) -> bool:
        """Whether this decoder can serve so many rows and positions of the model as it is now."""
        room = self._decoder.cache.capacity
        return self._decoder.prepared is prepare(model) and self._decoder.batch == batch and room >= capacity

    @property
    def length(self) -> int:
        return self._decoder.length

    def forget(self) -> None:
        """Give up every position read so far."""
        self._decoder.cache.rewind(0)

    def prefill(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Forget everything and read the prompts; logits [batch, vocab] after each one's last token."""
        logits = self._decoder.prefill(rows)
        if self._decoder.padding is None or self._decoder.padded is None:
            self._padding.zero_()
            self._padded.zero_()
        else:
            self._padding.copy_(self._decoder.padding)
            self._padded.copy_(self._decoder.padded)
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
        positions = self._position - self._padding  # [batch]
        stream = functional.embedding(self._ids, prepared.wte) + prepared.wpe[positions]  # [batch, n_embd]
        visible = self._places[:bucket] <= self._position  # [pos_k]
        mask = torch.where(visible, self._zero, self._unseen) + self._padded[..., :bucket]  # [batch, 1, 1, pos_k]
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


_AT_REST: WeakKeyDictionary[GPT2, list[GraphDecoder]] = WeakKeyDictionary()
"""The decoders that finished the last texts of each model, with their captured steps."""


def take(model: GPT2, *, batch: int, capacity: int) -> GraphDecoder:
    """A decoder for so many rows and positions: one at rest that fits, whose steps need no new capture, or a new one.

    >>> from labkit.load import load_gpt2
    >>> model = load_gpt2()
    >>> decoder = take(model, batch=1, capacity=20)
    >>> rest(model, decoder)
    >>> take(model, batch=1, capacity=100) is decoder
    True
    """
    resting = _AT_REST.get(model, [])
    for decoder in resting:
        if decoder.fits(model, batch=batch, capacity=capacity):
            resting.remove(decoder)
            return decoder
    return GraphDecoder(model, batch=batch, capacity=min(-(-capacity // ROOM) * ROOM, model.config.n_positions))


def rest(model: GPT2, decoder: GraphDecoder) -> None:
    """Leave a decoder, whose text is over, to later texts of the same model."""
    decoder.forget()
    _AT_REST[model] = [decoder, *_AT_REST.get(model, [])][:AT_REST]
