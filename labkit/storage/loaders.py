"""What other readers make of a file that breaks a rule: accepted or refused, and what they then see.

In: a rule's code. Out: a ``Behaviour`` for each reader that was measured. The counts are of the crafted files
(``battery``) with that code; tests/storage/measure_loaders.py measures them again.
"""

from dataclasses import dataclass

LOADERS = ("safetensors 0.8.0", "gguf 0.19.0", "mlx 0.32.4", "tinygrad 0.14.0")
"""The readers: the official library, llama.cpp's converter, Apple's MLX (C++), tinygrad (Python)."""


@dataclass(frozen=True)
class Behaviour:
    """How one reader treats files with one defect."""

    loader: str
    accepted: int
    tried: int

    def __str__(self) -> str:
        if self.accepted == 0:
            return f"{self.loader}: refuses"
        if self.accepted == self.tried:
            return f"{self.loader}: accepts"
        return f"{self.loader}: accepts some ({self.accepted} of {self.tried} such files)"


_ALL_REFUSE = (0, 0, 0, 0)

_MEASURED: dict[str, tuple[int, tuple[int, int, int, int]]] = {
    "prefix-short": (4, _ALL_REFUSE),
    "header-empty": (2, _ALL_REFUSE),
    "header-length": (2, _ALL_REFUSE),
    "header-cap": (6, _ALL_REFUSE),
    "header-json": (34, (0, 0, 1, 1)),
    "header-utf8": (8, (0, 0, 0, 1)),
    "is-lfs-pointer": (1, _ALL_REFUSE),
    "is-html": (1, _ALL_REFUSE),
    "is-pickle": (1, _ALL_REFUSE),
    "is-zip": (1, _ALL_REFUSE),
    "is-gzip": (1, _ALL_REFUSE),
    "is-zstd": (1, _ALL_REFUSE),
    "is-gguf": (1, _ALL_REFUSE),
    "is-npy": (1, _ALL_REFUSE),
    "is-hdf5": (1, _ALL_REFUSE),
    "is-json": (1, _ALL_REFUSE),
    "header-first-byte": (13, (3, 3, 4, 4)),
    "header-depth": (4, _ALL_REFUSE),
    "text-surrogate": (5, (0, 5, 0, 5)),
    "duplicate-name": (8, (5, 7, 7, 7)),
    "duplicate-field": (5, (0, 5, 5, 5)),
    "duplicate-metadata-key": (3, (3, 3, 3, 3)),
    "metadata-type": (6, (1, 6, 4, 6)),
    "metadata-value": (7, (0, 7, 0, 7)),
    "entry-type": (7, (1, 0, 0, 0)),
    "entry-field-missing": (4, _ALL_REFUSE),
    "entry-field-unknown": (7, (6, 6, 6, 6)),
    "dtype-unknown": (15, (1, 15, 0, 0)),
    "dimension": (16, (0, 16, 4, 2)),
    "offset": (18, (0, 3, 0, 4)),
    "shape-type": (5, (0, 2, 0, 2)),
    "offsets-type": (9, (0, 1, 0, 1)),
    "shape-overflow": (8, (2, 8, 6, 3)),
    "size-mismatch": (11, (0, 11, 0, 0)),
    "size-partial-byte": (6, (0, 6, 0, 0)),
    "offsets-reversed": (2, (0, 0, 0, 2)),
    "layout-hole": (3, (0, 3, 3, 3)),
    "layout-overlap": (5, (0, 5, 5, 5)),
    "data-short": (3, _ALL_REFUSE),
    "data-trailing": (5, (0, 5, 5, 5)),
}

SEES = {
    "header-first-byte": "white space (mlx and tinygrad: also a byte order mark) is skipped and the tensors are read",
    "header-json": "mlx reads past a NUL at the end; tinygrad lets the JSON text be UTF-16",
    "header-utf8": "tinygrad takes an encoded half of a surrogate pair for a name",
    "text-surrogate": "a name that cannot be printed or written back",
    "duplicate-name": "the last of the two, in all four; a first-wins reader would see the other",
    "duplicate-field": "the last of the two",
    "duplicate-metadata-key": "the last of the two",
    "metadata-type": "no metadata",
    "metadata-value": "the value as it is, or no metadata",
    "entry-type": "an entry written as the list [dtype, shape, offsets] is read as if it were an object",
    "entry-field-unknown": "the field is skipped unread",
    "dtype-unknown": 'gguf passes the dtype on as it is; safetensors takes {"F32": null} for F32',
    "dimension": "gguf passes the dimension on as it is; mlx and tinygrad take 1.0 and true for 1",
    "offset": "true is taken for 1, -0 for 0",
    "shape-type": "a string or an empty object is taken for a list",
    "offsets-type": "offsets after the second are left unread",
    "shape-overflow": "a shape that no array can have; mlx makes the dimensions 0",
    "size-mismatch": "a shape that the bytes do not fill",
    "size-partial-byte": "a shape that the bytes do not fill",
    "offsets-reversed": "an empty tensor",
    "layout-hole": "the tensors; the hidden bytes go unnoticed",
    "layout-overlap": "both tensors, on the same bytes (200 tensors on one byte load as 200)",
    "data-trailing": "the tensors; the bytes behind them go unnoticed",
}
"""What a reader that accepts such a file sees."""


def behaviours_of(code: str) -> list[Behaviour]:
    """Every measured reader's behaviour on files with that defect; empty for rules on snapshots, which were not measured.

    >>> [str(each) for each in behaviours_of("layout-overlap")][:2]
    ['safetensors 0.8.0: refuses', 'gguf 0.19.0: accepts']
    """
    if code not in _MEASURED:
        return []
    tried, accepted = _MEASURED[code]
    return [Behaviour(loader, count, tried) for loader, count in zip(LOADERS, accepted, strict=True)]
