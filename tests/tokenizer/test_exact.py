"""Every road gives tiktoken's and tokenizers' ids: the clear one, the dictionary, whole arrays, windows, the heap."""

import pickle
import random
import string
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.tokenizer import Tokenizer, merge, short, split
from labkit.tokenizer.bulk import BulkEncoder
from labkit.tokenizer.classes import CODE_POINTS
from labkit.tokenizer.giants import merge_by_heap, merge_everywhere
from labkit.tokenizer.pairs import PairTable
from labkit.tokenizer.rounds import merge_rows
from labkit.tokenizer.short import find_words
from labkit.tokenizer.split import split_text
from labkit.tokenizer.train import train
from labkit.tokenizer.windows import merge_by_windows
from tests.oracles.greedy_bpe import GreedyEncoder
from tests.oracles.peer_tokenizers import tiktoken_gpt2, tokenizers_gpt2
from tests.tokenizer.texts import random_texts


def by_the_clear_road(tokenizer: Tokenizer, text: str) -> list[int]:
    return [token for piece in split(text) for token in merge(piece.data, tokenizer.vocabulary)]


def check(tokenizer: Tokenizer, texts: list[str]) -> None:
    """All roads against tiktoken on each text, and against both peers on all of them joined."""
    peer = tiktoken_gpt2()
    for text in texts:
        expected = peer.encode_ordinary(text)
        assert tokenizer.encode(text) == expected, text
        assert tokenizer.encode_array(text).tolist() == expected, text
        assert tokenizer.decode_bytes(expected) == text.encode("utf-8")
    joined = "".join(texts)
    expected = peer.encode_ordinary(joined)
    assert tokenizer.encode(joined) == expected
    assert tokenizer.encode_array(joined).tolist() == expected
    assert tokenizers_gpt2()(joined) == expected
    assert tokenizer.decode(expected) == joined


def test_random_texts(gpt2: Tokenizer) -> None:
    texts = random_texts(1, 3000)
    check(gpt2, texts)
    for text in texts[:300]:
        assert by_the_clear_road(gpt2, text) == gpt2.encode(text), text
        assert tokenizers_gpt2()(text) == gpt2.encode(text), text


@pytest.mark.slow
def test_a_hundred_thousand_random_texts(gpt2: Tokenizer) -> None:
    for seed in range(20):
        texts = random_texts(100 + seed, 5000)
        check(gpt2, texts)
        for text in texts:
            assert tokenizers_gpt2()(text) == gpt2.encode(text), text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_any_text(text: str) -> None:
    tokenizer = Tokenizer.gpt2() if not SHARED else SHARED[0]
    SHARED[:] = [tokenizer]
    ids = tokenizer.encode(text)
    assert ids == tiktoken_gpt2().encode_ordinary(text)
    assert tokenizer.decode(ids) == text
    assert by_the_clear_road(tokenizer, text) == ids
    encoding = tokenizer.explain(text)
    assert encoding.ids == ids
    assert b"".join(token.data for token in encoding.tokens) == text.encode("utf-8")


SHARED: list[Tokenizer] = []


@given(st.binary(max_size=40))
def test_any_bytes(data: bytes) -> None:
    tokenizer = Tokenizer.gpt2() if not SHARED else SHARED[0]
    SHARED[:] = [tokenizer]
    ids = tokenizer.encode_bytes(data)
    assert tokenizer.decode_bytes(ids) == data
    assert ids == tiktoken_gpt2()._encode_bytes(data)


def test_bytes_near_text(gpt2: Tokenizer) -> None:
    source = random.Random(3)
    alphabet = [b"a", b" ", b"\n", b"\t", b"'s", b"\xff", "日".encode(), b"\xe6\x97", b"\x80", b"  ", b"the", b"9"]
    for _ in range(3000):
        data = b"".join(source.choices(alphabet, k=source.randrange(12)))
        assert gpt2.encode_bytes(data) == tiktoken_gpt2()._encode_bytes(data), data


CONTEXTS = ["{}'s", "a{}b", " {} ", "{}{}", "1{}2", "\n{}'ll", "!{}?", "'{}", "  {}  x"]


def classes_checked(gpt2: Tokenizer, points: list[int], contexts: list[str]) -> None:
    for context in contexts:
        # "\n\nq" ends every piece of the case before, so that many cases make one text
        text = "\n\nq".join(context.replace("{}", chr(point)) for point in points)
        expected = tiktoken_gpt2().encode_ordinary(text)
        assert gpt2.encode_array(text).tolist() == expected, context
        assert tokenizers_gpt2()(text) == expected, context


def test_code_points_of_every_kind(gpt2: Tokenizer) -> None:
    """Both sides of every edge in the tables, and every white space."""
    from labkit.tokenizer import unicode16
    from labkit.tokenizer.classes import parse_ranges

    points = {
        point + step
        for name in ("LETTERS", "NUMBERS", "SPACES")
        for pair in parse_ranges(getattr(unicode16, name))
        for point in pair
        for step in (-1, 0, 1)
    }
    classes_checked(gpt2, sorted(p for p in points if 0 <= p < CODE_POINTS and not 0xD800 <= p <= 0xDFFF), CONTEXTS[:4])


@pytest.mark.slow
def test_every_scalar_value_in_nine_contexts(gpt2: Tokenizer) -> None:
    points = [*range(0xD800), *range(0xE000, CODE_POINTS)]
    for start in range(0, len(points), 50_000):
        classes_checked(gpt2, points[start : start + 50_000], CONTEXTS)


def test_roads_for_one_piece_agree(gpt2: Tokenizer) -> None:
    source = random.Random(5)
    pairs = PairTable(gpt2.vocabulary)
    for length in (1, 2, 9, 63, 64, 65, 200, 700):
        for alphabet in (string.ascii_lowercase, "ab", "=", "0123456789", "the"):
            piece = "".join(source.choices(alphabet, k=length)).encode()
            expected = merge(piece, gpt2.vocabulary)
            ids = pairs.byte_ids[np.frombuffer(piece, np.uint8)]
            ranks = pairs.ranks(ids[:-1], ids[1:])
            assert merge_by_heap(ids.tolist(), ranks.tolist(), pairs) == expected
            rest, rest_ranks = merge_everywhere(ids, ranks, pairs)
            assert merge_by_heap(rest.tolist(), rest_ranks.tolist(), pairs) == expected
            assert gpt2.encode_piece(piece) == expected
            if length <= 64:
                rows = np.frombuffer(piece.ljust(64, b"\0"), np.uint8).reshape(1, 64)
                assert merge_rows(rows, pairs)[0].tolist() == expected
            elif (found := merge_by_windows(piece, pairs)) is not None:
                assert found == expected


def test_windows_find_common_tokens_in_random_letters(gpt2: Tokenizer) -> None:
    piece = "".join(random.Random(6).choices(string.ascii_lowercase, k=3000)).encode()
    assert merge_by_windows(piece, PairTable(gpt2.vocabulary)) == tiktoken_gpt2().encode_ordinary(piece.decode())


def test_windows_on_small_vocabularies_with_long_tokens() -> None:
    """Random merges over two letters: tokens reach from window to window, and many windows share none."""
    stitched = 0
    for seed in range(120):
        source = random.Random(seed)
        words = Counter(
            {"".join(source.choices("ab", [3, 1], k=source.randrange(2, 40))).encode(): 2 for _ in range(8)}
        )
        pairs = PairTable(train(words, vocabulary_size=257 + source.randrange(3, 60), special_tokens=()))
        for _ in range(8):
            piece = "".join(source.choices("ab", [3, 1], k=source.randrange(65, 400))).encode()
            ids = pairs.byte_ids[np.frombuffer(piece, np.uint8)]
            expected = merge_by_heap(ids.tolist(), pairs.ranks(ids[:-1], ids[1:]).tolist(), pairs)
            found = merge_by_windows(piece, pairs)
            stitched += found is not None
            assert found in (None, expected), (seed, piece)
    assert stitched > 100


def test_greedy_longest_match_agrees(gpt2: Tokenizer) -> None:
    """A second algorithm, which never looks at the order of merges over the whole piece."""
    greedy = GreedyEncoder(gpt2.vocabulary)
    for text in random_texts(8, 300):
        for piece in split(text):
            assert greedy.encode(piece.data) == gpt2.encode_piece(piece.data), piece


def test_every_token_of_gpt2_encodes_to_itself(gpt2: Tokenizer) -> None:
    """What seeds.py takes for granted about the released merges."""
    tokens = list(enumerate(gpt2.vocabulary.tokens))[:50256]
    assert gpt2.vocabulary.released
    assert all(gpt2.encode_piece(data or b"") == [token] for token, data in tokens)


def test_small_tables_forget_and_stay_right(gpt2: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables are caches: with hardly any room, and forgetting all the time, ids are the same."""
    from labkit.tokenizer import bulk

    monkeypatch.setattr(bulk, "STORE_LIMIT", 60_000)
    monkeypatch.setattr(bulk, "LONG_PIECES", 3)
    monkeypatch.setattr(bulk, "SLICE", 500)
    monkeypatch.setattr(bulk, "ROWS_PAY", 2)
    encoder = BulkEncoder(PairTable(gpt2.vocabulary))
    text = "".join(random_texts(9, 100))
    expected = tiktoken_gpt2().encode_ordinary(text)
    assert encoder.encode(text).tolist() == expected
    assert encoder.encode(text).tolist() == expected


def test_words_are_made_of_whole_pieces() -> None:
    """What short.py relies on: white space and the text behind it split for themselves."""
    for text in random_texts(71, 3000):
        assert [piece for word in find_words(text) for piece in split_text(word)] == split_text(text), text


def test_a_short_memory_forgets_and_stays_right(gpt2: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short, "REMEMBERED", 5)
    monkeypatch.setattr(short, "LONGEST", 6)
    tokenizer = Tokenizer(gpt2.vocabulary)
    for text in random_texts(72, 300) * 2:
        assert tokenizer.encode(text) == tiktoken_gpt2().encode_ordinary(text)


def test_threads_share_a_tokenizer(gpt2: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    from labkit.tokenizer import bulk

    monkeypatch.setattr(bulk, "STORE_LIMIT", 60_000)  # tables are forgotten while others use them
    tokenizer = Tokenizer(gpt2.vocabulary)
    texts = ["".join(random_texts(200 + seed, 60)) for seed in range(24)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(tokenizer.encode_array, texts))
    assert [ids.tolist() for ids in found] == [tiktoken_gpt2().encode_ordinary(text) for text in texts]


def test_a_tokenizer_can_be_sent_to_another_process(gpt2: Tokenizer) -> None:
    gpt2.encode_array("tables are built")
    again = pickle.loads(pickle.dumps(gpt2))
    assert again.encode_array("Hello, world!").tolist() == [15496, 11, 995, 0]


@pytest.mark.parametrize(
    "text",
    [
        "x" * 2_000_000,
        " " * 1_000_000 + "a",
        "日本語" * 300_000,
        "\n" * 300_000,
        "'s" * 200_000,
        "\0" * 100_000,
    ],
    ids=["one letter", "a million spaces, then a letter", "no break in Japanese", "lines", "contractions", "NUL"],
)
def test_giants_are_right_and_not_quadratic(gpt2: Tokenizer, text: str) -> None:
    """A quadratic road would take hours here. What is expected follows from a text of a thousandth of the length."""
    ids = gpt2.encode(text)
    assert gpt2.decode_bytes(ids) == text.encode("utf-8")
    small = tiktoken_gpt2().encode_ordinary(text[: len(text) // 100])
    assert ids[: len(small) - 10] == small[:-10]
    if text[0] != " ":  # tiktoken overflows its stack on a million spaces
        assert ids == tiktoken_gpt2().encode_ordinary(text)
    else:
        assert ids == [220] * 999_999 + [257]
