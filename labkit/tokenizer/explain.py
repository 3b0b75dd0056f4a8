"""A text's encoding with everything that led to it: pieces, tokens, spans and trees of merges.

In: a text. Out: an ``Encoding``. Ids come from the fast road. The tree of a token is that of its own bytes merged alone:
no merge crosses a token's edge, so what stood around it made no difference.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from labkit.tokenizer.merge import merge_tree
from labkit.tokenizer.records import Encoding, MergeNode, Piece, Token
from labkit.tokenizer.specials import SpecialTokens, find_special
from labkit.tokenizer.split import split
from labkit.tokenizer.vocabulary import AddedToken, Vocabulary


def explain_text(
    text: str,
    vocabulary: Vocabulary,
    special_tokens: SpecialTokens,
    *,
    encode_piece: Callable[[bytes], list[int]],
) -> Encoding:
    """The encoding of a text without surrogates."""
    trees: dict[int, MergeNode] = {}
    characters = character_of_byte(text)
    pieces: list[Piece] = []
    tokens: list[Token] = []
    place = 0  # in bytes
    for stretch in find_special(text, vocabulary.added, special_tokens):
        part = text[stretch.start : stretch.end]
        if stretch.token is not None:
            end = place + len(part.encode("utf-8"))
            tokens.append(_special(stretch.token, stretch.start, stretch.end, place, end))
            place = end
            continue
        for piece in _shifted(split(part), stretch.start, place):
            place = piece.byte_start
            for token in encode_piece(piece.data):
                if token not in trees:
                    (trees[token],) = merge_tree(vocabulary.tokens[token] or b"", vocabulary)
                tokens.append(_token(trees[token], place, characters, len(pieces)))
                place += len(trees[token].data)
            pieces.append(piece)
    return Encoding(text, tuple(pieces), tuple(tokens))


def character_of_byte(text: str) -> npt.NDArray[np.int64]:
    """The index of the character that each byte of the UTF-8 form belongs to.

    >>> character_of_byte("aé").tolist()
    [0, 1, 1]
    """
    data = np.frombuffer(text.encode("utf-8"), np.uint8)  # [byte]
    starts = (data & 0xC0) != 0x80  # [byte]
    return np.cumsum(starts) - 1  # [byte]


def _shifted(pieces: tuple[Piece, ...], start: int, byte_start: int) -> list[Piece]:
    return [
        Piece(
            piece.text,
            piece.data,
            piece.start + start,
            piece.end + start,
            piece.byte_start + byte_start,
            piece.byte_end + byte_start,
            piece.alternative,
        )
        for piece in pieces
    ]


def _token(node: MergeNode, place: int, characters: npt.NDArray[np.int64], piece: int) -> Token:
    end = place + len(node.data)
    first, last = int(characters[place]), int(characters[end - 1])
    return Token(node.token_id, node.data, first, last + 1, place, end, piece, node)


def _special(token: AddedToken, start: int, end: int, byte_start: int, byte_end: int) -> Token:
    data = token.content.encode("utf-8")
    return Token(token.id, data, start, end, byte_start, byte_end, None, MergeNode(data, token.id))
