"""Keys and values of the positions already computed, in memory taken once.

In: each block's new keys and values. Out: all of them so far, as views, nothing copied but what is new.
"""

import torch
from torch import Tensor

from labkit.config import GPT2Config
from labkit.errors import ArgumentError, OutOfRangeError
from labkit.outside import require_whole, shown_number


class KVCache:
    """Room for ``capacity`` positions of ``batch`` rows in every block.

    >>> cache = KVCache(GPT2Config(n_layer=2, n_head=2, n_embd=8, n_positions=16), capacity=16)
    >>> cache.length, cache.nbytes, list(cache.table.shape)
    (0, 2048, [4, 1, 2, 16, 4])

    ``length`` grows when the last block has handed in its part, so that a pass that is broken off leaves the cache
    as it was; ``rewind`` gives positions up again. Raises ``OutOfRangeError`` where the room or n_positions ends,
    ``ArgumentError`` for keys and values of another shape.
    """

    def __init__(
        self,
        config: GPT2Config,
        *,
        capacity: int,
        batch: int = 1,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        if not 1 <= require_whole(capacity, "capacity") <= config.n_positions:
            raise OutOfRangeError(
                "the cache cannot hold that many positions",
                where="capacity",
                expected=f"1 to n_positions = {config.n_positions}",
                got=shown_number(capacity),
            )
        if require_whole(batch, "batch") < 1:
            raise OutOfRangeError("a cache has rows", where="batch", expected="1 or more", got=shown_number(batch))
        self.capacity = capacity
        self.length = 0
        self._last_block = config.n_layer - 1
        shape = (2 * config.n_layer, batch, config.n_head, capacity, config.head_dim)
        self.table = torch.zeros(
            shape, dtype=dtype, device=device
        )  # [k and v of each block, batch, head, pos, head_dim]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole table."""
        return self.table.nbytes

    def extend(self, block: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Take in a block's new keys and values, [batch, head, pos, head_dim]; all so far, the new ones last."""
        if not 0 <= block <= self._last_block:
            blocks = f"0 to {self._last_block}"
            raise OutOfRangeError("there is no such block", where="KVCache", expected=blocks, got=block)
        keys, values = self.table[2 * block], self.table[2 * block + 1]  # each [batch, head, capacity, head_dim]
        batch, heads, _, head_dim = keys.shape
        for name, new in (("keys", k), ("values", v)):
            if new.dim() != 4 or (new.shape[0], new.shape[1], new.shape[3]) != (batch, heads, head_dim):
                raise ArgumentError(
                    f"the {name} do not fit the cache",
                    where=f"KVCache, block {block}",
                    expected=f"[batch {batch}, head {heads}, pos, head_dim {head_dim}]",
                    got=list(new.shape),
                    fix="make the cache for this batch, or run all positions at once, without a cache",
                )
        if k.shape != v.shape:
            where = f"KVCache, block {block}"
            raise ArgumentError("more keys than values or fewer", where=where, expected=k.shape[2], got=v.shape[2])
        end = self.length + k.shape[2]
        self.require(end)
        keys[:, :, self.length : end] = k
        values[:, :, self.length : end] = v
        if block == self._last_block:
            self.length = end
        return keys[:, :, :end], values[:, :, :end]

    def require(self, positions: int) -> None:
        """Raise ``OutOfRangeError`` unless there is room for so many positions."""
        if positions > self.capacity:
            raise OutOfRangeError(
                "the cache is full",
                where="KVCache",
                expected=f"at most {self.capacity} positions",
                got=positions,
                fix="make it with more capacity, up to n_positions",
            )

    def rewind(self, length: int) -> None:
        """Give up every position from ``length`` on."""
        if not 0 <= require_whole(length, "length") <= self.length:
            most = f"0 to {self.length}"
            raise OutOfRangeError("not a length to go back to", expected=most, got=shown_number(length))
        self.length = length
