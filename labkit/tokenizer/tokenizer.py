"""The tokenizer: one object that holds a vocabulary and what is made from it.

In: text or bytes. Out: ids, or the records that show how they came about; and back.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt

from labkit.errors import ArgumentTypeError, TextError, UnknownNameError, VocabularyError
from labkit.outside import path_of
from labkit.tokenizer.alphabet import SYMBOL_OF_BYTE, to_symbols
from labkit.tokenizer.bulk import BulkEncoder
from labkit.tokenizer.decode import DecodeErrors, IncrementalDecoder, TokenBytes, bytes_to_text
from labkit.tokenizer.encode_file import EncodedFile, Progress, encode_file
from labkit.tokenizer.explain import explain_text
from labkit.tokenizer.files import find_gpt2, read_folder, read_pair
from labkit.tokenizer.giants import merge_piece
from labkit.tokenizer.merge import merge_steps
from labkit.tokenizer.pairs import PairTable
from labkit.tokenizer.raw_bytes import encode_bytes
from labkit.tokenizer.records import Encoding, MergeStep, Piece
from labkit.tokenizer.save import save_vocabulary
from labkit.tokenizer.short import ShortEncoder
from labkit.tokenizer.specials import SpecialTokens, find_special
from labkit.tokenizer.split import split
from labkit.tokenizer.vocabulary import AddedToken, Vocabulary

Surrogates = Literal["error", "replace"]
Ids = npt.NDArray[np.unsignedinteger]
SHORT: Final = 4000  # characters; below, a dictionary of pieces is faster than whole arrays
MISSING_BYTES_FIX = 'train with all 256 bytes in the alphabet, or load with missing_bytes="allow"'


class Tokenizer:
    """GPT-2's byte-level BPE over one vocabulary.

    >>> tokenizer = Tokenizer.gpt2()
    >>> tokenizer.encode("Hello, world!")
    [15496, 11, 995, 0]
    >>> tokenizer.decode([15496, 11, 995, 0])
    'Hello, world!'
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @classmethod
    def gpt2(cls, folder: str | Path | None = None) -> Self:
        """GPT-2's own tokenizer, from the package that carries its files or from a folder; their hashes are checked.

        Raises MissingFileError that says how to get the files.
        """
        return cls(read_pair(*find_gpt2(None if folder is None else path_of(folder, "folder"))))

    @classmethod
    def from_folder(cls, folder: str | Path, *, missing_bytes: Literal["refuse", "allow"] = "refuse") -> Self:
        """The tokenizer of a folder: tokenizer.json alone, or vocab.json and merges.txt.

        A vocabulary without a token for some byte is refused, or with ``missing_bytes="allow"`` loaded, and then
        refuses the texts that hold such a byte.
        """
        if missing_bytes not in ("refuse", "allow"):
            raise UnknownNameError.near("way of treating missing bytes", missing_bytes, ("refuse", "allow"))
        vocabulary = read_folder(path_of(folder, "folder"))
        lost = vocabulary.missing_bytes()
        if lost and missing_bytes == "refuse":
            raise VocabularyError(describe_missing(lost), where=folder, fix=MISSING_BYTES_FIX)
        return cls(vocabulary)

    def __reduce__(self) -> tuple[type[Self], tuple[Vocabulary]]:
        return type(self), (self.vocabulary,)  # the tables are caches: another process builds its own

    def prepare(self) -> Self:
        """Build the tables of the fast roads now, which otherwise the first call does."""
        _ = self._bulk, self._short, self._tokens
        return self

    @property
    def vocabulary_size(self) -> int:
        """The number of rows an embedding needs: the highest id and one."""
        return self.vocabulary.size

    @property
    def notes(self) -> tuple[str, ...]:
        """What was found odd in the files."""
        return self.vocabulary.notes

    @property
    def special_tokens(self) -> dict[str, int]:
        """The special tokens by name."""
        return {token.content: token.id for token in self.vocabulary.added if token.special}

    @property
    def added_tokens(self) -> tuple[AddedToken, ...]:
        return self.vocabulary.added

    @property
    def byte_symbols(self) -> tuple[str, ...]:
        """The printable symbol of each byte, as vocab.json and merges.txt write it."""
        return SYMBOL_OF_BYTE

    def encode(
        self, text: str, *, special_tokens: SpecialTokens = "plain", surrogates: Surrogates = "error"
    ) -> list[int]:
        """The ids of a text.

        ``special_tokens``: ``"plain"`` takes ``<|endoftext|>`` as text (tiktoken's encode_ordinary), ``"huggingface"``
        finds every added token, a set of names allows those and refuses others (tiktoken's allowed_special).
        ``surrogates``: a lone surrogate is an error, or is replaced as tiktoken does (pairs joined, others U+FFFD).

        >>> tokenizer = Tokenizer.gpt2()
        >>> tokenizer.encode("a<|endoftext|>b"), tokenizer.encode("a<|endoftext|>b", special_tokens="huggingface")
        ([64, 27, 91, 437, 1659, 5239, 91, 29, 65], [64, 50256, 65])

        Raises ArgumentTypeError, TextError, UnknownNameError.
        """
        text = self._checked(text, surrogates)
        if special_tokens == "plain":
            return self._short.encode(text) if len(text) < SHORT else self._bulk.encode(text).tolist()
        ids: list[int] = []
        for stretch in find_special(text, self.vocabulary.added, special_tokens):
            if stretch.token is None:
                ids += self.encode(text[stretch.start : stretch.end])
            else:
                ids.append(stretch.token.id)
        return ids

    def encode_array(
        self, text: str, *, special_tokens: SpecialTokens = "plain", surrogates: Surrogates = "error"
    ) -> Ids:
        """As ``encode``, as an array: uint16 where every id fits, else uint32; the fast way for long texts.

        >>> Tokenizer.gpt2().encode_array("Hello, world!")
        array([15496,    11,   995,     0], dtype=uint16)
        """
        text = self._checked(text, surrogates)
        if special_tokens == "plain":
            return self._bulk.encode(text)
        parts = [
            self._bulk.encode(text[stretch.start : stretch.end])
            if stretch.token is None
            else np.array([stretch.token.id], self.id_dtype)
            for stretch in find_special(text, self.vocabulary.added, special_tokens)
        ]
        return np.concatenate([np.zeros(0, self.id_dtype), *parts])

    def encode_bytes(self, data: bytes) -> list[int]:
        """The ids of any bytes, UTF-8 or not; they decode to exactly these bytes.

        >>> Tokenizer.gpt2().encode_bytes(b"it's\\xff's")
        [270, 338, 187, 338]

        From the first byte on that is not UTF-8, everything is one piece, as in tiktoken.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            raise ArgumentTypeError("expected bytes", got=type(data).__name__, fix="a str goes through encode")
        data = bytes(data)
        return encode_bytes(data, encode=self.encode, encode_piece=self.encode_piece, token_bytes=self.token_bytes)

    def encode_file(
        self,
        source: str | Path,
        target: str | Path,
        *,
        special_tokens: SpecialTokens = "plain",
        progress: Progress | None = None,
    ) -> EncodedFile:
        """Encode a UTF-8 file of any size into a .npy or .safetensors file of ids, in bounded memory.

        ``progress`` is called with the bytes done and the bytes in all. Special tokens as in ``encode``.

        Raises MissingFileError, FileAccessError, TextError, ArgumentError.
        """
        return encode_file(
            path_of(source, "source"),
            path_of(target, "target"),
            encode=lambda text: self.encode_array(text, special_tokens=special_tokens),
            dtype=self.id_dtype,
            added=() if special_tokens == "plain" else self.vocabulary.added,
            progress=progress,
        )

    def save(self, folder: str | Path) -> None:
        """Write vocab.json, merges.txt and tokenizer.json into a folder."""
        save_vocabulary(self.vocabulary, path_of(folder, "folder"))

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """The smaller of uint16 and uint32 that holds every id."""
        return self.vocabulary.dtype

    def decode(self, ids: Iterable[int], errors: DecodeErrors = "replace") -> str:
        """The text of some ids; bytes that are no UTF-8 are treated as ``errors`` says.

        >>> Tokenizer.gpt2().decode([10545, 245, 98])
        ' 日'

        Raises OutOfRangeError for an id that has no token, TextError for ``errors="strict"``.
        """
        return bytes_to_text(self.decode_bytes(ids), errors)

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The exact bytes of some ids.

        >>> Tokenizer.gpt2().decode_bytes([33768])
        b'\\xe6\\x97'

        Raises OutOfRangeError for an id that has no token.
        """
        return self._tokens.join(ids)

    def incremental_decoder(self, *, errors: DecodeErrors = "replace") -> IncrementalDecoder:
        """A decoder that takes ids one at a time and gives whole characters."""
        return IncrementalDecoder(self._tokens, errors=errors)

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one id; OutOfRangeError where no token has it."""
        return self._tokens[token]

    def token_text(self, token: int) -> str:
        """One id for the eye: in the symbols of vocab.json, or by name where it is a special token.

        >>> Tokenizer.gpt2().token_text(262), Tokenizer.gpt2().token_text(50256)
        ('Ġthe', '<|endoftext|>')
        """
        data = self.token_bytes(token)
        return self._added_names.get(token) or to_symbols(data)

    def pieces(self, text: str, *, surrogates: Surrogates = "error") -> tuple[Piece, ...]:
        """The pieces of a text, with their places and the alternative of the pattern that took each."""
        return split(self._checked(text, surrogates))

    def encode_piece(self, piece: str | bytes) -> list[int]:
        """The ids of one piece, taken as it is, without splitting."""
        return merge_piece(self._checked_piece(piece), self._pairs)

    def merge_steps(self, piece: str | bytes) -> Iterator[MergeStep]:
        """The merges of one piece, in order; the piece is taken as it is, without splitting."""
        return merge_steps(self._checked_piece(piece), self.vocabulary)

    def explain(
        self, text: str, *, special_tokens: SpecialTokens = "plain", surrogates: Surrogates = "error"
    ) -> Encoding:
        """The encoding of a text with its pieces, spans and trees of merges.

        >>> encoding = Tokenizer.gpt2().explain("日")
        >>> encoding.ids, encoding.spans
        ([33768, 98], [(0, 1), (0, 1)])
        """
        text = self._checked(text, surrogates)
        return explain_text(text, self.vocabulary, special_tokens, encode_piece=self.encode_piece)

    @cached_property
    def _tokens(self) -> TokenBytes:
        return TokenBytes(self.vocabulary)

    @cached_property
    def _added_names(self) -> Mapping[int, str]:
        return {token.id: token.content for token in self.vocabulary.added}

    @cached_property
    def _pairs(self) -> PairTable:
        return PairTable(self.vocabulary)

    @cached_property
    def _short(self) -> ShortEncoder:
        return ShortEncoder(self._pairs)

    @cached_property
    def _bulk(self) -> BulkEncoder:
        return BulkEncoder(self._pairs)

    def _checked(self, text: object, surrogates: Surrogates) -> str:
        """The text, fit to be encoded."""
        if not isinstance(text, str):
            fix = "bytes go through encode_bytes" if isinstance(text, bytes | bytearray) else None
            raise ArgumentTypeError("a text must be a str", got=type(text).__name__, fix=fix)
        if surrogates not in ("error", "replace"):
            raise UnknownNameError.near("way of treating surrogates", surrogates, ("error", "replace"))
        if not text.isascii():
            text = without_surrogates(text, surrogates)
        if self._lost_bytes:
            self._check_bytes(text.encode("utf-8"))
        return text

    def _checked_piece(self, piece: object) -> bytes:
        if isinstance(piece, str):
            return self._checked(piece, "error").encode("utf-8")
        if not isinstance(piece, bytes):
            raise ArgumentTypeError("a piece must be str or bytes", got=type(piece).__name__)
        self._check_bytes(piece)
        return piece

    def _check_bytes(self, data: bytes) -> None:
        found = sorted(self._lost_bytes.intersection(data))
        if found:
            raise TextError(describe_missing(found), where=f"byte {data.index(found[0])} of the text")

    @cached_property
    def _lost_bytes(self) -> frozenset[int]:
        return frozenset(self.vocabulary.missing_bytes())


def without_surrogates(text: str, mode: Surrogates) -> str:
    """The text as UTF-8 can hold it.

    >>> without_surrogates("a\\ud83d\\ude00b", "replace"), without_surrogates("\\ud83d", "replace")
    ('a😀b', '�')

    Raises TextError naming the first surrogate where ``mode`` is ``"error"``.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        if mode == "replace":
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        raise TextError(
            f"the text holds the lone surrogate U+{ord(text[error.start]):04X}, which no UTF-8 can hold",
            where=f"character {error.start}",
            fix='encode with surrogates="replace" to take U+FFFD instead, as tiktoken does',
        ) from None
    return text


def describe_missing(lost: Iterable[int]) -> str:
    """Which bytes have no token.

    >>> describe_missing([1, 128])
    'the vocabulary has no token for byte 0x01, 0x80'
    """
    listed = [f"0x{byte:02X}" for byte in lost]
    many = ", ".join(listed[:8]) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
    return f"the vocabulary has no token for byte {many}"
