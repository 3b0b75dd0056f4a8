"""Ids to bytes to text, at once or one id at a time.

In: ids. Out: exact bytes, or text in which a broken character shows as the ``errors`` policy says.
"""

import codecs
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from labkit.errors import ArgumentTypeError, OutOfRangeError, TextError

DecodeErrors = Literal["replace", "strict", "ignore", "backslashreplace", "surrogateescape"]


def join_tokens(ids: Iterable[int], bytes_of: Mapping[int, bytes], size: int) -> bytes:
    """The bytes of ids, joined.

    Raises OutOfRangeError naming an id that has no token, ArgumentTypeError for what is no whole number.
    """
    try:
        listed = ids if isinstance(ids, list) else list(ids)
    except TypeError:
        raise ArgumentTypeError("ids must be a sequence of whole numbers", got=type(ids).__name__) from None
    try:
        return b"".join(map(bytes_of.__getitem__, listed))
    except (KeyError, TypeError):
        for place, token in enumerate(listed):
            check_id(token, bytes_of, size, where=f"position {place}")
        raise


def check_id(token: object, bytes_of: Mapping[int, bytes], size: int, *, where: str | None = None) -> None:
    """Raises ArgumentTypeError or OutOfRangeError unless a token has this id."""
    if isinstance(token, bool) or not hasattr(token, "__index__"):
        raise ArgumentTypeError("an id must be a whole number", where=where, got=repr(token))
    if token not in bytes_of:
        raise OutOfRangeError(f"no token has id {token}", where=where, expected=f"0 to {size - 1}", got=token)


def bytes_to_text(data: bytes, errors: DecodeErrors) -> str:
    """The text of some bytes; TextError where ``errors`` is strict and they are not UTF-8."""
    try:
        return data.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise TextError(
            f"the tokens' bytes are not UTF-8 ({error.reason})",
            where=f"byte {error.start}",
            got=hex(data[error.start]),
            fix='decode with errors="replace", or take the bytes',
        ) from None
    except LookupError:
        raise TextError(f"no such way of treating errors: {errors!r}", expected="replace, strict, ignore") from None


class IncrementalDecoder:
    """Text as ids arrive: whole characters only; a character split over tokens comes with its last byte.

    >>> from labkit.tokenizer import Tokenizer
    >>> decoder = Tokenizer.gpt2().incremental_decoder()
    >>> [decoder.feed(token) for token in [33768, 98, 17312, 105]], decoder.close()
    (['', '日', '', '本'], '')

    A U+FFFD in the text itself is a whole character and comes at once. ``close`` gives what an unfinished character
    shows as, and makes the decoder ready for the next text.
    """

    def __init__(self, bytes_of: Mapping[int, bytes], size: int, *, errors: DecodeErrors = "replace") -> None:
        self._bytes_of = bytes_of
        self._size = size
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    def feed(self, ids: int | Sequence[int]) -> str:
        """The characters that one id, or several, complete."""
        listed = ids if isinstance(ids, Sequence) else [ids]
        return self._decoder.decode(join_tokens(listed, self._bytes_of, self._size))

    @property
    def pending(self) -> bytes:
        """The bytes of the character that is not finished yet."""
        return bytes(self._decoder.getstate()[0])

    def close(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
