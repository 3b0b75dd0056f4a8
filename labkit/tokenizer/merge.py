"""Merging by rank: the clear version, which the fast one is held to, and which yields its steps.

In: the bytes of a piece. Out: ids. Source: Sennrich, Haddow, Birch 2016, over bytes as in GPT-2. Of all neighbours
that the vocabulary can merge, the pair of the lowest rank is merged first, its leftmost place first, until none is
left.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from labkit.tokenizer.records import Candidate, MergeNode, MergeStep
from labkit.tokenizer.vocabulary import Vocabulary, pair_key


def merge(piece: bytes, vocabulary: Vocabulary) -> list[int]:
    """The ids of one piece.

    >>> from labkit.tokenizer import Tokenizer
    >>> merge(b" world", Tokenizer.gpt2().vocabulary)
    [995]
    """
    ids = [vocabulary.byte_ids[byte] for byte in piece]
    while (found := _lowest(ids, vocabulary)) is not None:
        rank, place = found
        ids[place : place + 2] = [vocabulary.made[rank]]
    return ids


def merge_steps(piece: bytes, vocabulary: Vocabulary) -> Iterator[MergeStep]:
    """Every merge of a piece, one after the other; a step takes in all the places where its pair is next in turn.

    >>> from labkit.tokenizer import Tokenizer
    >>> steps = list(merge_steps(b" world", Tokenizer.gpt2().vocabulary))
    >>> [(step.winner.rank, step.merged) for step in steps]
    [(10, b' w'), (17, b'or'), (79, b'ld'), (220, b' wor'), (739, b' world')]
    """
    ids = [vocabulary.byte_ids[byte] for byte in piece]
    number = 0
    while (found := _lowest(ids, vocabulary)) is not None:
        before, candidates = list(ids), _candidates(ids, vocabulary)
        winner = found[0]
        places: list[int] = []
        while found is not None and found[0] == winner:
            place = found[1]
            ids[place : place + 2] = [vocabulary.made[winner]]
            places.append(place + len(places))  # in the numbering of ``before``
            found = _lowest(ids, vocabulary)
        yield MergeStep(
            number,
            _bytes_of(before, vocabulary),
            candidates,
            candidates[0],
            tuple(places),
            _bytes_of(ids, vocabulary),
            vocabulary.made[winner],
        )
        number += 1


def merge_tree(piece: bytes, vocabulary: Vocabulary) -> list[MergeNode]:
    """The tokens of a piece, each as the tree of the merges that made it."""
    nodes = [MergeNode(bytes([byte]), vocabulary.byte_ids[byte]) for byte in piece]
    while (found := _lowest([node.token_id for node in nodes], vocabulary)) is not None:
        rank, place = found
        left, right = nodes[place : place + 2]
        nodes[place : place + 2] = [MergeNode(left.data + right.data, vocabulary.made[rank], rank, left, right)]
    return nodes


def _lowest(ids: Sequence[int], vocabulary: Vocabulary) -> tuple[int, int] | None:
    """The lowest rank among neighbours and its leftmost place; None where nothing can be merged."""
    ranks = [(vocabulary.rank_of.get(pair_key(a, b)), place) for place, (a, b) in enumerate(pairwise(ids))]
    return min(((rank, place) for rank, place in ranks if rank is not None), default=None)


def _candidates(ids: Sequence[int], vocabulary: Vocabulary) -> tuple[Candidate, ...]:
    """Every pair that can be merged, lowest rank first."""
    places: dict[int, list[int]] = {}
    for place, (a, b) in enumerate(pairwise(ids)):
        rank = vocabulary.rank_of.get(pair_key(a, b))
        if rank is not None:
            places.setdefault(rank, []).append(place)
    return tuple(_candidate(rank, where, vocabulary) for rank, where in sorted(places.items()))


def _candidate(rank: int, places: Sequence[int], vocabulary: Vocabulary) -> Candidate:
    left, right = _bytes_of([vocabulary.left[rank], vocabulary.right[rank]], vocabulary)
    return Candidate(left, right, rank, tuple(places), vocabulary.lines[rank] if vocabulary.lines else None)


def _bytes_of(ids: Sequence[int], vocabulary: Vocabulary) -> tuple[bytes, ...]:
    tokens = [vocabulary.tokens[token] for token in ids]
    return tuple(token for token in tokens if token is not None)
