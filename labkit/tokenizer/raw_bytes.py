"""Encoding bytes that may be no text.

In: bytes. Out: ids that decode to exactly them. Follows tiktoken's ``_encode_bytes``: up to the first byte that is
not UTF-8 they are text; the last piece of that text and all bytes behind it are one piece more.
"""

from collections.abc import Callable

from labkit.tokenizer.split import split_text

_BLANKS = frozenset(b" \n\t")


def encode_bytes(
    data: bytes,
    *,
    encode: Callable[[str], list[int]],
    encode_piece: Callable[[bytes], list[int]],
    token_bytes: Callable[[int], bytes],
) -> list[int]:
    """The ids of any bytes."""
    try:
        return encode(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        valid = error.start
    text = data[:valid].decode("utf-8")
    ids = encode(text)
    if text:
        kept = len(ids) - len(encode_piece(split_text(text)[-1].encode("utf-8")))
        if _blank(token_bytes(ids[kept])):  # white space belongs together
            while kept and _blank(token_bytes(ids[kept - 1])):
                kept -= 1
        data = b"".join(map(token_bytes, ids[kept:])) + data[valid:]
        del ids[kept:]
    return ids + encode_piece(data)


def _blank(data: bytes) -> bool:
    return _BLANKS.issuperset(data)
