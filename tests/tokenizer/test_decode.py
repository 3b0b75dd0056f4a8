"""Ids back to bytes and text: exact, whole characters only, and every bad id named."""

import numpy as np
import pytest

from labkit.errors import ArgumentTypeError, OutOfRangeError, TextError
from labkit.tokenizer import Tokenizer
from tests.oracles.peer_tokenizers import tiktoken_gpt2
from tests.tokenizer.texts import random_texts


def test_against_tiktoken(gpt2: Tokenizer) -> None:
    ids = tiktoken_gpt2().encode_ordinary("".join(random_texts(21, 2000)))
    for cut in (ids, ids[:400], ids[7:600], ids[::-1], []):  # by arrays and one at a time, and not at characters' edges
        assert gpt2.decode_bytes(cut) == tiktoken_gpt2().decode_bytes(cut)
        assert gpt2.decode(cut) == tiktoken_gpt2().decode(cut)
        assert gpt2.decode_bytes(np.array(cut, np.uint16)) == tiktoken_gpt2().decode_bytes(cut)
        assert gpt2.decode_bytes(iter(cut)) == tiktoken_gpt2().decode_bytes(cut)


def test_every_token(gpt2: Tokenizer) -> None:
    for token in range(gpt2.vocabulary_size):
        assert gpt2.token_bytes(token) == tiktoken_gpt2().decode_single_token_bytes(token)
    assert gpt2.token_text(50256) == "<|endoftext|>"


@pytest.mark.parametrize("many", [0, 1000], ids=["few", "many"])
@pytest.mark.parametrize("bad", [-1, 50257, 99999, 1 << 40, 1 << 70])
def test_an_unknown_id_is_named(gpt2: Tokenizer, bad: int, many: int) -> None:
    with pytest.raises(OutOfRangeError, match=rf"position {many}: no token has id {bad} \(expected 0 to 50256"):
        gpt2.decode([5] * many + [bad])
    with pytest.raises(IndexError):
        gpt2.token_bytes(bad)


@pytest.mark.parametrize("many", [0, 1000], ids=["few", "many"])
@pytest.mark.parametrize("bad", ["5", 1.0, None, b"a"])
def test_what_is_no_id_is_named(gpt2: Tokenizer, bad: object, many: int) -> None:
    with pytest.raises(ArgumentTypeError, match=rf"position {many}: an id must be a whole number \(got"):
        gpt2.decode([5] * many + [bad])  # type: ignore[list-item]


def test_arrays_that_are_no_ids(gpt2: Tokenizer) -> None:
    with pytest.raises(ArgumentTypeError, match=r"one row of whole numbers .*got float64 of 1 dimensions"):
        gpt2.decode(np.array([1.0]))
    with pytest.raises(ArgumentTypeError, match="got int64 of 2 dimensions"):
        gpt2.decode(np.array([[1]]))
    with pytest.raises(OutOfRangeError, match="position 1: no token has id -5"):
        gpt2.decode(np.array([1, -5]))
    with pytest.raises(ArgumentTypeError, match="ids must be a sequence of whole numbers"):
        gpt2.decode(5)  # type: ignore[arg-type]


def test_errors(gpt2: Tokenizer) -> None:
    half = gpt2.encode("日")[:1]
    assert gpt2.decode(half) == "\ufffd"
    assert gpt2.decode(half, "ignore") == ""
    assert gpt2.decode(half, "backslashreplace") == "\\xe6\\x97"
    with pytest.raises(TextError, match=r"byte 0: the tokens' bytes are not UTF-8 .*got 0xe6"):
        gpt2.decode(half, "strict")
    with pytest.raises(TextError, match="no such way of treating errors: 'nonsense'"):
        gpt2.decode(half, "nonsense")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("日本", ["", "日", "", "本", ""]),
        ("a\ufffdb", ["a", "\ufffd", "b", ""]),
        (" 👍", [" ", "👍", ""]),
    ],
)
def test_incremental(gpt2: Tokenizer, text: str, chunks: list[str]) -> None:
    decoder = gpt2.incremental_decoder()
    assert [decoder.feed(token) for token in gpt2.encode(text)] + [decoder.close()] == chunks


def test_incremental_gives_what_decode_gives(gpt2: Tokenizer) -> None:
    for text in random_texts(22, 300):
        ids = gpt2.encode(text)
        for cut in range(max(0, len(ids) - 3), len(ids) + 1):
            decoder = gpt2.incremental_decoder()
            out = "".join(decoder.feed(token) for token in ids[:cut])
            pending = decoder.pending
            assert out + decoder.close() == gpt2.decode(ids[:cut])
            assert out.encode("utf-8") + pending == gpt2.decode_bytes(ids[:cut])


def test_the_unfinished_tail_comes_with_close(gpt2: Tokenizer) -> None:
    decoder = gpt2.incremental_decoder()
    assert decoder.feed(gpt2.encode("日")[:1]) == ""
    assert decoder.pending == b"\xe6\x97"
    assert decoder.close() == "\ufffd"
    assert decoder.feed(gpt2.encode("ready again")) == "ready again"


@pytest.mark.parametrize(
    ("text", "replaced"),
    [
        ("a\ud800b", "a\ufffdb"),
        ("\udfff\ud800", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude00", "\ufffd😀"),
        ("x\udc80", "x\ufffd"),
    ],
)
def test_surrogates(gpt2: Tokenizer, text: str, replaced: str) -> None:
    with pytest.raises(TextError, match=r"character \d: the text holds the lone surrogate U\+D"):
        gpt2.encode(text)
    assert gpt2.encode(text, surrogates="replace") == gpt2.encode(replaced) == tiktoken_gpt2().encode_ordinary(text)
    assert gpt2.encode_array(text, surrogates="replace").tolist() == gpt2.encode(replaced)


@pytest.mark.parametrize("bad", [None, 5, b"bytes", ["a"]])
def test_a_text_must_be_a_str(gpt2: Tokenizer, bad: object) -> None:
    for encode in (gpt2.encode, gpt2.encode_array, gpt2.explain, gpt2.pieces):
        with pytest.raises(ArgumentTypeError, match=f"a text must be a str .*got {type(bad).__name__}"):
            encode(bad)  # type: ignore[arg-type]
    if not isinstance(bad, bytes):
        with pytest.raises(ArgumentTypeError, match="expected bytes"):
            gpt2.encode_bytes(bad)  # type: ignore[arg-type]
