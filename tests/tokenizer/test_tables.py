"""The open-addressing tables beside a dictionary, so small and so full that keys collide all the time."""

import random

import numpy as np
import pytest

from labkit.tokenizer import Tokenizer
from labkit.tokenizer.pairs import NO_RANK, PairTable
from labkit.tokenizer.table import IdStore, KeyTable, byte_windows, high_words, low_words, pack, unique_keys
from labkit.tokenizer.vocabulary import pair_key


@pytest.mark.parametrize("words", [1, 2])
@pytest.mark.parametrize("seed", range(20))
def test_a_crowded_table_is_a_dictionary(words: int, seed: int) -> None:
    source = random.Random(seed)
    table = KeyTable(words=words, bits=6)
    known: dict[tuple[int, ...], int] = {}
    # few first words: keys that agree in one word and differ in the other
    firsts = [source.randrange(1, 1 << 64) for _ in range(200 if words == 1 else 3)]
    every = [
        (first,) if words == 1 else (first, source.randrange(8))
        for first in firsts
        for _ in range(1 if words == 1 else 40)
    ]
    every = list(dict.fromkeys(every))
    source.shuffle(every)
    while table.room() >= 5 and len(known) + 5 <= len(every):
        fresh = [key for key in every if key not in known][:5]
        values = [source.randrange(1, 1 << 60) for _ in fresh]
        table.insert(as_words(fresh, words), np.array(values, np.uint64))
        known.update(zip(fresh, values, strict=True))
        found = table.find(as_words(every, words)).tolist()
        assert found == [known.get(key, 0) for key in every]
    assert table.crowded == (table.used > 32)
    zero = (0,) * words
    assert table.find(as_words([zero], words)).tolist() == [0]
    table.clear()
    assert not table.find(as_words(every, words)).any()


def as_words(keys: list[tuple[int, ...]], words: int) -> tuple[np.ndarray, ...]:
    array = np.array(keys, np.uint64).reshape(len(keys), words)
    return tuple(np.ascontiguousarray(column) for column in array.T)


def test_every_pair_of_gpt2(gpt2: Tokenizer) -> None:
    pairs, vocabulary = PairTable(gpt2.vocabulary), gpt2.vocabulary
    left, right = np.array(vocabulary.left, np.int32), np.array(vocabulary.right, np.int32)
    assert pairs.ranks(left, right).tolist() == list(range(50_000))
    assert pairs.ordered
    assert int((~pairs.hard).sum()) == 2689  # pairs of bytes that stand inside some token
    source = np.random.default_rng(1)
    a, b = source.integers(0, 50257, (2, 200_000), np.int32)
    expected = [vocabulary.rank_of.get(pair_key(x, y), NO_RANK) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert pairs.ranks(a, b).tolist() == expected


def test_hard_pairs_stand_in_no_token(gpt2: Tokenizer) -> None:
    inside = {token[i : i + 2] for token in gpt2.vocabulary.tokens[:50256] if token for i in range(len(token) - 1)}
    hard = PairTable(gpt2.vocabulary).hard
    assert {bytes(divmod(pair, 256)) for pair in np.flatnonzero(~hard).tolist()} == inside


def test_words_hold_a_piece_and_nothing_else() -> None:
    data = bytes(range(1, 60))
    windows = byte_windows(data)
    for start in range(50):
        for length in range(1, min(16, len(data) - start) + 1):
            one = np.array([start]), np.array([length])
            held = low_words(windows, *one).tobytes() + high_words(windows, *one).tobytes()
            assert held == data[start : start + length].ljust(16, b"\0")


def test_unique_keys_and_the_store() -> None:
    keys = (np.array([5, 3, 5, 3, 5], np.uint64), np.array([1, 1, 2, 1, 1], np.uint64))
    unique, back = unique_keys(keys)
    rebuilt = [tuple(int(word[index]) for word in unique) for index in back]
    assert rebuilt == [(5, 1), (3, 1), (5, 2), (3, 1), (5, 1)]
    assert len(unique[0]) == 3
    store = IdStore(np.dtype(np.uint16))
    assert store.add(np.arange(10)) == 0
    assert store.add(np.arange(100_000) % 1000) == 10
    assert store.ids[10:20].tolist() == list(range(10))
    assert pack(np.array([3]), np.array([7])).tolist() == [3 << 40 | 7]
