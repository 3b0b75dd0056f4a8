"""A second algorithm for byte-level BPE: longest match, taken back where two neighbours could not both have survived.

Two tokens may stand side by side if merging their joined bytes gives those two tokens again; a sequence in which every
two neighbours may is the encoding. So: at each place the longest token that may follow the one before; where none may,
the token before is shortened. Slow and independent of ranks over the whole piece.
"""

from labkit.tokenizer import merge
from labkit.tokenizer.vocabulary import Vocabulary


class GreedyEncoder:
    """Encodes one piece at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        made = set(vocabulary.made) | set(vocabulary.byte_ids)
        tokens = enumerate(vocabulary.tokens)
        self._ids = {data: token for token, data in tokens if data is not None and token in made}
        self._longest = max(map(len, self._ids))
        self._fit: dict[tuple[bytes, bytes], bool] = {}

    def encode(self, piece: bytes) -> list[int]:
        chosen: list[bytes] = []
        dead: set[tuple[int, bytes]] = set()  # a place and the token before it from which no way leads on
        place, limit = 0, self._longest
        while place < len(piece):
            before = chosen[-1] if chosen else b""
            token = self._longest_that_fits(piece, place, min(limit, len(piece) - place), before, dead)
            if token is None:
                dead.add((place, before))
                last = chosen.pop()
                place -= len(last)
                limit = len(last) - 1
                continue
            chosen.append(token)
            place += len(token)
            limit = self._longest
        return [self._ids[token] for token in chosen]

    def _longest_that_fits(
        self, piece: bytes, place: int, limit: int, before: bytes, dead: set[tuple[int, bytes]]
    ) -> bytes | None:
        for length in range(limit, 0, -1):
            token = piece[place : place + length]
            if token in self._ids and (place + length, token) not in dead and self._fits(before, token):
                return token
        return None

    def _fits(self, left: bytes, right: bytes) -> bool:
        if (left, right) not in self._fit:
            alone = merge(left + right, self._vocabulary)
            expected = [self._ids[each] for each in (left, right) if each]
            self._fit[left, right] = alone == expected
        return self._fit[left, right]
