"""A safetensors file through labkit's reader and through the official library, tensor by tensor, bit for bit."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from labkit.storage import open_safetensors


@dataclass(frozen=True, kw_only=True)
class TensorParity:
    """What the two readers agree on."""

    tensors: int
    sha256: str
    """Of all names, dtypes, shapes and bytes, in order of the names, whatever their order in the files."""
    differing: tuple[str, ...]
    """Names that one reader lacks, or whose dtype, shape or bytes differ."""


def compare_readers(shards: Sequence[Path]) -> TensorParity:
    """Read every tensor of the files twice and compare; raises what ``open_safetensors`` raises."""
    import safetensors

    rows: list[tuple[str, bytes]] = []
    differing: list[str] = []
    for shard in shards:
        with open_safetensors(shard) as ours, safetensors.safe_open(shard, framework="pt") as theirs:
            names = set(theirs.keys())
            differing += sorted(names ^ set(ours))
            for name in sorted(names & set(ours)):
                tensor = ours[name]
                if not _identical(tensor, theirs.get_tensor(name)):
                    differing.append(name)
                rows.append((name, _digest(name, tensor)))
    whole = hashlib.sha256(b"".join(digest for _, digest in sorted(rows)))
    return TensorParity(tensors=len(rows), sha256=whole.hexdigest(), differing=tuple(differing))


def _identical(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bytes(a), _bytes(b))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)  # [nbytes]


def _digest(name: str, tensor: Tensor) -> bytes:
    digest = hashlib.sha256(f"{name} {tensor.dtype} {list(tensor.shape)}\0".encode())
    if tensor.numel():
        digest.update(_bytes(tensor).numpy().data)
    return digest.digest()
