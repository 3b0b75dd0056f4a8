"""Bytes to printable symbols and back: the alphabet in which vocab.json and merges.txt are written.

In: a byte. Out: its stand-in, one printable character. Mirrors ``bytes_to_unicode`` of GPT-2's encoder.py.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from labkit.errors import VocabularyError

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]  # stand for themselves
_OTHERS = [byte for byte in range(256) if byte not in set(_PRINTABLE)]  # take U+0100 and on, in byte order

SYMBOL_OF_BYTE: tuple[str, ...] = tuple(
    chr(byte) if byte not in _OTHERS else chr(0x100 + _OTHERS.index(byte)) for byte in range(256)
)
BYTE_OF_SYMBOL: dict[str, int] = {symbol: byte for byte, symbol in enumerate(SYMBOL_OF_BYTE)}

_NO_BYTE = 0xFFFF
_TO_BYTE = np.full(0x10000, _NO_BYTE, np.uint16)  # [code unit]
_TO_BYTE[[ord(symbol) for symbol in SYMBOL_OF_BYTE]] = np.arange(256)


def to_symbols(data: bytes) -> str:
    """The printable stand-ins of some bytes.

    >>> to_symbols(b" the"), to_symbols(b"\\n"), to_symbols("é".encode())
    ('Ġthe', 'Ċ', 'Ã©')
    """
    return "".join(SYMBOL_OF_BYTE[byte] for byte in data)


def from_symbols(name: str) -> bytes:
    """The bytes that some stand-ins mean.

    >>> from_symbols("Ġthe")
    b' the'

    Raises VocabularyError for a character outside the 256.
    """
    try:
        return bytes(BYTE_OF_SYMBOL[symbol] for symbol in name)
    except KeyError as missing:
        symbol = missing.args[0]
        raise VocabularyError(
            f"token {name!r} holds {symbol!r} (U+{ord(symbol):04X}), which stands for no byte",
            expected="the 256 symbols of the byte-level alphabet",
        ) from None


def many_from_symbols(names: Sequence[str]) -> list[bytes]:
    """As ``from_symbols`` for a whole vocabulary, in one pass.

    >>> many_from_symbols(["Ġt", "he"])
    [b' t', b'he']
    """
    joined = "".join(names)
    units = _TO_BYTE[np.frombuffer(joined.encode("utf-16-le", "surrogatepass"), np.uint16)]  # [code unit]
    if units.max(initial=0) == _NO_BYTE:  # some name holds a foreign character: the slow way names it
        return [from_symbols(name) for name in names]
    data = units.astype(np.uint8).tobytes()
    return [data[start:end] for start, end in pairwise(accumulate(map(len, names), initial=0))]
