"""Ids to bytes to text, at once or one id at a time.

In: ids. Out: exact bytes, or text in which a broken character shows as the ``errors`` policy says.
"""

import codecs
from array import array
from collections.abc import Iterable
from typing import Final, Literal, SupportsIndex, get_args

import numpy as np
import numpy.typing as npt

from labkit.errors import ArgumentTypeError, OutOfRangeError, TextError
from labkit.outside import refuse_bytes
from labkit.tokenizer.vocabulary import Vocabulary

DecodeErrors = Literal["replace", "strict", "ignore", "backslashreplace", "surrogateescape"]
ERRORS: Final = get_args(DecodeErrors)
MANY: Final = 500  # ids; from here on arrays are faster than looking each up
CHUNK: Final = 1 << 15  # ids at once: their bytes' places then stay in the cache


class TokenBytes:
    """The bytes of every token, to be joined: one look-up each for few ids, whole arrays for many."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._bytes_of = {token: data for token, data in enumerate(vocabulary.tokens) if data is not None}
        self.size = vocabulary.size
        self._gaps = len(self._bytes_of) < self.size
        self._spelled = vocabulary.spelled
        self._data = np.frombuffer(self._spelled.data, np.uint8)  # [byte]

    def __getitem__(self, token: object) -> bytes:
        """The bytes of one id; OutOfRangeError where no token has it, ArgumentTypeError for what is no whole number."""
        return self._bytes_of[self._checked(token)]

    def join(self, ids: Iterable[int]) -> bytes:
        """The bytes of ids, joined.

        Raises OutOfRangeError naming an id that has no token, ArgumentTypeError for what is no whole number.
        """
        if isinstance(ids, np.ndarray):
            return self._join_array(ids)
        refuse_bytes(ids, where="ids")
        try:
            listed = ids if isinstance(ids, list) else list(ids)
        except TypeError:
            raise ArgumentTypeError("ids must be a sequence of whole numbers", got=type(ids).__name__) from None
        if len(listed) >= MANY:
            try:
                return self._join_array(np.frombuffer(array("I", listed), np.uint32))
            except (TypeError, OverflowError):
                pass  # some id is no whole number, or beyond 32 bits: named below
        if set(map(type, listed)) - {int} or not self._bytes_of.keys() >= set(listed):
            listed = [self._checked(token, where=f"position {place}") for place, token in enumerate(listed)]
        return b"".join(map(self._bytes_of.__getitem__, listed))

    def _join_array(self, ids: npt.NDArray[np.integer]) -> bytes:
        if ids.dtype.kind not in "iu" or ids.ndim != 1:
            shape = f"{ids.dtype} of {ids.ndim} dimensions"
            raise ArgumentTypeError(
                "ids must be one row of whole numbers", expected="integers of 1 dimension", got=shape
            )
        known = (ids.min(initial=0) >= 0) & (ids.max(initial=0) < self.size)
        if not known or (self._gaps and np.any(self._spelled.lengths.take(ids) < 0)):
            for place, token in enumerate(ids.tolist()):
                self._checked(token, where=f"position {place}")
        return b"".join([self._join_chunk(ids[start : start + CHUNK]) for start in range(0, len(ids), CHUNK)])

    def _join_chunk(self, ids: npt.NDArray[np.integer]) -> bytes:
        """As bulk.py's gather: the place of each byte is the one before and one more, but for a jump at each token."""
        begins, sizes = self._spelled.begins.take(ids), self._spelled.lengths.take(ids)  # [token]
        ends = np.cumsum(sizes)  # [token]
        jumps = np.ones(int(ends[-1]), np.int64)  # [byte]
        jumps[0] = begins[0]
        jumps[ends[:-1]] = begins[1:] - begins[:-1] - sizes[:-1] + 1
        return self._data.take(np.cumsum(jumps, out=jumps)).tobytes()

    def _checked(self, token: object, *, where: str | None = None) -> int:
        if isinstance(token, bool) or not isinstance(token, SupportsIndex):
            raise ArgumentTypeError("an id must be a whole number", where=where, got=repr(token))
        try:
            value = token.__index__()
        except TypeError:  # a tensor that holds a fraction has the method all the same
            raise ArgumentTypeError("an id must be a whole number", where=where, got=repr(token)) from None
        if value not in self._bytes_of:
            raise OutOfRangeError(f"no token has id {value}", where=where, expected=f"0 to {self.size - 1}", got=value)
        return value


def bytes_to_text(data: bytes, errors: DecodeErrors) -> str:
    """The text of some bytes; TextError where ``errors`` is strict and they are not UTF-8."""
    _check_errors(errors)
    try:
        return data.decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise TextError(
            f"the tokens' bytes are not UTF-8 ({error.reason})",
            where=f"byte {error.start}",
            got=hex(data[error.start]),
            fix='decode with errors="replace", or take the bytes',
        ) from None


def _check_errors(errors: object) -> None:
    if errors not in ERRORS:  # at once: Python itself looks at the name only where a byte is wrong
        raise TextError(f"no such way of treating errors: {errors!r}", expected=", ".join(ERRORS))


class IncrementalDecoder:
    """Text as ids arrive: whole characters only; a character split over tokens comes with its last byte.

    >>> from labkit.tokenizer import Tokenizer
    >>> decoder = Tokenizer.gpt2().incremental_decoder()
    >>> [decoder.feed(token) for token in [33768, 98, 17312, 105]], decoder.close()
    (['', '日', '', '本'], '')

    A U+FFFD in the text itself is a whole character and comes at once. ``close`` gives what an unfinished character
    shows as, and makes the decoder ready for the next text.
    """

    def __init__(self, tokens: TokenBytes, *, errors: DecodeErrors = "replace") -> None:
        _check_errors(errors)
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    def feed(self, ids: int | Iterable[int]) -> str:
        """The characters that one id, or several, complete."""
        data = self._tokens.join(ids) if isinstance(ids, Iterable) else self._tokens[ids]
        return self._decoder.decode(data)

    @property
    def pending(self) -> bytes:
        """The bytes of the character that is not finished yet."""
        return bytes(self._decoder.getstate()[0])

    def close(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
